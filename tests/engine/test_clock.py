"""V and U_psi that know how many steps are left: known answers, saving, the agent."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_tail import OFFSETS, RETURNS, probe_rules, probe_world
from tiny import CONFIG, change, run, same, uniform

from pombu import POMBU
from pombu.algorithms.pombu.learner import Learner
from pombu.data.episodes import EpisodeStore
from pombu.envs import load
from pombu.errors import UsageError
from pombu.nn import (
    TimedValue,
    clock,
    init_policy,
    init_timed_value,
    init_value,
    init_variance,
    predict_value,
    predict_variance,
)
from pombu.optim.config import TailConfig, ValueConfig
from pombu.optim.ppo import improve_value, improve_variance, prepare, value_adam
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.held_out import real_steps
from pombu.rollout.imagine import Imagined, imagine
from pombu.training.algorithm import StageTimer
from pombu.training.checkpoint import state_from_bytes, state_to_bytes

HORIZON, BRANCH = 6, 3
LEFT = np.arange(HORIZON + 1)
GAMMA = RETURNS.gamma
KNOWN_V = OFFSETS.mean() * (1 - GAMMA**LEFT) / (1 - GAMMA)
"""Rewards are the members' offsets, whatever the state is."""
KNOWN_U = OFFSETS.var() * (1 - GAMMA ** (2 * LEFT)) / (1 - GAMMA**2)

_imagine = jit(imagine)


def imagine_probe(value: Any, tail: Any, seed: int, limits: Any) -> Imagined:
    starts = 3.0 * jax.random.normal(jax.random.key(seed), (64, 2))
    imagined: Imagined = _imagine(
        init_policy(jax.random.key(0), 2, 1, (4,)),
        value,
        probe_world(),
        probe_rules(BRANCH),
        starts,
        uniform(3),
        jax.random.key(seed),
        limits,
        tail,
    )
    return imagined


def test_v_and_u_of_a_finite_horizon_are_learned_from_branches() -> None:
    """Branches of three steps that begin anywhere in episodes of six."""
    config = ValueConfig(clock=True, hidden=(16,), epochs=5, minibatch=64)
    tail_config = TailConfig(use=True, hidden=(16,), epochs=5, minibatch=64)
    value = init_timed_value(jax.random.key(1), 2, config.hidden, HORIZON)
    tail = init_variance(jax.random.key(2), 2, tail_config.hidden, HORIZON)
    optimisers = value_adam(config).init(value), value_adam(config).init(tail.network)
    for i in range(120):
        limits = jax.random.randint(jax.random.key(i), (64,), 1, HORIZON + 1)
        batch, goals = prepare(imagine_probe(value, tail, i, limits), RETURNS)
        rate = 1e-2 if i < 80 else 1e-3
        value, first, _ = improve_value(
            value, optimisers[0], batch, (0, i), rate, config
        )
        tail, second = improve_variance(
            tail,
            optimisers[1],
            batch,
            goals.variances,
            (1, i),
            rate,
            tail_config,
        )
        optimisers = first, second
    states = jnp.zeros((len(LEFT), 2))
    left = jnp.asarray(LEFT)
    np.testing.assert_allclose(
        predict_value(value, states, left), KNOWN_V, rtol=0.05, atol=0.02
    )
    np.testing.assert_allclose(
        predict_variance(tail, states, left), KNOWN_U, rtol=0.08, atol=0.02
    )


def test_every_step_sees_what_its_episode_has_left() -> None:
    value = init_timed_value(jax.random.key(1), 2, (8,), HORIZON)
    limits = jnp.arange(64) % HORIZON + 1
    found = imagine_probe(value, None, 0, limits)
    step = np.arange(BRANCH)[:, None]
    counted = np.asarray(found.weight) > 0
    np.testing.assert_array_equal(counted, step < np.asarray(limits))
    left = np.asarray(limits) - step
    np.testing.assert_array_equal(np.asarray(found.left)[counted], left[counted])
    # The values are those of the network with the clock as one more input.
    time = jnp.asarray((1 - 2 * left / HORIZON) * 3**0.5, jnp.float32)
    inputs = jnp.concatenate([found.observations, time[..., None]], -1)
    want = np.asarray(value.network(inputs)[..., 0])
    np.testing.assert_allclose(
        np.asarray(found.values)[counted], want[counted], rtol=1e-5
    )
    # Past the time limit nothing is to come, past a branch's end V goes on.
    ended = np.asarray(limits) <= BRANCH
    assert not np.asarray(found.beyond)[0, ended].any()
    assert np.asarray(found.beyond)[0, ~ended].all()
    last = np.asarray(limits)[ended] - 1
    rows = np.flatnonzero(ended)
    np.testing.assert_allclose(
        np.asarray(found.rewards)[last, rows], OFFSETS.mean(), rtol=1e-5
    )


