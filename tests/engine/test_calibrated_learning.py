"""Evaluations that correct the uncertainty: nothing that is learned changes."""

import csv
import dataclasses

import equinox as eqx
import numpy as np
import pytest
from tiny import CONFIG, change, run, same

from pombu import POMBU
from pombu.algorithms.pombu.learner import Learner
from pombu.analysis.report.measure import calibrate
from pombu.cli import main
from pombu.envs import load
from pombu.errors import UsageError
from pombu.rng import Keys
from pombu.rollout.held_out import real_returns, real_steps
from pombu.training.algorithm import StageTimer
from pombu.uncertainty.n_step import fit, mean_z_squared

PLAIN = change(CONFIG, evaluation_episodes=6)
CALIBRATED = change(PLAIN, calibration__use=True)
ADDED = {"calibration_scale", "calibration_rho", "coverage_90", "spearman"}


FULL = change(PLAIN, returns__correlation="full")
CORRECTED = {
    "U": change(CALIBRATED, returns__recalibrate=True),
    "F": change(CALIBRATED, returns__recalibrate=True, returns__correlation="full"),
    "rho": change(CALIBRATED, returns__recalibrate=True, returns__correlation="fitted"),
}


def learner(config=CALIBRATED):
    return Learner(load(config.env), config)


def test_learning_is_the_same_bit_for_bit():
    plain, plain_rows = run(learner(PLAIN), 0, 2)
    state, rows = run(learner(), 0, 2)
    assert same(eqx.tree_at(lambda s: s.calibration, state, None), plain)
    for row, before in zip(rows, plain_rows, strict=True):
        assert set(row) - set(before) == ADDED
        assert {name: row[name] for name in before} == before
        assert row["calibration_scale"] > 0
        assert 0 <= row["calibration_rho"] <= 1
        assert 0 <= row["coverage_90"] <= 1


def test_the_state_says_what_the_last_evaluation_found():
    """The scale of the state is that of a fit to the episodes it was given."""
    one = learner()
    state, rows = run(one, 0, 1)
    assert int(state.calibration.episodes) == 6
    assert rows[-1]["calibration_scale"] == float(state.calibration.scale)
    _, real = one.evaluation(state, Keys(0, 0), StageTimer())
    steps = real_steps(
        state.value, one.dynamics(state), one.rules, real, one.task.horizon
    )
    assert fit(steps, one.rules.returns.gamma).scale == float(state.calibration.scale)


def test_too_few_episodes_leave_it_uncorrected():
    state, rows = run(learner(change(CALIBRATED, evaluation_episodes=4)), 0, 1)
    assert int(state.calibration.episodes) == 0
    assert not ADDED & set(rows[-1])


def test_a_single_member_cannot_be_calibrated():
    state, rows = run(learner(change(CALIBRATED, model__members=1)), 0, 1)
    assert int(state.calibration.episodes) == 0
    assert not ADDED & set(rows[-1])


@pytest.mark.parametrize("kind", CORRECTED)
def test_the_correction_enters_learning_from_the_second_iteration_on(kind):
    """It comes from the first evaluation; another uncertainty gives other weights."""
    config = CORRECTED[kind]
    state, rows = run(learner(config), 0, 2)
    raw = FULL if kind == "F" else PLAIN
    before, plain_rows = run(learner(raw), 0, 2)
    for name in ("return_real", "penalty"):
        assert rows[0][name] == pytest.approx(plain_rows[0][name], rel=1e-4)
    assert rows[1]["penalty"] != plain_rows[1]["penalty"]
    assert not same(state.policy, before.policy)
    assert rows[0]["uncertainty_scale"] != 1.0
    if kind == "rho":
        assert rows[0]["uncertainty_rho"] == pytest.approx(rows[0]["calibration_rho"])
    again, _ = run(learner(config), 0, 2)
    assert same(state, again)


def test_the_scale_is_of_the_uncertainty_that_is_used():
    """F has a scale of its own: the root of its mean z^2 over n-step returns."""
    one = learner(CORRECTED["F"])
    state, rows = run(one, 0, 1)
    _, real = one.evaluation(state, Keys(0, 0), StageTimer())
    horizon, gamma = one.task.horizon, one.rules.returns.gamma
    steps = real_steps(state.value, one.dynamics(state), one.rules, real, horizon)
    squares = mean_z_squared(steps, gamma, "full")
    scale = np.sqrt(np.mean(list(squares.values())))
    assert float(state.correction.scale) == pytest.approx(scale, rel=1e-6)
    assert rows[0]["uncertainty_scale"] == float(state.correction.scale)
    assert float(state.correction.scale) != float(state.calibration.scale)


