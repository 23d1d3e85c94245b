"""The baselines as agents, with the interface of all others."""

from pathlib import Path

import numpy as np
import pytest

import pombu
from pombu.algorithms.registry import ALGORITHMS, options
from pombu.cli import main
from pombu.errors import UsageError

AGENTS = {entry.agent: name for name, entry in ALGORITHMS.items()}


OF_EACH_KIND = ("SAC", "PPO", "PETS")
"""Saved by Stable-Baselines3's arrays, and a planner; test_agent.py has a network."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow)
        for name in AGENTS
    ],
)
def test_learn_predict_save_load(name: str, tmp_path: Path) -> None:
    kind = getattr(pombu, name)
    agent = kind("Point2D", preset="smoke", seed=2).learn(total_timesteps=60)
    states = np.array([[1.0, -1.0], [0.3, 0.2]])
    actions, _ = agent.predict(states, deterministic=True)
    assert actions.shape == (2, 2)
    assert abs(actions).max() <= 0.1 + 1e-6
    agent.save(tmp_path / "agent")
    again = kind.load(tmp_path / "agent")
    np.testing.assert_array_equal(again.predict(states, deterministic=True)[0], actions)


@pytest.mark.parametrize(
    "name", [agent for agent, name in AGENTS.items() if "alpha" not in options(name)]
)
def test_an_unknown_option_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"has no option 'alpha'.*; it has .*iter"):
        getattr(pombu, name)("Point2D", preset="smoke", alpha=0.5)


@pytest.mark.parametrize(
    "algo",
    [
        name
        for name in ALGORITHMS
        if "returns.gamma" in options(name)
        and "returns.variance_clip" not in options(name)
    ],
)
@pytest.mark.parametrize("option", ["variance-clip", "uncertainty-units"])
def test_units_of_an_uncertainty_that_is_not_used(
    algo: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--algo", algo, f"--returns.{option}", "None"]) == 2
    said = capsys.readouterr().err
    assert f"{algo} has no option --returns.{option}; it has " in said
    assert "--returns.gamma" in said
