"""ME-TRPO's own parts: the baseline, one member per step, and the stop rule."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.algorithms.metrpo.config import METRPOConfig, StopRuleConfig
from pombu.algorithms.metrpo.learner import Learner, _StopRule, judge, member_return
from pombu.algorithms.registry import preset
from pombu.data import Normaliser
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import ModelConfig, ReturnConfig
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.model import Dynamics
from pombu.envs import Task, load
from pombu.errors import UsageError
from pombu.nn import (
    GaussianPolicy,
    LinearValue,
    fit_linear,
    init_linear,
    init_policy,
    predict_linear,
)
from pombu.rng import Keys
from pombu.rollout.imagine import ImaginationRules, Imagined, imagine

HORIZON, NUMBER = 6, 5
DRIFTS = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
"""Each member moves the point its own way, whatever the action."""


@pytest.fixture(scope="module")
def task() -> Task:
    return load("Point2D", horizon=HORIZON)


def drifting_world(task: Task) -> Dynamics:
    unit = Normaliser(jnp.zeros(2), jnp.ones(2))
    layers = Layers((jnp.zeros((3, 4, 2)),), (DRIFTS,))
    contract = task.contract
    return Dynamics(layers, unit, unit, unit, None, jnp.ones(()), contract=contract)


def rules_of(task: Task, draw: Any = "batch", **returns: Any) -> ImaginationRules:
    units = ReturnConfig(reward_clip=None, scale_rewards=False, **returns)
    return ImaginationRules(task.action_box, units, task.horizon, 1e5, draw)


def imagined_in(task: Task, draw: str) -> Imagined:
    policy = init_policy(jax.random.key(0), 2, 2, (4,))
    starts = jax.random.normal(jax.random.key(1), (NUMBER, 2))
    evenly = jnp.full(3, 1 / 3)
    key = jax.random.key(2)
    rules = rules_of(task, draw)
    return imagine(policy, None, drifting_world(task), rules, starts, evenly, key)


def members_used(imagined: Imagined) -> np.ndarray:
    """[H - 1, N] which member moved each trajectory at each step."""
    moves = np.diff(np.asarray(imagined.observations), axis=0)
    gaps = np.linalg.norm(moves[:, :, None] - np.asarray(DRIFTS), axis=-1)
    assert gaps.min(-1).max() < 1e-5
    return gaps.argmin(-1)


def test_the_batch_follows_one_member_per_step(task: Task) -> None:
    used = members_used(imagined_in(task, "batch"))
    assert (used == used[:, :1]).all()
    assert len(set(used[:, 0])) > 1, "and not the same at every step"


def test_trajectories_may_draw_for_themselves(task: Task) -> None:
    used = members_used(imagined_in(task, "trajectory"))
    assert (used != used[:, :1]).any()


def test_a_single_drawn_member_also_gives_the_reward(task: Task) -> None:
    imagined = imagined_in(task, "batch")
    after = np.asarray(imagined.observations)[1:]
    expected = -(after**2).sum(-1)
    np.testing.assert_allclose(imagined.raw_rewards[:-1], expected, rtol=1e-4)
    assert float(jnp.abs(imagined.local).max()) == 0.0
    assert float(jnp.abs(imagined.values).max()) == 0.0


def test_the_baseline_recovers_a_value_of_its_own_form() -> None:
    observations = jax.random.normal(jax.random.key(0), (40, 30, 3))
    true = LinearValue(jnp.array([1.0, -2.0, 0.5, 0.3, 0.1, -0.4, 2.0, 3.0, -1.0, 0.7]))
    weight = jnp.ones((40, 30)).at[:, 7].set(0.0)
    returns = predict_linear(true, observations)
    spoilt = returns.at[:, 7].set(1e4)
    fitted = fit_linear(observations, spoilt, weight)
    gap = predict_linear(fitted, observations) - returns
    assert float(jnp.abs(gap).max()) < 0.02


def test_advantages_come_from_the_baseline_before_its_fit(task: Task) -> None:
    imagined = imagined_in(task, "batch")
    config = ReturnConfig(lam=0.9, advantage_clip=None, standardise_advantages=False)
    baseline = LinearValue(jnp.arange(8.0) / 8)
    batch, goals, fitted, loss = judge(imagined, baseline, config)
    values = np.asarray(predict_linear(baseline, imagined.observations), np.float64)
    rewards = np.asarray(imagined.rewards, np.float64)
    advantage, expected = np.zeros(NUMBER), np.zeros_like(rewards)
    for h in range(HORIZON - 1, -1, -1):
        following = values[h + 1] if h + 1 < HORIZON else 0.0
        error = rewards[h] + 0.99 * following - values[h]
        advantage = error + 0.99 * 0.9 * advantage
        expected[h] = advantage
    np.testing.assert_allclose(goals.advantages, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(goals.returns, expected + values, rtol=1e-4, atol=1e-4)
    assert float(loss) == pytest.approx(np.mean(expected**2), rel=1e-4)
    refit = fit_linear(imagined.observations, goals.returns, imagined.weight)
    np.testing.assert_allclose(fitted.weights, refit.weights, rtol=1e-3, atol=1e-3)
    assert batch.advantages.shape == (HORIZON * NUMBER,)


def test_a_members_return_is_that_of_a_loop(task: Task) -> None:
    policy = init_policy(jax.random.key(0), 2, 2, (4,))
    first = jax.random.normal(jax.random.key(5), (7, 2))
    for member in range(3):
        found = member_return(
            policy, drifting_world(task), rules_of(task), first, member
        )
        state, total = np.asarray(first), 0.0
        for _ in range(HORIZON):
            state = state + np.asarray(DRIFTS[member])
            total += float(-(state**2).sum(-1).mean())
        assert float(found) == pytest.approx(total, rel=1e-4)


def numbered(policy: GaussianPolicy, number: float) -> GaussianPolicy:
    return GaussianPolicy(policy.mean, jnp.full_like(policy.log_std, number))


@pytest.mark.parametrize(
    ("script", "saved", "stopped_at", "updates"),
    [
        # Better for all at 2, worse for one of three (33 % > 30 %) at 4 and at 6.
        ([[0, 0, 0], [1, 1, 1], [2, 2, 0], [2, 2, 0]], 2.0, 6, 9),
        # Never better: the first policy comes back.
        ([[0, 0, 0], [-1, 0, 0], [-1, -1, 9]], -1.0, 4, 9),
        # Always better: no stop.
        ([[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]], 6.0, None, 9),
        # The last update is looked at although its turn has not come.
        ([[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]], 5.0, None, 5),
    ],
)
def test_the_stop_rule_keeps_the_last_policy_that_most_members_liked(
    task: Task,
    script: list[list[float]],
    saved: float,
    stopped_at: int | None,
    updates: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = StopRuleConfig(use=True, every=2, starts=4, tolerance=0.3, patience=4)
    config = replace(
        preset("metrpo", "smoke", "Point2D", HORIZON),
        updates=updates,
        stop_rule=rule,
        model=ModelConfig(members=3, hidden=(4,)),
    )
    learner = Learner(task, config)
    state = learner.init(0)
    answers = iter(script)
    monkeypatch.setattr(_StopRule, "_validate", lambda *_: np.array(next(answers)))
    policy = numbered(state.policy, -1.0)
    judge_ = _StopRule(learner, state, EpisodeStore(), Keys(0, 0), policy)
    stopped = None
    for update in range(1, min(updates, 6) + 1):
        if judge_.stops(numbered(policy, float(update)), update):
            stopped = update
            break
    assert stopped == stopped_at
    assert float(judge_.saved.log_std[0]) == saved


def test_the_stop_rule_has_no_say_in_the_simulator() -> None:
    with pytest.raises(UsageError, match="simulator"):
        METRPOConfig(
            stop_rule=StopRuleConfig(use=True), model=ModelConfig(kind="simulator")
        )


def test_untrained_baselines_expect_nothing() -> None:
    zeros = predict_linear(init_linear(3), jnp.ones((4, 2, 3)))
    np.testing.assert_array_equal(zeros, np.zeros((4, 2)))
