"""Evaluations that correct the uncertainty: nothing that is learned changes."""

from pathlib import Path

import equinox as eqx
from tiny import CONFIG, change, run, same

from pombu import POMBU
from pombu.algorithms.pombu.learner import Learner
from pombu.envs import load
from pombu.rng import Keys
from pombu.rollout.held_out import real_steps
from pombu.uncertainty.n_step import fit

PLAIN = change(CONFIG, evaluation_episodes=6)
CALIBRATED = change(PLAIN, calibration__use=True)
ADDED = {"calibration_scale", "calibration_rho", "coverage_90", "spearman"}


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
    _, real = one.evaluation(state, Keys(0, 0))
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


def test_the_correction_is_part_of_a_checkpoint(tmp_path: Path):
    agent = POMBU(config=CALIBRATED, seed=0).learn(total_timesteps=18)
    agent.save(tmp_path / "run")
    again = POMBU.load(tmp_path / "run")
    assert int(again.state.calibration.episodes) == 6
    assert same(again.state.calibration, agent.state.calibration)
