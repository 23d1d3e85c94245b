"""DHMBPO's losses, gradients and uncertainty against plain loops and closed forms."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from linear_world import (
    BOX,
    CHANGES,
    unit,
    world_of,
)

from pombu import DHMBPO
from pombu.agent.numpy_policy import load_policy
from pombu.algorithms.dhmbpo.config import (
    DHMBPOConfig,
    DistributionConfig,
    SoftActorCriticConfig,
)
from pombu.algorithms.dhmbpo.learner import explore
from pombu.algorithms.dhmbpo.training import (
    TrainingRollout,
    distribution_rollout,
    expanded_target,
    improve_tail,
    local_along,
    past_the_end,
    soft_value,
    training_rollout,
    uncertainty_along,
    update,
    value_bounds,
)
from pombu.algorithms.registry import make, preset
from pombu.algorithms.soft_actor_critic import (
    Imagination,
    Networks,
    critic_loss,
    follow,
    fresh_optimisers,
    init_critics,
    init_tail,
    one_step_uncertainty,
    q_bias,
    sqrt_u,
    temperature_loss,
)
from pombu.cli import main
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import HomoscedasticModelConfig
from pombu.dynamics.ensemble import Layers
from pombu.envs import Episode, load
from pombu.errors import UsageError
from pombu.nn import MLP, SquashedPolicy, init_squashed, predict_variance
from pombu.parallel import jit
from pombu.training.algorithm import StageTimer
from pombu.uncertainty.algorithm1 import q_uncertainty

K, B, H, GAMMA = 2, 6, 3, 0.9
CONFIG = DHMBPOConfig(
    gamma=GAMMA,
    training_steps=H,
    batch_size=B,
    draw="rollout",
    uncertainty_rows=4,
    candidates=3,
    runaway=1e3,
    model=HomoscedasticModelConfig(members=K, hidden=(5,)),
    distribution=DistributionConfig(steps=4, starts=4, every=2, kept=2),
    actor_critic=SoftActorCriticConfig(critics=3, hidden=(5, 5)),
)
TEMPERATURE = 0.3


def networks_of(key: int = 0, dim: int = 2) -> Networks:
    first, second, third = jax.random.split(jax.random.key(key), 3)
    critics = init_critics(first, dim, 1, CONFIG.actor_critic)
    # An untrained last layer is 0; here critics are to differ.
    critics = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(second, x.shape), critics
    )
    actor = init_squashed(third, dim, 1, (5,))
    return Networks(
        actor,
        actor,
        critics,
        jax.tree.map(lambda x: 0.9 * x, critics),
        jnp.asarray(math.log(TEMPERATURE), jnp.float32),
        jnp.array([-20.0, 5.0]),
    )


def starts_of(number: int = B, seed: int = 5) -> Array:
    return jax.random.uniform(jax.random.key(seed), (number, 2), minval=-1.0)


def with_tail(networks: Networks) -> Networks:
    """With a U_psi whose unit is not 0."""
    tail = init_tail(jax.random.key(8), 2, CONFIG.actor_critic)
    tail = eqx.tree_at(
        lambda t: (t.value.scale, t.slow.scale), tail, (jnp.array(2.0),) * 2
    )
    given: Networks = eqx.tree_at(
        lambda n: n.tail, networks, tail, is_leaf=lambda x: x is None
    )
    return given


# Compiled, because step by step they take seconds.
local_of = jit(local_along, static_argnames="config")
beyond_of = jit(past_the_end, static_argnames="config")
rolled_out = jit(training_rollout, static_argnames="config")
uncertainty_of = jit(uncertainty_along, static_argnames="config")
updated = jit(update, static_argnames=("target_entropy", "config"))


@pytest.fixture(scope="module")
def rollout() -> TrainingRollout:
    """With two rows that end early."""
    networks = networks_of()
    starts = starts_of().at[0].set(jnp.array([1.5, 1.0])).at[4, 0].set(1.1)
    found = rolled_out(
        networks.policy, world_of(0.1), starts, jax.random.key(1), CONFIG
    )
    assert 0 < float(found.alive[-1].mean()) < 1
    return found


# The policy.


def test_a_squashed_policy_has_the_density_of_its_draws() -> None:
    policy = init_squashed(jax.random.key(0), 2, 1, (4,))
    policy = jax.tree.map(lambda x: 3.0 * x + 0.2, policy)
    state = jnp.array([0.3, -0.5])
    grid = jnp.linspace(-0.9999, 0.9999, 20_001)[:, None]
    density = jnp.exp(policy.log_prob(jnp.broadcast_to(state, (len(grid), 2)), grid))
    mass = np.trapezoid(np.asarray(density), np.asarray(grid[:, 0]))
    assert mass == pytest.approx(1.0, abs=5e-3)
    action, log_prob = policy.sample(state, jax.random.key(3))
    again = policy.log_prob(state, action)
    assert float(log_prob) == pytest.approx(float(again), abs=1e-3)
    mean, _ = policy.parameters(state)
    assert np.tanh(float(mean[0])) == pytest.approx(float(policy.mode(state)[0]))


# Rollouts.


def test_a_training_rollout_is_the_policy_in_its_members(
    rollout: TrainingRollout,
) -> None:
    """Without noise, step by step: row i belongs to member i // (B / K)."""
    networks, world = networks_of(), world_of(0.0)
    starts = np.asarray(rollout.states[0])
    found = rolled_out(
        networks.policy, world, jnp.asarray(starts), jax.random.key(1), CONFIG
    )
    for row in range(B):
        change = CHANGES[row // (B // K)]
        state, alive = starts[row].astype(np.float64), 1.0
        for t in range(H):
            action = float(found.actions[t, row, 0])
            assert float(found.alive[t, row]) == alive
            following = state + np.array([*state, 2 * action]) @ change
            reward = -(following**2).sum() - 0.1 * (2 * action) ** 2
            np.testing.assert_allclose(found.rewards[t, row], reward, rtol=1e-4)
            np.testing.assert_allclose(
                found.states[t + 1, row], following, rtol=1e-4, atol=1e-5
            )
            log_prob = networks.policy.log_prob(found.states[t], found.actions[t])[row]
            np.testing.assert_allclose(found.log_probs[t, row], log_prob, atol=1e-3)
            alive *= following[0] <= 1.2
            state = following
        assert float(found.alive[H, row]) == alive


def test_blocks_change_members_at_every_step_if_asked() -> None:
    networks, world = networks_of(), world_of(0.0)
    config = replace(CONFIG, draw="step", training_steps=8)
    found = rolled_out(networks.policy, world, starts_of(), jax.random.key(4), config)
    states, actions = np.asarray(found.states), np.asarray(found.actions)
    seen = set()
    for t in range(8):
        inputs = np.concatenate([states[t], 2 * actions[t]], -1)
        assigned = []
        for row in range(B):
            after = [states[t, row] + inputs[row] @ CHANGES[k] for k in range(K)]
            gaps = [np.abs(one - states[t + 1, row]).max() for one in after]
            assigned.append(int(np.argmin(gaps)))
            assert min(gaps) < 1e-4
        assert sorted(assigned) == sorted([*range(K)] * (B // K))
        seen.add(tuple(assigned))
    assert seen == {(0, 0, 0, 1, 1, 1), (1, 1, 1, 0, 0, 0)}


def test_a_distribution_rollout_begins_again_where_it_ended() -> None:
    """With every step an end, all states are stored ones."""
    networks, world = networks_of(), world_of(0.0)
    real = jnp.concatenate([starts_of(7), jnp.full((3, 2), 99.0)])
    alive = distribution_rollout(
        networks.policy, world, real, jnp.asarray(7), jax.random.key(0), CONFIG
    )
    assert alive.shape == (5, 4, 2)
    assert float(jnp.abs(alive).max()) < 50, "padding is no state"
    assert bool((alive[1:, :, 0] <= 1.2).all())
    lost = replace(CONFIG, runaway=1e-6)
    states = distribution_rollout(
        networks.policy, world, real, jnp.asarray(7), jax.random.key(0), lost
    )
    known = {tuple(row) for row in np.asarray(real[:7]).tolist()}
    assert {tuple(row) for row in np.asarray(states).reshape(-1, 2).tolist()} <= known


# Losses.


def test_the_expanded_target_is_a_loop(rollout: TrainingRollout) -> None:
    tail = jnp.linspace(-3.0, 3.0, B)
    found = expanded_target(rollout, tail, jnp.asarray(TEMPERATURE), GAMMA)
    soft = soft_value(rollout, tail, jnp.asarray(TEMPERATURE), GAMMA)
    for row in range(B):
        total = 0.0
        for t in range(H + 1):
            if not rollout.alive[t, row]:
                break
            if t < H:
                total += GAMMA**t * float(rollout.rewards[t, row])
            if t > 0:
                total -= TEMPERATURE * GAMMA**t * float(rollout.log_probs[t, row])
            if t == H:
                total += GAMMA**H * float(tail[row])
        assert float(found[row]) == pytest.approx(total, rel=1e-4)
        entropy = -TEMPERATURE * float(rollout.log_probs[0, row])
        assert float(soft[row]) == pytest.approx(total + entropy, rel=1e-4)


def by_hand(layers: Layers, member: int, x: np.ndarray) -> np.ndarray:
    """One network of a stack, for one row."""
    x = np.asarray(x, np.float64)
    for number, (weight, bias) in enumerate(
        zip(layers.weights, layers.biases, strict=True)
    ):
        x = x @ np.asarray(weight[member], np.float64) + np.asarray(bias[member])
        if number < len(layers.weights) - 1:
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
            x = x / (1 + np.exp(-x))
    return x


def q_by_hand(networks: Networks, member: int, state: Any, action: Any) -> float:
    low, high = np.asarray(networks.bounds)
    x = np.concatenate([np.asarray(state), np.asarray(action)])
    out = by_hand(networks.critics.layers, member, x)[0]
    return float((low + high) / 2 + (high - low) / 2 * out)


def test_the_critics_loss_is_a_loop(rollout: TrainingRollout) -> None:
    networks = networks_of()
    targets = jnp.linspace(-2.0, 4.0, B)
    found = critic_loss(
        networks.critics,
        rollout.states[0],
        rollout.actions[0],
        targets,
        networks.bounds,
    )
    half = float(networks.bounds[1] - networks.bounds[0]) / 2
    total = 0.0
    for member in range(networks.critics.members):
        for row in range(B):
            q = q_by_hand(
                networks, member, rollout.states[0, row], rollout.actions[0, row]
            )
            total += ((q - float(targets[row])) / half) ** 2 / B
    assert float(found) == pytest.approx(total, rel=1e-4)


def test_bounds_are_quantiles_of_soft_rewards(rollout: TrainingRollout) -> None:
    found = value_bounds(rollout, jnp.asarray(TEMPERATURE), GAMMA, 0.1)
    soft = rollout.rewards - TEMPERATURE * rollout.log_probs[:-1]
    due = np.quantile(np.asarray(soft), [0.1, 0.9]) / (1 - GAMMA)
    np.testing.assert_allclose(found, due, rtol=1e-4)
    alike = rollout._replace(rewards=TEMPERATURE * rollout.log_probs[:-1])
    low, high = value_bounds(alike, jnp.asarray(TEMPERATURE), GAMMA, 0.1)
    assert high > low


def test_the_temperature_rises_while_entropy_is_low() -> None:
    slope = jax.grad(temperature_loss)
    log = jnp.asarray(math.log(TEMPERATURE))
    assert float(slope(log, jnp.asarray(-2.0), -1.0)) == pytest.approx(-TEMPERATURE)
    assert float(slope(log, jnp.asarray(1.0), -1.0)) == pytest.approx(2 * TEMPERATURE)


def test_targets_follow_critics() -> None:
    networks = networks_of()
    found = follow(networks.targets, networks.critics, 0.25)
    for new, old, goal in zip(
        *map(jax.tree.leaves, (found, networks.targets, networks.critics)), strict=True
    ):
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * goal, rtol=1e-5)


# Gradients.


def learned_direction(
    networks: Networks, world: Imagination, starts: Array, config: DHMBPOConfig
) -> tuple[Any, Any]:
    """The actor's gradient of an update, read off the first moment of Adam."""
    key = jax.random.key(7)
    after, memory, _ = updated(
        networks,
        fresh_optimisers(networks, 3e-4),
        world,
        starts,
        jnp.asarray(False),
        jnp.asarray(True),
        key,
        -1.0,
        config,
    )
    gradient = jax.tree.map(lambda m: np.asarray(m) / 0.1, memory.policy[0].mu)
    return gradient, after


@pytest.mark.parametrize(
    ("kappa", "drawn", "tail"), [(0.0, None, False), (0.7, 2, False), (0.7, None, True)]
)
def test_the_actors_gradient_is_that_of_finite_differences(
    kappa: float, drawn: int | None, tail: bool
) -> None:
    """Through rewards, states, actions, entropies, the tail, and sqrt(U)."""
    actor_critic = replace(CONFIG.actor_critic, actor_subset=drawn)
    config = replace(CONFIG, kappa=kappa, actor_critic=actor_critic)
    networks, world, starts = networks_of(), world_of(0.1), 0.5 * starts_of()
    if tail:
        networks = with_tail(networks)
    gradient, after = learned_direction(networks, world, starts, config)
    roll_key, pick_key = jax.random.split(jax.random.key(7))
    guides = after.critics
    if drawn is not None:
        guides = guides.some(jax.random.permutation(pick_key, 3)[-drawn:])

    def loss(policy: SquashedPolicy) -> float:
        rolled = rolled_out(policy, world, starts, roll_key, config)
        tail = guides.values(rolled.states[-1], rolled.actions[-1], after.bounds).mean(
            0
        )
        value = soft_value(rolled, tail, jnp.asarray(TEMPERATURE), GAMMA)
        # V's own actor is held fixed.
        local = local_of(rolled, networks.policy, guides, after.bounds, world, config)
        tail = None if networks.tail is None else networks.tail.value
        beyond = beyond_of(rolled, after.critics, after.bounds, tail, world, config)
        uncertainty = sqrt_u(local, rolled.alive[:, : len(beyond)], beyond, GAMMA)
        return float(-value.mean() + kappa * uncertainty.mean())

    leaves, tree = jax.tree.flatten(networks.policy)
    slopes = jax.tree.leaves(gradient)
    step = 3e-3
    for number, leaf in enumerate(leaves):
        index = (0,) * leaf.ndim
        sides = []
        for sign in (1, -1):
            moved = leaf.at[index].add(sign * step)
            changed = [*leaves[:number], moved, *leaves[number + 1 :]]
            sides.append(loss(jax.tree.unflatten(tree, changed)))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert slopes[number][index] == pytest.approx(slope, rel=1e-2, abs=1e-2)


def test_the_actors_gradient_is_the_closed_form_of_a_linear_quadratic_problem() -> None:
    """One state, one action, u = w s + b; J = sum of gamma^t (-s_{t+1}^2 - .1 a_t^2).

    With a = 2 tanh(u) and s' = (1 + p) s + q a the chain rule gives dJ/dw and dJ/db
    step by step. Critics are constant and there is next to no noise or entropy.
    """
    p, q, w, b = 0.1, 0.4, -0.3, 0.1
    changes = np.full((1, 2, 1), 0.0, np.float32)
    changes[0] = [[p], [q]]
    world = world_of(0.0, changes)
    weight = jnp.array([[w, 0.0]])
    bias = jnp.array([b, -50.0])
    policy = SquashedPolicy(MLP((weight,), (bias,), "silu"))
    config = replace(
        CONFIG,
        batch_size=4,
        model=HomoscedasticModelConfig(members=1),
    )
    networks = eqx.tree_at(
        lambda n: (n.policy, n.critics, n.targets, n.log_temperature),
        networks_of(dim=1),
        (
            policy,
            *(init_critics(jax.random.key(0), 1, 1, config.actor_critic),) * 2,
            jnp.asarray(-30.0),
        ),
    )
    # A critic whose learning rate is 0 stays constant.
    config = replace(
        config, actor_critic=replace(config.actor_critic, learning_rate=0.0)
    )
    starts = np.array([[0.5], [-0.7], [0.2], [0.9]], np.float32)
    gradient, _ = learned_direction(networks, world, jnp.asarray(starts), config)
    slopes = []
    for (start,) in starts.astype(np.float64):
        s, ds, total = start, np.zeros(2), np.zeros(2)
        for t in range(H):
            u, du = w * s + b, np.array([s, 1.0]) + w * ds
            a, da = 2 * np.tanh(u), 2 * (1 - np.tanh(u) ** 2) * du
            s, ds = (1 + p) * s + q * a, (1 + p) * ds + q * da
            total += GAMMA**t * (-2 * s * ds - 0.2 * a * da)
        slopes.append(-total)
    expected = np.mean(slopes, 0)
    assert gradient.network.weights[0][0, 0] == pytest.approx(expected[0], rel=1e-3)
    assert gradient.network.biases[0][0] == pytest.approx(expected[1], rel=1e-3)


def test_critics_learn_alone_while_the_actor_waits() -> None:
    networks = networks_of()
    after, memory, _ = updated(
        networks,
        fresh_optimisers(networks, 3e-4),
        world_of(0.1),
        starts_of(),
        jnp.asarray(False),
        jnp.asarray(False),
        jax.random.key(0),
        -1.0,
        CONFIG,
    )
    assert eqx.tree_equal(after.policy, networks.policy)
    assert after.log_temperature == networks.log_temperature
    assert int(memory.policy[0].count) == 0
    assert not eqx.tree_equal(after.critics, networks.critics)


# Uncertainty.


def test_sqrt_u_is_algorithm_1_along_the_rollout(rollout: TrainingRollout) -> None:
    """The library's own Algorithm 1, with a last step of all critics as members."""
    networks, world = networks_of(), world_of(0.1)
    rows = CONFIG.uncertainty_rows
    found = uncertainty_of(rollout, networks, world, CONFIG)
    count = networks.critics.members

    def value(state: np.ndarray) -> float:
        action = networks.policy.mode(jnp.asarray(state, jnp.float32))
        return float(
            np.mean([q_by_hand(networks, c, state, action) for c in range(count)])
        )

    for row in range(rows):
        variance, discount = 0.0, 1.0
        for t in range(H):
            state = np.asarray(rollout.states[t, row], np.float64)
            action = 2 * float(rollout.actions[t, row, 0])
            rewards, values = [], []
            for k in range(K):
                after = state + np.array([*state, action]) @ CHANGES[k]
                rewards.append([-(after**2).sum() - 0.1 * action**2])
                values.append([0.0 if after[0] > 1.2 else value(after)])
            local = q_uncertainty(np.array(rewards), np.array(values), GAMMA)[0]
            variance += discount * float(local) ** 2
            discount *= GAMMA**2 * float(rollout.alive[t + 1, row])
        ends = [
            q_by_hand(networks, c, rollout.states[-1, row], rollout.actions[-1, row])
            for c in range(count)
        ]
        variance += discount * float(np.var(ends))
        assert float(found[row]) == pytest.approx(math.sqrt(variance), rel=1e-3)


def test_u_psi_learns_the_uncertainty_of_an_endless_rollout() -> None:
    """Doubt of .2 at every step adds up to .2 / (1 - gamma^2), and ends with it."""
    world, config = world_of(0.0), replace(CONFIG, uncertainty_rows=B)
    row = jax.random.normal(jax.random.key(0), (B, 2)).at[:2].add(5.0)
    states = jnp.broadcast_to(row, (H + 1, B, 2))
    alive = jnp.ones((H + 1, B)).at[1:, :2].set(0.0)
    nothing = jnp.zeros((H, B))
    endless = TrainingRollout(states, states[..., :1], states[..., 0], nothing, alive)
    settings = replace(CONFIG.actor_critic, tau=0.1, learning_rate=1e-2)
    config = replace(config, actor_critic=settings)
    tail = init_tail(jax.random.key(1), 2, settings)
    memory = fresh_optimisers(with_tail(networks_of()), 1e-2).tail

    def learn(_: int, carry: Any) -> Any:
        return improve_tail(*carry, endless, jnp.full((H, B), 0.2), world, config)

    tail, _ = jax.jit(lambda c: jax.lax.fori_loop(0, 3000, learn, c))((tail, memory))
    found = predict_variance(tail.value, row)
    np.testing.assert_allclose(found[:2], 0.2, rtol=0.05)
    np.testing.assert_allclose(found[2:], 0.2 / (1 - GAMMA**2), rtol=0.05)


def test_an_actor_with_a_tail_has_u_psi_past_its_rollout(
    rollout: TrainingRollout,
) -> None:
    networks, world = with_tail(networks_of()), world_of(0.1)
    assert networks.tail is not None
    found = uncertainty_of(rollout, networks, world, CONFIG)
    rows = CONFIG.uncertainty_rows
    args = (networks.policy, networks.critics, networks.bounds, world, CONFIG)
    local = np.asarray(local_of(rollout, *args), np.float64)
    variance, discount = np.zeros(rows), np.ones(rows)
    for t in range(H):
        variance += discount * local[t]
        discount *= GAMMA**2 * np.asarray(rollout.alive[t + 1, :rows])
    end = predict_variance(networks.tail.value, rollout.states[-1, :rows])
    variance += discount * np.asarray(end)
    np.testing.assert_allclose(found, np.sqrt(variance), rtol=1e-4)


def test_a_bonus_chooses_what_is_more_uncertain() -> None:
    networks, world, states = networks_of(), world_of(0.0), starts_of()
    many = replace(CONFIG, candidates=40)

    def chosen(bonus: float) -> tuple[Array, Array]:
        config = replace(many, bonus=bonus)
        actions = explore(networks, world, states, jax.random.key(0), config)
        q = networks.critics.values(states, actions, networks.bounds).mean(0)
        return q, one_step_uncertainty(networks, world, states, actions, GAMMA)

    greedy_q, greedy_u = chosen(0.0)
    bold_q, bold_u = chosen(1000.0)
    assert bool((bold_u >= greedy_u - 1e-6).all())
    assert float(bold_u.mean()) > float(greedy_u.mean())
    assert bool((greedy_q >= bold_q - 1e-6).all())


def test_q_bias_is_a_loop() -> None:
    """An episode that terminated and one that a time limit cut off."""
    networks = eqx.tree_at(
        lambda n: n.log_temperature, networks_of(), jnp.asarray(-30.0)
    )
    # Without noise, so that the action at the last state is known.
    bias = networks.policy.network.biases[-1].at[1:].set(-50.0)
    networks = eqx.tree_at(
        lambda n: n.policy.network.biases,
        networks,
        (*networks.policy.network.biases[:-1], bias),
    )
    rng = np.random.default_rng(0)
    episodes = [
        Episode(
            rng.normal(size=(n + 1, 2)).astype(np.float32),
            rng.uniform(-2, 2, (n, 1)).astype(np.float32),
            rng.normal(size=n).astype(np.float32),
            ended,
        )
        for n, ended in ((3, True), (5, False))
    ]
    found = q_bias(networks, unit(2), BOX, episodes, 5, GAMMA, jax.random.key(0))

    def mean_q(state: Any, action: Any) -> float:
        return float(np.mean([q_by_hand(networks, c, state, action) for c in range(3)]))

    gaps = []
    for episode in episodes:
        total = sum(GAMMA**t * float(r) for t, r in enumerate(episode.rewards))
        if not episode.terminated:
            last = episode.observations[-1]
            mode = networks.policy.mode(jnp.asarray(last))
            total += GAMMA ** len(episode) * mean_q(last, mode)
        gaps.append(mean_q(episode.observations[0], episode.actions[0] / 2) - total)
    assert found == pytest.approx(np.mean(gaps), rel=1e-3, abs=1e-3)


# The learner.


def test_a_learned_reward_and_learned_ends_are_imagined() -> None:
    config = preset("dhmbpo", "smoke", "Point2D", 10)
    config = replace(
        config,
        learning_starts=0,
        model=replace(config.model, reward="learned", termination="learned"),
    )
    learner = make("dhmbpo", load(config.env), config)
    state, metrics = learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    assert np.isfinite(list(metrics.values())).all()
    assert state.members.log_std.shape == (3, 3)
    assert int(state.updates) == 2
    assert int(state.imagined_steps) == 12 * 3 + 2 * 12 * 2


def test_updates_wait_for_learning_starts_and_then_count_every_step() -> None:
    config = replace(
        preset("dhmbpo", "smoke", "Point2D", 10),
        learning_starts=40,
        updates_per_step=0.2,
        bonus=1.0,
        kappa=0.5,
    )
    learner = make("dhmbpo", load(config.env), config)
    state, episodes = learner.init(0), EpisodeStore()
    updates = []
    for _ in range(3):
        state, metrics = learner.iterate(state, episodes, StageTimer())
        updates.append(int(state.updates))
    assert updates == [0, 8, 12]
    assert {"sqrt_u", "q_bias", "entropy", "temperature", "model_error_1"} <= {*metrics}


def test_it_trains_resumes_and_exports_by_command(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "policy.safetensors"
    arguments = ["--algo", "dhmbpo", "--env", "Point2D", "--preset", "smoke"]
    assert main(["train", *arguments, "--total-steps", "120", "--out", str(run)]) == 0
    assert main(["export", str(run), str(file)]) == 0
    agent = DHMBPO.load(run)
    states = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    np.testing.assert_allclose(
        load_policy(str(file))(states),
        agent.predict(states, deterministic=True)[0],
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training_steps": 0}, "training_steps is 0"),
        ({"kappa": -1.0}, r"kappa is -1\.0"),
        ({"bonus": -0.5}, r"bonus is -0\.5"),
        ({"gamma": 1.0}, r"gamma is 1\.0"),
        ({"batch_size": 7}, "batch_size is 7, no multiple of model.members = 2"),
        ({"uncertainty_rows": 9}, "uncertainty_rows is 9"),
        ({"updates_per_step": 1e3}, r"updates_per_step is 1000\.0"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        replace(CONFIG, **change)


@pytest.mark.parametrize("field", ["steps", "starts", "every", "kept"])
def test_distribution_rollouts_have_something_of_everything(field: str) -> None:
    with pytest.raises(UsageError, match=rf"distribution\.{field} is 0"):
        replace(CONFIG.distribution, **{field: 0})


@pytest.mark.parametrize("field", ["subset", "actor_subset"])
def test_there_are_as_many_critics_as_are_drawn(field: str) -> None:
    with pytest.raises(UsageError, match=rf"actor_critic\.{field} is 4"):
        replace(CONFIG.actor_critic, **{field: 4})


@pytest.mark.parametrize("algorithm", ["dhmbpo", "mbpo"])
def test_moments_are_kept_if_asked_and_the_policy_is_an_average(algorithm: str) -> None:
    config = preset(algorithm, "smoke", "Point2D")
    kept = replace(
        config,
        actor_critic=replace(
            config.actor_critic, keep_moments=True, policy_average=0.25
        ),
    )

    def steps_of_adam(state: Any) -> int:
        return int(state.memory.critics[0].count)

    for settings, since_start in ((config, False), (kept, True)):
        learner = make(algorithm, load(settings.env), settings)
        state, episodes = learner.init(0), EpisodeStore()
        for _ in range(3):
            before, state = state, learner.iterate(state, episodes, StageTimer())[0]
        first = 0 if since_start else int(before.updates)
        assert steps_of_adam(state) == int(state.updates) - first
        alike = eqx.tree_equal(state.policy, state.actor)
        assert bool(alike) is not since_start


def test_an_average_is_a_loop() -> None:
    weights = [3.0, 1.0, -2.0]
    average, due = MLP((jnp.zeros((1, 1)),), (jnp.zeros(1),)), 0.0
    for weight in weights:
        newest = MLP((jnp.full((1, 1), weight),), (jnp.zeros(1),))
        average = follow(average, newest, 0.25)
        due = 0.75 * due + 0.25 * weight
    assert np.isclose(average.weights[0][0, 0], due)
    assert follow(average, newest, 1.0) is newest
