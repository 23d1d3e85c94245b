"""MBPO's branches, batches and updates against plain loops."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_world import BOX, QUADRATIC, world_of

from pombu.algorithms.config import ActorCriticConfig
from pombu.algorithms.mbpo.config import BranchConfig, MBPOConfig
from pombu.algorithms.mbpo.learner import (
    Transitions,
    actor_loss,
    branch_out,
    branch_step,
    draw_batch,
    least,
    soft_target,
    update,
)
from pombu.algorithms.registry import make, preset
from pombu.algorithms.soft_actor_critic import (
    PLAIN,
    Networks,
    critic_loss,
    fresh_optimisers,
    init_critics,
)
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import HomoscedasticModelConfig
from pombu.envs import load
from pombu.errors import UsageError
from pombu.nn import init_squashed
from pombu.training.algorithm import StageTimer

GAMMA, TEMPERATURE = 0.9, 0.3
CONFIG = MBPOConfig(
    gamma=GAMMA,
    batch_size=40,
    real_share=0.25,
    elites=2,
    runaway=1e3,
    model=HomoscedasticModelConfig(members=2, hidden=(5,)),
    branch=BranchConfig(starts=4, every=3, kept=2, first_steps=1, last_steps=4),
    actor_critic=ActorCriticConfig(critics=2, hidden=(5, 5), bound_rate=0.0),
)


ALPHA = jnp.asarray(TEMPERATURE)


def whole(number: int) -> jax.Array:
    return jnp.asarray(number)


def networks_of(key: int = 0) -> Networks:
    first, second, third = jax.random.split(jax.random.key(key), 3)
    critics = init_critics(first, 2, 1, CONFIG.actor_critic, PLAIN)
    # An untrained last layer is 0; here critics are to differ.
    critics = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(second, x.shape), critics
    )
    actor = init_squashed(third, 2, 1, (5,))
    return Networks(
        actor,
        actor,
        critics,
        jax.tree.map(lambda x: 0.9 * x, critics),
        jnp.asarray(math.log(TEMPERATURE), jnp.float32),
        jnp.array([-1.0, 1.0]),
    )


def stored(number: int = 10, seed: int = 1) -> Transitions:
    """Real transitions whose rewards tell which one it is."""
    rng = np.random.default_rng(seed)
    states, following = rng.uniform(-0.5, 0.5, (2, number, 2))
    steps = Transitions(
        states,
        rng.uniform(-1, 1, (number, 1)),
        np.arange(number) + 100.0,
        following,
        np.arange(number) % 3 == 0,
        np.ones(number),
    )
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), steps)


def test_branches_are_the_policy_in_the_elites_from_stored_states() -> None:
    networks, world, real = networks_of(), world_of(0.01), stored()
    steps = branch_out(
        networks.policy, world, real, whole(7), whole(3), jax.random.key(0), CONFIG
    )
    known = np.asarray(real.states[:7])
    for t in range(3):
        for row in range(CONFIG.branch.starts):
            state, following = steps.states[t, row], steps.following[t, row]
            continues = t > 0 and np.allclose(state, steps.following[t - 1, row])
            ended = t > 0 and steps.ends[t - 1, row] == 1.0
            if ended or t == 0:
                assert np.abs(known - np.asarray(state)).max(-1).min() == 0.0
            else:
                assert continues
            boxed = BOX.to_box(steps.actions[t, row])
            reward = QUADRATIC.reward(state, boxed, following)
            assert np.isclose(steps.rewards[t, row], reward, atol=1e-5)
            end = QUADRATIC.terminal(state, boxed, following)
            assert steps.ends[t, row] == float(end)
    assert np.all(steps.weight[:3] == 1.0)
    assert np.all(steps.weight[3:] == 0.0), "rows beyond the length are empty"


def test_what_runs_away_is_dropped_and_finite() -> None:
    world, far = world_of(0.01), jnp.full((4, 2), 900.0)
    config = replace(CONFIG, runaway=10.0)
    steps, over = branch_step(
        networks_of().policy, world, far, jax.random.key(0), config
    )
    assert np.all(over)
    assert np.all(steps.weight == 0.0)
    assert np.all(steps.rewards == 0.0)


@pytest.mark.parametrize(("most", "kept"), [(0.0, 0.0), (1e6, 1.0)])
def test_a_branch_stops_where_members_disagree(most: float, kept: float) -> None:
    world = world_of(0.01)
    world = eqx.tree_at(
        lambda w: w.dynamics.most_disagreement,
        world,
        jnp.asarray(most),
        is_leaf=lambda leaf: leaf is None,
    )
    config = replace(CONFIG, branch=replace(CONFIG.branch, disagreement_stop=1.0))
    states = jnp.full((4, 2), 0.3)
    steps, over = branch_step(
        networks_of().policy, world, states, jax.random.key(0), config
    )
    assert np.all(steps.weight == kept)
    assert np.all(over == (kept == 0.0))


def test_a_batch_has_its_share_of_real_steps_and_no_empty_ones() -> None:
    real = stored()
    shape = (2, 4, CONFIG.branch.starts)
    slots, times = np.meshgrid(range(2), range(4), indexing="ij")
    mark = np.broadcast_to((10 * slots + times)[..., None], shape)
    ring = Transitions(
        jnp.zeros((*shape, 2)),
        jnp.zeros((*shape, 1)),
        jnp.asarray(mark, jnp.float32),
        jnp.zeros((*shape, 2)),
        jnp.zeros(shape),
        jnp.ones(shape),
    )
    seen = []
    for number in range(20):
        batch = draw_batch(
            ring, whole(1), whole(2), real, whole(6), jax.random.key(number), CONFIG
        )
        rewards = np.asarray(batch.rewards)
        assert len(rewards) == 40
        assert np.all((rewards[:10] >= 100) & (rewards[:10] < 106))
        seen += rewards[10:].tolist()
    assert set(seen) == {0.0, 1.0}, "the first slot, and the steps that were taken"


def test_the_target_is_a_loop() -> None:
    batch = stored()
    values = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)
    log_probs = np.linspace(-1, 1, 10).astype(np.float32)
    found = soft_target(
        batch, jnp.asarray(values), jnp.asarray(log_probs), ALPHA, GAMMA
    )
    for row in range(10):
        due = float(batch.rewards[row])
        if not batch.ends[row]:
            due += GAMMA * (values[:, row].min() - TEMPERATURE * log_probs[row])
        assert np.isclose(found[row], due)


def test_dropped_steps_teach_nothing() -> None:
    networks, batch = networks_of(), stored()
    targets, bounds = jnp.zeros(10), jnp.array([-1.0, 1.0])
    weight = jnp.asarray(np.arange(10) < 4, jnp.float32)
    some = critic_loss(
        networks.critics, batch.states, batch.actions, targets, bounds, weight
    )
    alone = critic_loss(
        networks.critics, batch.states[:4], batch.actions[:4], targets[:4], bounds
    )
    assert np.isclose(some, alone)


def test_an_update_goes_down_its_losses() -> None:
    """With tiny steps, repeated on one batch, critics and actor get better at it."""
    networks, world, batch = networks_of(), world_of(0.01), stored()
    batch = batch._replace(rewards=batch.rewards / 100)
    key = jax.random.key(3)
    config = replace(
        CONFIG, actor_critic=replace(CONFIG.actor_critic, learning_rate=1e-3, tau=1e-6)
    )
    memory = fresh_optimisers(networks, 1e-3)
    first = None
    after = networks
    for number in range(100):
        after, memory, report = update(
            after, memory, world, batch, jnp.asarray(number == 0), key, -1.0, config
        )
        first = report if first is None else first
    assert report[0] < first[0]
    pair = (batch.states, networks.bounds, ALPHA, key)
    before, _ = actor_loss(networks.policy, after.critics, *pair)
    later, _ = actor_loss(after.policy, after.critics, *pair)
    assert later < before
    assert np.array_equal(after.bounds, networks.bounds), "Q has no range"


@pytest.mark.parametrize(
    ("steps", "length"),
    [(0, 1), (20_000, 1), (60_000, 13), (100_000, 25), (400_000, 25)],
)
def test_branches_grow_with_real_steps(steps: int, length: int) -> None:
    branch = preset("mbpo", "paper", "Ant").branch
    assert branch.length(steps) == length


def test_elites_err_least_on_what_they_held_out() -> None:
    config = preset("mbpo", "smoke", "Point2D")
    learner: Any = make("mbpo", load(config.env), config)
    state = learner.init(0)
    noise = jnp.log(jnp.array([0.3, 0.1, 0.2]))[:, None] + jnp.zeros((3, 2))
    state = eqx.tree_at(lambda s: s.members.log_std, state, noise)
    elites = learner.elites(state, []).dynamics.members
    assert np.array_equal(elites.log_std, noise[jnp.array([1, 2])])


def test_it_stops_by_disagreement_with_a_learned_reward() -> None:
    config = preset("mbpo", "smoke", "Point2D")
    config = replace(
        config,
        model=replace(config.model, reward="learned"),
        branch=replace(config.branch, disagreement_stop=0.5),
    )
    learner = make("mbpo", load(config.env), config)
    state, episodes, shares = learner.init(0), EpisodeStore(), []
    for _ in range(3):
        state, metrics = learner.iterate(state, episodes, StageTimer())
        shares.append(metrics.get("dropped_steps"))
    assert 0.0 < shares[-1] < 1.0
    assert int(state.updates) == round(config.updates_per_step * int(state.real_steps))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"elites": 9}, "elites is 9"),
        ({"elites": 3, "model": HomoscedasticModelConfig()}, "branch.starts is 4"),
        ({"real_share": 1.5}, "real_share"),
        ({"updates_per_step": -1.0}, "updates_per_step"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        replace(CONFIG, **change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"first_steps": 0}, "first_steps"),
        ({"first_steps": 5}, "last_steps is 4"),
        ({"grows_until": 10}, "grows_until is 10"),
        ({"disagreement_stop": 2.0}, "disagreement_stop"),
    ],
)
def test_bad_branches_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        replace(CONFIG.branch, **change)


def test_the_gradient_of_the_least_value_is_that_of_its_critic() -> None:
    values = jnp.array([[1.0, 5.0], [3.0, 2.0]])
    np.testing.assert_array_equal(least(values), [1.0, 2.0])
    slope = jax.grad(lambda v: jnp.sum(least(v)))(values)
    np.testing.assert_array_equal(slope, [[1.0, 0.0], [0.0, 1.0]])
