"""PETS: the Gaussian ensemble, the planners, and what sequences are worth."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.algorithms.pets.config import PETSConfig, PlannerConfig
from pombu.algorithms.pets.learner import Learner
from pombu.algorithms.pets.planning import (
    Controller,
    PlanRules,
    appraise,
    cross_entropy,
    move_on,
    random_shooting,
)
from pombu.algorithms.registry import preset
from pombu.data import Normaliser, returns_within
from pombu.dynamics.config import GaussianModelConfig
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.gaussian import (
    GaussianEnsemble,
    fit_gaussian,
    gaussian_adam,
    gaussian_loss,
    init_gaussian,
    predict_gaussian,
)
from pombu.dynamics.model import Dynamics
from pombu.envs import Task, load
from pombu.errors import UsageError
from pombu.nn import MLP
from pombu.parallel import Workers

DRIFTS = np.array([[0.3, 0.0], [0.0, 0.5], [-0.1, -0.2]], np.float32)
"""Each member moves the point its own way, beside the action."""
HORIZON, POPULATION = 5, 4


@pytest.fixture(scope="module")
def task() -> Task:
    return load("Point2D", horizon=6)


def drifting_world(task: Task, log_variance: float = -60.0) -> Dynamics:
    """s' = s + a + drift, with as good as no noise."""
    weights = np.zeros((3, 4, 4), np.float32)
    weights[:, 2:, :2] = np.eye(2)
    biases = np.concatenate([DRIFTS, np.zeros((3, 2))], 1)
    bound = jnp.full((3, 2), log_variance)
    ensemble = GaussianEnsemble(
        Layers((jnp.asarray(weights),), (jnp.asarray(biases, jnp.float32),)),
        bound + 0.001,
        bound,
    )
    return in_plain_units(task, ensemble)


def in_plain_units(task: Task, ensemble: GaussianEnsemble) -> Dynamics:
    unit, contract = Normaliser(jnp.zeros(2), jnp.ones(2)), task.contract
    return Dynamics(ensemble, unit, unit, unit, None, jnp.ones(()), contract=contract)


def rules_of(task: Task, propagation: Any, gamma: float = 0.9) -> PlanRules:
    particles = 1 if propagation == "mean" else 6
    return PlanRules(task.action_box, gamma, 1e5, propagation, particles)


def candidates() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (POPULATION, HORIZON, 2)).astype(np.float32)


def earned(start: np.ndarray, actions: np.ndarray, drifts: np.ndarray) -> float:
    """Discounted -|s'|^2 along a sequence under the drift of each step."""
    state, total = start.astype(np.float64), 0.0
    for t, (action, drift) in enumerate(zip(0.1 * actions, drifts, strict=True)):
        state = state + action + drift
        total -= 0.9**t * float(state @ state)
    return total


START = np.array([1.0, -0.5], np.float32)


def test_the_mean_is_followed(task: Task) -> None:
    rules = rules_of(task, "mean")
    key = jax.random.key(0)
    found = appraise(
        drifting_world(task), rules, jnp.asarray(START), jnp.asarray(candidates()), key
    )
    drifts = np.tile(DRIFTS.mean(0), (HORIZON, 1))
    expected = [earned(START, one, drifts) for one in candidates()]
    np.testing.assert_allclose(found.returns, expected, rtol=1e-4)
    assert found.uncertainty is None


def test_ends_may_be_given_as_integers(task: Task) -> None:
    """No reward is lost where nothing ends, whatever the type that says so."""

    contract: Any = task.contract

    class Integers:
        def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
            return contract.reward(obs, action, next_obs)

        def terminal(self, obs: Any, action: Any, next_obs: Any) -> Any:
            return jnp.zeros(next_obs.shape[:-1], jnp.int32)

        def initial(self, key: Any, n: int) -> Any:
            return contract.initial(key, n)

    rules, plain = rules_of(task, "mean"), drifting_world(task)
    given = (jnp.asarray(START), jnp.asarray(candidates()), jax.random.key(0))
    integers = replace(plain, contract=Integers())
    np.testing.assert_array_equal(
        appraise(integers, rules, *given).returns,
        appraise(plain, rules, *given).returns,
    )