def test_a_small_evaluation_leaves_the_earlier_correction():
    one = learner(CORRECTED["U"])
    state, _ = run(one, 0, 1)
    later, metrics = one.calibrate(state, [])
    assert same(later.correction, state.correction)
    assert int(later.calibration.episodes) == 0
    assert metrics["uncertainty_scale"] == float(state.correction.scale)


@pytest.mark.parametrize("kind", CORRECTED)
def test_what_is_to_be_corrected_needs_evaluations(kind):
    config = CORRECTED[kind]
    with pytest.raises(UsageError, match=r"calibration\.use"):
        change(config, calibration__use=False)
    with pytest.raises(UsageError, match=r"evaluation_episodes is 4"):
        change(config, evaluation_episodes=4)
    with pytest.raises(UsageError, match=r"model\.kind = simulator"):
        change(config, model__kind="simulator")


@pytest.fixture(scope="module")
def agent():
    return POMBU(config=CALIBRATED, seed=0).learn(total_timesteps=18)


@pytest.fixture(scope="module")
def folder(agent, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    agent.save(path)
    return path


STATES, ACTIONS = np.array([[0.5, -0.5], [1.0, 2.0]]), np.zeros((2, 2))


def test_the_correction_is_part_of_a_checkpoint(agent, folder):
    again = POMBU.load(folder)
    assert int(again.state.calibration.episodes) == 6
    assert same(again.state.calibration, agent.state.calibration)


def test_intervals_lie_around_q_and_grow_with_the_level(agent):
    q = agent.q_value(STATES, ACTIONS)
    low, high = agent.q_interval(STATES, ACTIONS)
    assert q.shape == low.shape == high.shape == (2,)
    assert np.all((low < q) & (q < high))
    wider = agent.q_interval(STATES, ACTIONS, level=0.99)
    assert np.all(wider[0] < low)
    assert np.all(wider[1] > high)
    one = agent.q_interval(STATES[0], ACTIONS[0])
    assert one[0].shape == (1,)
    for level in (0.0, 1.0, 90):
        with pytest.raises(UsageError, match="level is"):
            agent.q_interval(STATES, ACTIONS, level=level)


def test_intervals_need_a_held_out_episode(agent):
    with pytest.raises(UsageError, match="evaluation_episodes of 5"):
        POMBU(config=CALIBRATED).q_interval(STATES, ACTIONS)
    with pytest.raises(UsageError, match=r"calibration\.use"):
        POMBU(config=PLAIN).q_interval(STATES, ACTIONS)


def test_evaluate_writes_intervals_and_returns(folder, capsys):
    assert main(["evaluate", str(folder), "--episodes", "3", "--intervals"]) == 0
    assert "of 3 returns lie in their 90 % interval" in capsys.readouterr().out
    with (folder / "intervals.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["start", "q", "low", "high", "return"]
    assert len(rows) == 3
    assert all(float(r["low"]) < float(r["q"]) < float(r["high"]) for r in rows)


def test_a_report_shows_the_corrected_uncertainty(agent):
    """The scale of whole episodes stretches sigma, and nothing else."""
    calibration = agent.state.calibration
    assert calibration.whole > 0
    twice = eqx.tree_at(
        lambda s: s.calibration.whole, agent.state, 2 * calibration.whole
    )
    once, stretched = (calibrate(agent.learner, s) for s in (agent.state, twice))
    np.testing.assert_array_equal(once.error, stretched.error)
    np.testing.assert_allclose(stretched.uncertainty, 2 * once.uncertainty)


def test_whole_episodes_are_compared_from_their_start():
    """What an evaluation says of its returns can be had from its parts."""
    one = learner()
    state, _ = run(one, 0, 1)
    found = state.calibration
    assert int(found.horizon) == one.task.horizon
    assert float(found.whole) >= found.scale_for(one.task.horizon)
    _, real = one.evaluation(state, Keys(0, 0), StageTimer())
    clip, gamma = one.rules.returns.reward_clip, one.rules.returns.gamma
    for came, episode in zip(real_returns(real, one.rules), real, strict=True):
        rewards = episode.rewards if clip is None else episode.rewards.clip(-clip, clip)
        want = sum(gamma**t * r for t, r in enumerate(rewards))
        assert came == pytest.approx(want)
    # A policy whose episodes turn out as nothing imagined makes the intervals wider.
    wild = [
        dataclasses.replace(e, rewards=e.rewards + 10.0 * (-1) ** i)
        for i, e in enumerate(real)
    ]
    later, _ = one.calibrate(state, wild)
    assert later.calibration.whole > 2 * found.whole
