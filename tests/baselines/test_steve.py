"""STEVE's targets against plain loops, and the training on them."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.algorithms.registry import preset
from pombu.algorithms.steve.config import (
    ActorCriticConfig,
    ExpansionModelConfig,
    STEVEConfig,
)
from pombu.algorithms.steve.expansion import (
    ActorCritic,
    ExpansionModel,
    Frozen,
    actor_critic_loss,
    bellman_variances,
    expanded_targets,
    init_actor_critic,
    init_model,
    mix,
    model_loss,
    target_samples,
)
from pombu.algorithms.steve.learner import Learner
from pombu.data import Transitions, most_recent, transitions
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.ensemble import Layers
from pombu.envs import Episode, load
from pombu.errors import UsageError
from pombu.training.algorithm import StageTimer

M, L, B, H, GAMMA = 2, 3, 6, 3, 0.9
CONFIG = STEVEConfig(
    gamma=GAMMA,
    batch_size=B,
    model=ExpansionModelConfig(members=M, hidden=(5,), reward_hidden=(4,)),
    actor_critic=ActorCriticConfig(
        members=L, actor_hidden=(4,), critic_hidden=(5,), saturation_weight=0.1
    ),
)


@pytest.fixture(scope="module")
def model() -> ExpansionModel:
    return init_model(jax.random.key(0), 2, 1, CONFIG.model)


@pytest.fixture(scope="module")
def networks() -> ActorCritic:
    return init_actor_critic(jax.random.key(1), 2, 1, CONFIG.actor_critic)


@pytest.fixture(scope="module")
def real() -> Transitions:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(B, d)) for d in (2, 1, 2)]
    rows = [*arrays, rng.normal(size=B), np.ones(B), np.arange(B) == 4]
    return Transitions(*(jnp.asarray(x, jnp.float32) for x in rows))


def network(layers: Layers, member: int | None, x: np.ndarray) -> np.ndarray:
    """One network by NumPy in float64."""
    weights = [np.asarray(w, np.float64) for w in layers.weights]
    biases = [np.asarray(b, np.float64) for b in layers.biases]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if member is not None:
            weight, bias = weight[member], bias[member]
        x = x @ weight + bias
        x = np.maximum(x, 0) if number < len(weights) - 1 else x
    return x


class ByHand:
    """STEVE's networks, one state at a time."""

    def __init__(self, model: ExpansionModel, networks: ActorCritic) -> None:
        self.model, self.networks = model, networks

    def action(self, s: np.ndarray) -> np.ndarray:
        return np.tanh(network(self.networks.actor, None, s))

    def q(self, critic: int, s: np.ndarray) -> float:
        pair = np.concatenate([s, self.action(s)])
        return float(network(self.networks.critics, critic, pair)[0])

    def step(self, m: int, s: np.ndarray) -> np.ndarray:
        pair = np.concatenate([s, self.action(s)])
        return s + network(self.model.transition, m, pair)

    def reward(self, n: int, s: np.ndarray, following: np.ndarray) -> float:
        triple = np.concatenate([following, s, self.action(s)])
        return float(network(self.model.reward, n, triple)[0])

    def goes_on(self, s: np.ndarray, following: np.ndarray) -> float:
        triple = np.concatenate([following, s, self.action(s)])
        odds = [network(self.model.ended, n, triple)[0] for n in range(M)]
        return float(1 - np.mean(1 / (1 + np.exp(-np.array(odds)))))


def samples_by_a_loop(by_hand: ByHand, real: Transitions) -> np.ndarray:
    found = np.zeros((H + 1, M, M, L, B))
    for b in range(B):
        for m in range(M):
            for n in range(M):
                for critic in range(L):
                    s = np.asarray(real.following[b], np.float64)
                    total, alive = float(real.rewards[b]), 1 - float(real.ended[b])
                    for i in range(H + 1):
                        tail = GAMMA ** (i + 1) * alive * by_hand.q(critic, s)
                        found[i, m, n, critic, b] = total + tail
                        following = by_hand.step(m, s)
                        reward = by_hand.reward(n, s, following)
                        total += GAMMA ** (i + 1) * alive * reward
                        alive *= by_hand.goes_on(s, following)
                        s = following
    return found