def test_particles_keep_their_member_all_along(task: Task) -> None:
    rules = rules_of(task, "tsinf")
    key = jax.random.key(0)
    found = appraise(
        drifting_world(task), rules, jnp.asarray(START), jnp.asarray(candidates()), key
    )
    expected = [
        np.mean([earned(START, one, np.tile(d, (HORIZON, 1))) for d in DRIFTS])
        for one in candidates()
    ]
    np.testing.assert_allclose(found.returns, expected, rtol=1e-4)


def test_particles_may_change_their_member_at_every_step(task: Task) -> None:
    """Averaged over draws: positions have the mean drift and a growing variance."""
    rules = rules_of(task, "ts1", gamma=1.0)
    dynamics, sequence = drifting_world(task), jnp.zeros((1, HORIZON, 2))
    keys = jax.random.split(jax.random.key(1), 1000)
    draws = jax.jit(
        jax.vmap(
            lambda k: appraise(
                dynamics, rules, jnp.asarray(START), sequence, k
            ).returns[0]
        )
    )(keys)
    mean, variance = DRIFTS.mean(0), DRIFTS.var(0).sum()
    steps = np.arange(1, HORIZON + 1)
    places = START + steps[:, None] * mean
    expected = -(places**2).sum() - variance * steps.sum()
    np.testing.assert_allclose(np.mean(draws), expected, rtol=0.02)


def test_noise_has_the_members_variance(task: Task) -> None:
    """E|s'|^2 grows by the variance of both coordinates."""
    rules = rules_of(task, "tsinf", gamma=1.0)
    dynamics, sequence = drifting_world(task, np.log(0.25)), jnp.zeros((1, 1, 2))
    keys = jax.random.split(jax.random.key(1), 2000)
    draws = jax.jit(
        jax.vmap(
            lambda k: appraise(
                dynamics, rules, jnp.asarray(START), sequence, k
            ).returns[0]
        )
    )(keys)
    still = np.mean([earned(START, np.zeros((1, 2)), d[None]) for d in DRIFTS])
    _, log_std = dynamics.members.outputs(jnp.zeros((3, 1, 4)), "float32")
    noise = 2 * float(jnp.exp(2 * log_std[0, 0, 0]))
    np.testing.assert_allclose(np.mean(draws), still - noise, rtol=0.05)


@pytest.mark.parametrize("propagation", ["mean", "tsinf"])
def test_uncertainty_is_algorithm_1_along_the_mean(
    task: Task, propagation: str
) -> None:
    slope, unit, gamma = np.array([2.0, -1.0]), 3.0, 0.9
    value = MLP((jnp.asarray(slope[:, None], jnp.float32),), (jnp.zeros(1),))
    rules = rules_of(task, propagation)
    key = jax.random.key(0)
    found = appraise(
        replace(drifting_world(task), return_std=jnp.asarray(unit)),
        rules,
        jnp.asarray(START),
        jnp.asarray(candidates()),
        key,
        value,
    )
    for row, sequence in enumerate(candidates()):
        state, variance = START.astype(np.float64), 0.0
        for t, action in enumerate(0.1 * sequence):
            following = state + action + DRIFTS
            q = -(following**2).sum(-1) + gamma * unit * following @ slope
            variance += gamma ** (2 * t) * q.var()
            state = following.mean(0)
        assert found.uncertainty is not None
        np.testing.assert_allclose(found.uncertainty[row], np.sqrt(variance), rtol=1e-4)