def test_without_limits_every_episode_is_whole() -> None:
    value = init_timed_value(jax.random.key(1), 2, (8,), HORIZON)
    found = imagine_probe(value, None, 0, None)
    due = np.broadcast_to(HORIZON - np.arange(BRANCH)[:, None], (BRANCH, 64))
    np.testing.assert_array_equal(found.left, due)


def test_the_clock_has_unit_size() -> None:
    ticks = np.asarray(clock(jnp.arange(1, 1001), 1000))
    assert abs(ticks.mean()) < 2e-3
    assert ticks.std() == pytest.approx(1.0, rel=1e-3)


def test_a_plain_v_does_not_look_at_the_clock() -> None:
    value, states = init_value(jax.random.key(0), 2, (8,)), jnp.ones((3, 2))
    np.testing.assert_array_equal(
        predict_value(value, states, 0), predict_value(value, states)
    )
    with pytest.raises(UsageError, match="how many steps are left"):
        predict_value(init_timed_value(jax.random.key(0), 2, (8,), 5), states)


TIMED = change(
    CONFIG,
    evaluation_episodes=5,
    value__clock=True,
    returns__bootstrap=True,
    imagination__steps=4,
    imagination__real_starts=0.5,
    tail=TailConfig(use=True, hidden=(5,), minibatch=8),
    calibration__use=True,
)


def test_a_resumed_run_equals_an_uninterrupted_one() -> None:
    learner = Learner(load(TIMED.env), TIMED)
    episodes = EpisodeStore()
    state, _ = learner.iterate(learner.init(0), episodes, StageTimer())
    assert isinstance(state.value, TimedValue)
    again = Learner(load(TIMED.env), TIMED)
    resumed = state_from_bytes(state_to_bytes(state), again.init(0))
    copy = EpisodeStore()
    copy.append(list(episodes))
    state, metrics = learner.iterate(state, episodes, StageTimer())
    resumed, same_metrics = again.iterate(resumed, copy, StageTimer())
    assert same(state, resumed)
    assert metrics == same_metrics


def test_real_steps_are_compared_with_the_steps_that_were_left() -> None:
    """At the last real step nothing is to come, to any member."""
    learner = Learner(load(TIMED.env), TIMED)
    state, _ = run(learner, 0, 1)
    _, real = learner.evaluation(state, Keys(0, 0), StageTimer())
    dynamics = learner.dynamics(state)
    found = real_steps(state.value, dynamics, learner.rules, real, 6)
    unit = float(dynamics.return_std)
    earned = np.stack([episode.rewards for episode in real]) / unit
    np.testing.assert_allclose(found.real_q[:, -1], earned[:, -1], rtol=1e-4)
    one = real[0]
    row = (jnp.asarray(x[2:3]) for x in (one.observations, one.actions))
    predicted = dynamics.step(*row)
    later = predict_value(
        state.value, dynamics.observation.normalise(predicted.states), 3
    )
    want = predicted.rewards / unit + learner.rules.returns.gamma * later
    np.testing.assert_allclose(found.member_q[:, 0, 2], want[:, 0], rtol=1e-4)


def test_an_agent_tells_v_by_the_steps_that_are_left(tmp_path: Any) -> None:
    agent = POMBU(config=TIMED, seed=0).learn(total_timesteps=18)
    states, actions = np.array([[0.5, -0.5], [1.0, 2.0]]), np.zeros((2, 2))
    whole = agent.value(states)
    np.testing.assert_array_equal(agent.value(states, steps_left=6), whole)
    assert np.all(agent.value(states, steps_left=2) != whole)
    assert not agent.value(states, steps_left=0).any()
    with pytest.raises(UsageError, match="steps_left"):
        agent.value(states, steps_left=7)
    low, high = agent.q_interval(states, actions)
    assert np.all(low < high)
    agent.save(tmp_path / "run")
    loaded = POMBU.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.value(states), whole)
    np.testing.assert_array_equal(
        loaded.q_uncertainty(states, actions), agent.q_uncertainty(states, actions)
    )


def test_it_learns_in_the_simulator_too() -> None:
    config = change(
        TIMED,
        imagination__steps=None,
        imagination__real_starts=0.0,
        model__kind="simulator",
        calibration__use=False,
    )
    state, rows = run(Learner(load(config.env), config), 0, 1)
    assert np.isfinite(rows[0]["value_loss"])
    before = Learner(load(config.env), config).init(0)
    assert not same(state.value, before.value)