def variances_by_a_loop(by_hand: ByHand, real: Transitions) -> np.ndarray:
    """Var[T_i] = sum_{1<=k<=i} gamma^2k d_k + gamma^2(i+1) Var_ens Q(s_(i+1), pi)."""
    found = np.zeros((H + 1, B))
    for b in range(B):
        s, alive = np.asarray(real.following[b], np.float64), 1 - float(real.ended[b])
        local = []
        for i in range(H + 1):
            spread = np.var([by_hand.q(critic, s) for critic in range(L)])
            tail = (GAMMA ** (i + 1) * alive) ** 2 * spread
            found[i, b] = sum(local) + tail
            following = [by_hand.step(m, s) for m in range(M)]
            ahead = [
                by_hand.goes_on(s, f) * np.mean([by_hand.q(c, f) for c in range(L)])
                for f in following
            ]
            member_q = [
                by_hand.reward(n, s, following[m]) + GAMMA * ahead[m]
                for n in range(M)
                for m in range(M)
            ]
            local.append((GAMMA ** (i + 1) * alive) ** 2 * np.var(member_q))
            alive *= np.mean([by_hand.goes_on(s, f) for f in following])
            s = np.mean(following, 0)
    return found


def test_target_samples_are_those_of_a_loop(
    model: ExpansionModel, networks: ActorCritic, real: Transitions
) -> None:
    found = target_samples(model, networks, real, GAMMA, H)
    expected = samples_by_a_loop(ByHand(model, networks), real)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(found[0], (0, 1)).max() < 1e-6, "nothing is modelled at horizon 0"


def test_bellman_variances_are_those_of_a_loop(
    model: ExpansionModel, networks: ActorCritic, real: Transitions
) -> None:
    found = bellman_variances(model, networks, real, GAMMA, H)
    expected = variances_by_a_loop(ByHand(model, networks), real)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("weighting", ["samples", "bellman"])
def test_targets_are_weighted_by_inverse_variance(
    model: ExpansionModel, networks: ActorCritic, real: Transitions, weighting: Any
) -> None:
    config = replace(CONFIG, weighting=weighting)
    frozen = Frozen(networks.critics, model)
    targets, weights = expanded_targets(frozen, networks.actor, real, config)
    by_hand = ByHand(model, networks)
    samples = samples_by_a_loop(by_hand, real)
    means, variances = samples.mean((1, 2, 3)), samples.var((1, 2, 3))
    if weighting == "bellman":
        variances = variances_by_a_loop(by_hand, real)
    inverse = 1 / (variances + 1e-8)
    expected = (inverse * means).sum(0) / inverse.sum(0)
    alive = np.arange(B) != 4
    np.testing.assert_allclose(targets[alive], expected[alive], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weights.sum(0), np.ones(B), rtol=1e-5)
    assert float(targets[4]) == pytest.approx(float(real.rewards[4]), rel=1e-5)


def test_certain_horizons_take_all_the_weight() -> None:
    means = jnp.array([[1.0], [2.0], [3.0]])
    target, weights = mix(means, jnp.array([[1.0], [0.0], [1.0]]))
    assert float(target[0]) == pytest.approx(2.0, rel=1e-6)
    assert float(weights[1, 0]) == pytest.approx(1.0, rel=1e-6)


def test_model_loss_is_that_of_a_loop(model: ExpansionModel, real: Transitions) -> None:
    total = 0.0
    for b in range(B):
        member = b // (B // M)
        s, a, f = (
            np.asarray(x[b], np.float64)
            for x in (real.states, real.actions, real.following)
        )
        pair, triple = np.concatenate([s, a]), np.concatenate([f, s, a])
        change = network(model.transition, member, pair) - (f - s)
        surprise = network(model.reward, member, triple)[0] - float(real.rewards[b])
        odds = network(model.ended, member, triple)[0]
        sign = 1.0 if float(real.ended[b]) else -1.0
        total += 0.5 * float(change @ change) + 0.5 * surprise**2
        total += float(np.log1p(np.exp(-sign * odds)))
    size = sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(model))
    expected = total / B + 0.5 * 1e-4 * size
    assert float(model_loss(model, real, CONFIG)) == pytest.approx(expected, rel=1e-4)