def test_kappa_prefers_what_members_agree_on(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two actions earn the same on average, but the members differ about one."""
    weights = np.zeros((2, 4, 4), np.float32)
    weights[0, 2, 0], weights[1, 2, 0] = 10.0, -10.0
    bound = jnp.full((2, 2), -60.0)
    layers = Layers((jnp.asarray(weights),), (jnp.zeros((2, 4)),))
    ensemble = GaussianEnsemble(layers, bound + 0.001, bound)
    config = replace(
        preset("pets", "smoke", "Point2D"),
        planner=PlannerConfig(horizon=1, population=64, elites=6, propagation="mean"),
        model=GaussianModelConfig(members=2, hidden=()),
    )

    def first_action(kappa: float) -> float:
        learner = Learner(task, replace(config, kappa=kappa))
        state = learner.init(0)
        dynamics = in_plain_units(task, ensemble)
        monkeypatch.setattr(learner, "dynamics", lambda state: dynamics)
        act = learner.policy(state)
        return float(act(START[None], True, jax.random.key(0))[0, 0])

    assert abs(first_action(10.0)) < 0.05
    assert abs(first_action(0.0)) > 0.1


def quadratic(goal: np.ndarray) -> Any:
    return lambda sequences, key: -((sequences - goal) ** 2).sum((1, 2))


def test_cross_entropy_finds_the_best_sequence() -> None:
    goal = np.linspace(-0.8, 0.7, 6).reshape(3, 2).astype(np.float32)
    config = PlannerConfig(horizon=3, population=200, elites=20, iterations=12)
    planned = cross_entropy(
        quadratic(goal), jnp.zeros((3, 2)), jax.random.key(0), config
    )
    np.testing.assert_allclose(planned.sequence, goal, atol=0.05)
    assert int(planned.iterations) < 12, "stops once all agree"
    assert float(jnp.abs(planned.sequence).max()) <= 1.0


def test_random_shooting_keeps_a_plan_that_nothing_beats() -> None:
    goal = np.full((3, 2), 0.25, np.float32)
    config = PlannerConfig(kind="random", horizon=3, population=50)
    key = jax.random.key(0)
    kept = random_shooting(quadratic(goal), jnp.asarray(goal), key, config)
    np.testing.assert_array_equal(kept.sequence, goal)
    found = random_shooting(quadratic(goal), jnp.ones((3, 2)), key, config)
    assert float(jnp.abs(found.sequence - goal).max()) < 1.0


@pytest.mark.parametrize("search", [cross_entropy, random_shooting])
def test_a_sequence_without_a_score_never_wins(search: Any) -> None:
    def score(sequences: Any, key: Any) -> Any:
        total = sequences.sum((1, 2))
        return jnp.where(total > 0, jnp.nan, total)

    config = PlannerConfig(horizon=2, population=40, elites=4, iterations=3)
    planned = search(score, jnp.full((2, 1), -0.1), jax.random.key(0), config)
    assert float(planned.sequence.sum()) < 0
    assert float(planned.broken) > 0


def test_a_plan_moves_on_and_begins_anew() -> None:
    plan = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(move_on(plan), [[2, 3], [4, 5], [0, 0]])
    seen: list[np.ndarray] = []

    def search(observation: Any, start: Any, key: Any) -> Any:
        seen.append(np.asarray(start))
        empty = jnp.zeros((3, 2))
        config = PlannerConfig(horizon=3, population=4, elites=2, iterations=1)
        found = cross_entropy(lambda s, k: s.sum((1, 2)), empty, key, config)
        return found._replace(sequence=plan)

    config = PlannerConfig(horizon=3)
    controller = Controller(search, 2, config, Workers(1))
    key, states = jax.random.key(0), np.zeros((1, 2), np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(controller(states, True, key), [[0, 1]])
    controller.begin()(states, True, key)
    np.testing.assert_array_equal(seen[0], np.zeros((3, 2)))
    np.testing.assert_array_equal(seen[1], move_on(plan))
    np.testing.assert_array_equal(seen[2], np.zeros((3, 2)))


def test_log_variances_stay_within_their_bounds() -> None:
    ensemble = init_gaussian(jax.random.key(0), 2, 3, 2, (8,))
    _, log_variance = predict_gaussian(ensemble, 1e4 * jnp.ones((2, 5, 3)))
    assert float(log_variance.max()) <= 0.5 + 1e-4
    assert float(log_variance.min()) >= -10.0 - 1e-4


def test_the_loss_is_that_of_a_loop() -> None:
    config = GaussianModelConfig(hidden=(6, 5), weight_decay=(0.1, 0.2, 0.3))
    ensemble = init_gaussian(jax.random.key(1), 1, 3, 2, config.hidden)
    member = ensemble.unstack()[0]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
    found, _ = gaussian_loss(member, jnp.asarray(x), jnp.asarray(y), config)
    total = 0.0
    for row, goal in zip(x, y, strict=True):
        h = row
        layers = zip(member.layers.weights, member.layers.biases, strict=True)
        for number, (weight, bias) in enumerate(layers):
            h = h @ np.asarray(weight, np.float64) + np.asarray(bias)
            h = h / (1 + np.exp(-h)) if number < 2 else h
        mean, free = h[:2], h[2:]
        log_variance = 0.5 - np.log1p(np.exp(0.5 - free))
        log_variance = -10 + np.log1p(np.exp(log_variance + 10))
        gap = (mean - goal) ** 2
        total += float(np.sum(gap / np.exp(log_variance) + log_variance))
    decay = sum(
        c / 2 * float(np.sum(np.asarray(w, np.float64) ** 2))
        for c, w in zip((0.1, 0.2, 0.3), member.layers.weights, strict=True)
    )
    expected = total / 8 + 0.01 * 2 * 10.5 + decay
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_the_ensemble_learns_mean_and_noise() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 2)).astype(np.float32)
    noise = np.where(x[:, :1] > 0, 0.5, 0.05) * rng.normal(size=(400, 1))
    y = (x.sum(1, keepdims=True) + noise).astype(np.float32)
    config = GaussianModelConfig(
        members=2, hidden=(16,), learning_rate=1e-2, batch_size=64, epochs=40
    )
    ensemble = init_gaussian(jax.random.key(0), 2, 2, 1, config.hidden)

    memory = gaussian_adam(ensemble)
    fitted, _, losses = fit_gaussian(
        ensemble, memory, x, y, config, 400, (1, 2), Workers(2)
    )
    probes = jnp.array([[0.6, 0.1], [-0.6, 0.1]])
    mean, log_variance = predict_gaussian(fitted, jnp.stack([probes] * 2))
    np.testing.assert_allclose(mean.mean(0)[:, 0], [0.7, -0.5], atol=0.25)
    std = jnp.exp(0.5 * log_variance.mean(0))[:, 0]
    assert 0.3 < float(std[0]) < 0.8
    assert float(std[1]) < 0.2
    assert losses.shape == (2,)


def test_steps_of_a_fit_fall_as_configured() -> None:
    """Two steps towards 0 are one of the full size and one of half of it."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 1))
    config = GaussianModelConfig(members=2, hidden=(8,), batch_size=50, epochs=2)
    ensemble = init_gaussian(jax.random.key(0), 2, 2, 1, config.hidden)
    memory = gaussian_adam(ensemble)

    def fit(start, memory, **changes):
        changed = replace(config, **changes)
        return fit_gaussian(start, memory, x, y, changed, 64, (1, 2), Workers(1))[:2]

    falling, _ = fit(ensemble, memory, learning_rate=0.1, final_learning_rate=0.0)
    first, memory = fit(ensemble, memory, learning_rate=0.1, epochs=1)
    second, _ = fit(first, memory, learning_rate=0.05, epochs=1)
    for one, other in zip(*map(jax.tree.leaves, (falling, second)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_returns_look_as_far_ahead_as_the_plan() -> None:
    rewards = np.array([1.0, 2.0, 3.0, 4.0])
    found = returns_within(3, rewards, 0.5)
    expected = [1 + 1 + 0.75, 2 + 1.5 + 1, 3 + 2, 4]
    np.testing.assert_allclose(found, expected)


def test_a_task_without_a_reward_is_refused() -> None:
    config = preset("pets", "smoke", "Pendulum-v1")
    known = replace(config, model=replace(config.model, reward="known"))
    with pytest.raises(UsageError, match=r"no known reward function.*model\.reward"):
        Learner(load(config.env), known).init(0)


def test_particles_are_shared_out_evenly() -> None:
    with pytest.raises(UsageError, match=r"model\.max_steps is 0"):
        GaussianModelConfig(max_steps=0)
    with pytest.raises(UsageError, match=r"planner\.particles is 7"):
        PETSConfig(planner=PlannerConfig(particles=7))
    with pytest.raises(UsageError, match="kappa"):
        PETSConfig(kappa=-1.0)
