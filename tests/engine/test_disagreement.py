"""Where members disagree too much: against a loop, and in models known by hand."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import CONFIG, Mimic, change, hand_made_task, same

from pombu.algorithms.pombu.learner import Learner
from pombu.algorithms.slbo.config import SLBOConfig
from pombu.data import Normaliser
from pombu.data.episodes import EpisodeStore
from pombu.dynamics import error as module
from pombu.dynamics.config import ImaginationConfig, ModelConfig, ReturnConfig
from pombu.dynamics.ensemble import Layers, init_ensemble, materialise
from pombu.dynamics.error import disagreement, limited, on_real_data
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, load
from pombu.errors import UsageError
from pombu.nn import init_policy, init_value, predict_value
from pombu.parallel import jit
from pombu.rollout.imagine import ImaginationRules, Imagined, imagine, rules_of
from pombu.rollout.returns import discounted_sum
from pombu.training.algorithm import StageTimer
from pombu.training.checkpoint import state_from_bytes, state_to_bytes

RETURNS = ReturnConfig(gamma=0.9, reward_clip=None, bootstrap=True)
HORIZON, NUMBER = 6, 8
POLICY = init_policy(jax.random.key(0), 2, 1, (5,), log_std=-0.5)
VALUE = init_value(jax.random.key(1), 2, (5,))
STARTS = jax.random.normal(jax.random.key(3), (NUMBER, 2))

_imagine = jit(imagine)


def first(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 0]


def beyond_four(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 0] > 3.5


ENDLESS, ENDING = Mimic(first), Mimic(first, beyond_four)


BOX = hand_made_task(None, HORIZON).action_box
RULES = ImaginationRules(BOX, RETURNS, HORIZON, 1e4)


def bounded(dynamics: Dynamics, most: float) -> Dynamics:
    return replace(dynamics, most_disagreement=jnp.float32(most))


def imagined_in(
    dynamics: Dynamics, contract: Any, starts: Any, weights: Any, limits: Any = None
) -> Imagined:
    key = jax.random.key(4)
    shared = (RULES, jnp.asarray(starts), jnp.asarray(weights), key, limits)
    dynamics = replace(dynamics, contract=contract)
    imagined: Imagined = _imagine(POLICY, VALUE, dynamics, *shared)
    return imagined


def growing_world() -> Dynamics:
    """Members move right by 1 - x / 10, 1 and 1 + x / 10: they disagree with x."""
    weight = jnp.zeros((3, 3, 2)).at[:, 0, 0].set(jnp.array([-0.1, 0.0, 0.1]))
    biases = jnp.array([[1.0, 0.0]] * 3)
    units = [Normaliser(jnp.zeros(d), jnp.ones(d)) for d in (2, 1, 2)]
    layers = Layers((weight,), (biases,))
    return Dynamics(layers, *units, None, jnp.float32(1.0), contract=ENDLESS)


PER_STEP = 0.1 * np.sqrt(2 / 3) / np.sqrt(2)
"""The disagreement at x = 1: one of two dimensions, of spread .1 sqrt(2 / 3)."""


def drawn(
    starts: list[float], most: float, contract: Any = ENDLESS, **more: Any
) -> Any:
    """Trajectories whose every step is the middle member's, from these x."""
    points = np.zeros((NUMBER, 2), np.float32)
    points[: len(starts), 0] = starts
    weights = [0.0, 1.0, 0.0]
    return imagined_in(
        bounded(growing_world(), most), contract, points, weights, **more
    )


def test_disagreement_in_closed_form() -> None:
    """Members at 0, 3 and 6 with a unit of 2, and at one place with any unit."""
    dynamics = replace(
        growing_world(), delta=Normaliser(jnp.zeros(2), jnp.array([2.0, 5.0]))
    )
    following = jnp.array([[[0.0, 1.0]], [[3.0, 1.0]], [[6.0, 1.0]]])
    expected = np.sqrt(6.0) / 2.0 / np.sqrt(2.0)
    np.testing.assert_allclose(disagreement(dynamics, following), [expected], rtol=1e-6)