def test_actor_and_critics_do_not_pull_at_one_another(
    networks: ActorCritic, real: Transitions
) -> None:
    targets = jnp.arange(float(B))

    def critic_alone(critics: Layers) -> Any:
        both = ActorCritic(networks.actor, critics)
        return actor_critic_loss(both, real, targets, CONFIG)[1]["value_loss"]

    def actor_alone(actor: Layers) -> Any:
        both = ActorCritic(actor, networks.critics)
        return actor_critic_loss(both, real, targets, CONFIG)[1]["actor_loss"]

    gradient, losses = jax.grad(actor_critic_loss, has_aux=True)(
        networks, real, targets, CONFIG
    )
    separate = ActorCritic(
        jax.grad(actor_alone)(networks.actor), jax.grad(critic_alone)(networks.critics)
    )
    for one, two in zip(*map(jax.tree.leaves, (gradient, separate)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
    gaps = [
        network(networks.critics, b // (B // L), np.r_[real.states[b], real.actions[b]])
        - b
        for b in range(B)
    ]
    expected = 0.5 * float(np.mean(np.square(gaps)))
    assert float(losses["value_loss"]) == pytest.approx(expected, rel=1e-4)


def episode(length: int, terminated: bool) -> Episode:
    zeros = np.zeros((length + 1, 2), np.float32)
    return Episode(zeros, zeros[:-1], np.ones(length, np.float32), terminated)


def test_only_a_real_end_is_one() -> None:
    data = transitions([episode(3, True), episode(2, False)], 6)
    np.testing.assert_array_equal(data.ended, [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(data.goes_on, [1, 1, 0, 1, 0, 0])


def test_old_episodes_make_room() -> None:
    episodes = [episode(n, False) for n in (4, 3, 2)]
    for steps, kept in ((9, 3), (8, 2), (5, 2), (4, 1), (1, 1)):
        assert len(most_recent(episodes, steps)) == kept
    assert len(most_recent(episodes, 5)[0]) == 3


def test_updates_follow_real_steps_and_targets_follow_updates() -> None:
    config = replace(
        preset("steve", "smoke", "Point2D", 10),
        learning_starts=20,
        updates_per_step=0.35,
        target_period=5,
        expansion=1,
    )
    learner = Learner(load(config.env), config)
    state, episodes = learner.init(0), EpisodeStore()
    first = jax.tree.leaves(state.frozen.critics)[0]
    state, _ = learner.iterate(state, episodes, StageTimer())
    assert int(state.updates) == 7
    assert int(state.imagined_steps) == 7 * 16 * 1 * 2
    assert not np.array_equal(first, jax.tree.leaves(state.frozen.critics)[0])
    assert not np.array_equal(
        jax.tree.leaves(state.networks.critics)[0],
        jax.tree.leaves(state.frozen.critics)[0],
    ), "frozen at the fifth update, not at the seventh"


def test_models_are_not_ahead_before_there_is_an_update() -> None:
    config = replace(
        preset("steve", "smoke", "Point2D", 10), learning_starts=0, updates_per_step=0.0
    )
    learner = Learner(load(config.env), config)
    first = learner.init(0)
    state, _ = learner.iterate(first, EpisodeStore(), StageTimer())
    assert eqx.tree_equal(first.model, state.model)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"batch_size": 30}, r"batch_size is 30, no multiple of model\.members"),
        ({"gamma": 0.0}, "gamma"),
        ({"explore_chance": 1.5}, "explore_chance"),
        ({"target_period": 0}, "target_period"),
    ],
)
def test_impossible_settings_are_refused_by_name(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        STEVEConfig(**fields)
