"""The experiment with misled models: what models learn, and which files it writes."""

import json
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest

from pombu.algorithms.pets import learner as pets
from pombu.algorithms.registry import preset
from pombu.envs import load
from pombu.envs.environment import ACTION_BOUND
from pombu.paper.misled_point2d import (
    CENTRE,
    as_transitions,
    believed,
    inside,
    misled_planner,
    optimal_values,
    sample_steps,
    starts_behind,
)
from pombu.paper.reproduce import find


def test_the_misleading_region_is_where_it_should_be_and_nowhere_else() -> None:
    states = np.array([CENTRE, CENTRE, [-1.0, -1.0]], np.float32)
    out, back = np.full(2, ACTION_BOUND), np.full(2, -ACTION_BOUND)
    actions = np.array([out, back, out], np.float32)
    truth = states + actions
    np.testing.assert_allclose(believed(states, actions, 0.0), truth, rtol=1e-6)
    misled = believed(states, actions, 1.0)
    np.testing.assert_allclose(misled[1:], truth[1:], rtol=1e-6)
    assert np.linalg.norm(misled[0]) < np.linalg.norm(truth[0]) - 1.0


def test_values_of_the_optimal_policy_are_known() -> None:
    """From (0.2, 0) it is at 0.1 after one step and at 0 from then on."""
    found = optimal_values(np.array([[0.2, 0.0], [0.0, 0.0]]), 0.9, 50)
    np.testing.assert_allclose(found, [-0.01, 0.0], atol=1e-12)


def test_samples_are_real_steps_where_nothing_is_thrown() -> None:
    drawn = sample_steps(300, 0.0, np.random.default_rng(0))
    assert 0.2 < inside(drawn.states).mean() < 0.4
    steps = as_transitions([drawn])
    assert float(abs(steps.actions).max()) <= 1.0
    moved = np.asarray(steps.states) + ACTION_BOUND * np.asarray(steps.actions)
    np.testing.assert_allclose(steps.following, moved, atol=1e-5)


def test_episodes_start_behind_the_region() -> None:
    task = load("Point2D")
    env = task.make()
    for seed in starts_behind(task, 3):
        first = env.reset(seed=seed)[0]
        assert inside(np.linspace(0, 1, 50)[:, None] * first).any()
    env.close()


def test_the_planner_has_a_value_function_whatever_kappa_it_is_given() -> None:
    task, config = load("Point2D"), preset("pets", "smoke", "Point2D")
    assert config.kappa == 0.0
    untrained = pets.Learner(task, config).init(0)
    state = misled_planner(config, task, 60, 0)
    assert not eqx.tree_equal(untrained.value, state.value)


@pytest.mark.slow
def test_everything_is_written(tmp_path: Path) -> None:
    reproduce = find("uncertainty-inside").reproduce
    assert reproduce is not None
    numbers = reproduce("smoke", tmp_path)
    assert set(numbers["point_return_by_kappa"]) == {0.0, 1.0}
    assert json.loads((tmp_path / "summary.json").read_text())
    for name in ("point-pets.csv", "point-steve.csv"):
        assert (tmp_path / name).read_text().count("\n") > 2
    assert (tmp_path / "uncertainty-inside.png").exists()