def test_the_step_that_exceeds_it_is_the_last_with_the_value_beyond() -> None:
    """From 0 the steps at 0, 1 and 2 are within the bound, and the one at 3 is not."""
    imagined = drawn([0.0, 5.0], 2.5 * PER_STEP)
    assert imagined.weight[:, 0].tolist() == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert imagined.weight[:, 1].tolist() == [1.0] + [0.0] * 5
    assert imagined.continues[:, 0].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert int(imagined.stopped) == NUMBER
    assert int(imagined.masked) == 0
    value = float(predict_value(VALUE, jnp.array([4.0, 0.0])))
    np.testing.assert_allclose(
        imagined.rewards[:4, 0], [1.0, 2.0, 3.0, 4.0 + 0.9 * value], rtol=1e-5
    )
    returns = discounted_sum(imagined.rewards, imagined.continues, 0.9)
    by_hand = 1.0 + 0.9 * 2.0 + 0.81 * 3.0 + 0.729 * (4.0 + 0.9 * value)
    assert float(returns[0, 0]) == pytest.approx(by_hand, rel=1e-5)


def test_an_end_is_no_stop_and_time_limits_still_hold() -> None:
    """Ending beyond 3.5, the step at 3 is over before members can be asked; a limit of
    two steps is earlier than any disagreement."""
    ending = drawn([0.0] * NUMBER, 2.5 * PER_STEP, ENDING)
    assert int(ending.stopped) == 0
    np.testing.assert_allclose(ending.rewards[3], 4.0, rtol=1e-5)
    limits = jnp.array([2, 9] * (NUMBER // 2))
    limited_too = drawn([0.0] * NUMBER, 2.5 * PER_STEP, limits=limits)
    assert limited_too.weight.sum(0).tolist() == [2.0, 4.0] * (NUMBER // 2)
    assert int(limited_too.stopped) == NUMBER // 2


def test_a_bound_that_is_never_reached_changes_nothing() -> None:
    dynamics = growing_world()
    free = imagined_in(dynamics, ENDLESS, STARTS, [0.2, 0.3, 0.5])
    wide = imagined_in(bounded(dynamics, 1e6), ENDLESS, STARTS, [0.2, 0.3, 0.5])
    assert free.stopped is None
    assert int(wide.stopped) == 0
    for name in ("weight", "continues", "rewards", "local", "beyond"):
        np.testing.assert_allclose(
            getattr(free, name), getattr(wide, name), rtol=1e-6, atol=1e-6
        )


def random_world() -> Dynamics:
    ensemble = init_ensemble(jax.random.key(5), 3, 3, 2, (6, 6))
    draw = np.random.default_rng(2)

    def scale(dim: int) -> Normaliser:
        mean, std = draw.normal(size=dim) / 4, 0.5 + draw.random(dim)
        return Normaliser(jnp.float32(mean), jnp.float32(std))

    units = (scale(2), scale(1), scale(2))
    members = materialise(ensemble)
    return Dynamics(members, *units, None, jnp.float32(1.7), contract=ENDLESS)


def spreads_of(dynamics: Dynamics, states: Any, actions: Any) -> list[float]:
    """The disagreement about every step, by loops."""
    rows = jnp.asarray(states), jnp.asarray(actions)
    following = np.asarray(dynamics.step(*rows).states, np.float64)
    spreads = []
    for n in range(len(states)):
        total = 0.0
        for dim in range(2):
            members = [following[k, n, dim] for k in range(3)]
            mean = sum(members) / 3
            variance = sum((one - mean) ** 2 for one in members) / 3
            total += variance / float(dynamics.delta.std[dim]) ** 2
        spreads.append(float(np.sqrt(total / 2)))
    return spreads


def test_equals_a_plain_loop() -> None:
    """Trajectories that nothing stops, cut by hand after the first step too far."""
    dynamics, weights = random_world(), [0.5, 0.3, 0.2]
    free = imagined_in(dynamics, ENDLESS, STARTS, weights)
    states = np.asarray(dynamics.observation.restore(free.observations))
    actions = np.asarray(BOX.to_box(free.actions))
    flat = spreads_of(dynamics, states.reshape(-1, 2), actions.reshape(-1, 1))
    spreads = np.reshape(flat, (HORIZON, NUMBER))
    most = float(np.quantile(spreads, 0.8)) + 1e-5
    found = imagined_in(bounded(dynamics, most), ENDLESS, STARTS, weights)
    stops = 0
    for n in range(NUMBER):
        far = [h for h in range(HORIZON) if spreads[h, n] > most]
        length = far[0] + 1 if far else HORIZON
        stops += bool(far)
        expected = np.where(np.arange(HORIZON) < length, free.rewards[:, n], 0.0)
        if far and length < HORIZON:
            expected[length - 1] += 0.9 * float(free.values[length, n])
        elif far:
            expected[length - 1] += 0.9 * float(free.beyond[0, n])
        assert int(found.weight[:, n].sum()) == length
        assert int(found.continues[:, n].sum()) == length - bool(far)
        np.testing.assert_allclose(found.rewards[:, n], expected, atol=1e-5)
    assert 0 < stops < NUMBER
    assert int(found.stopped) == stops


def episodes() -> list[Episode]:
    draw = np.random.default_rng(3)
    return [
        Episode(
            draw.normal(size=(length + 1, 2)).astype(np.float32),
            draw.uniform(-2, 1, (length, 1)).astype(np.float32),
            np.zeros(length, np.float32),
            False,
        )
        for length in (7, 5, 8)
    ]


def test_the_bound_is_a_quantile_over_real_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls of 6 rows for 20, so that the last is padded; then 5 rows of 20."""
    monkeypatch.setattr(module, "_ROWS_PER_CALL", 6)
    dynamics, known = random_world(), episodes()
    states = np.concatenate([episode.observations[:-1] for episode in known])
    actions = np.concatenate([episode.actions for episode in known])
    spreads = spreads_of(dynamics, states, actions)
    np.testing.assert_allclose(on_real_data(dynamics, known), spreads, rtol=1e-4)
    for stop in (1.0, 0.5):
        most = limited(dynamics, stop, known).most_disagreement
        assert float(most) == pytest.approx(np.quantile(spreads, stop), rel=1e-4)
    assert limited(dynamics, None, known).most_disagreement is None
    monkeypatch.setattr(module, "MOST_ROWS", 5)
    some = [spreads[row] for row in (0, 5, 10, 14, 19)]
    np.testing.assert_allclose(on_real_data(dynamics, known), some, rtol=1e-4)


STOPPING = change(CONFIG, returns__bootstrap=True, imagination__disagreement_stop=0.5)


def test_a_resumed_run_stops_where_an_uninterrupted_one_does() -> None:
    learner = Learner(load(STOPPING.env), STOPPING)
    state, store = learner.init(0), EpisodeStore()
    state, metrics = learner.iterate(state, store, StageTimer())
    assert 0.0 < metrics["stopped_by_disagreement"] <= 1.0
    assert np.isfinite(list(metrics.values())).all()
    again = Learner(load(STOPPING.env), STOPPING)
    resumed = state_from_bytes(state_to_bytes(state), again.init(0))
    copy = EpisodeStore(list(store))
    state, metrics = learner.iterate(state, store, StageTimer())
    resumed, same_metrics = again.iterate(resumed, copy, StageTimer())
    assert same(state, resumed)
    assert metrics == same_metrics


def test_without_a_value_beyond_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"disagreement_stop.*returns\.bootstrap"):
        change(CONFIG, imagination__disagreement_stop=1.0)
    for share in (0.0, 1.1):
        with pytest.raises(UsageError, match=r"must be a number in \(0, 1\]"):
            change(STOPPING, imagination__disagreement_stop=share)


def test_without_members_to_compare_it_is_refused() -> None:
    task = hand_made_task(ENDLESS, HORIZON)
    stopping = ImaginationConfig(disagreement_stop=1.0)
    with pytest.raises(UsageError, match="simulator has none"):
        rules_of(task, RETURNS, stopping, ModelConfig(kind="simulator"))
    with pytest.raises(UsageError, match="network is a single one"):
        rules_of(task, RETURNS, stopping, SLBOConfig().model)
    with pytest.raises(UsageError, match="batch computes only one"):
        rules_of(task, RETURNS, stopping, ModelConfig(), "batch")
    assert rules_of(task, RETURNS, stopping, ModelConfig()).disagreement_stop == 1.0
    staying = ImaginationConfig(draw="rollout")
    with pytest.raises(UsageError, match=r"imagination\.draw"):
        rules_of(task, RETURNS, staying, ModelConfig(), "batch")
    assert rules_of(task, RETURNS, staying, ModelConfig()).keep_member
