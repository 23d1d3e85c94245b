"""An algorithm in a folder of its own, known by one entry of the registry."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pombu.agent.agents import agent_class
from pombu.algorithms.registry import ALGORITHMS, Entry
from pombu.cli import main

FILES = {
    "__init__.py": "",
    "config.py": """
from dataclasses import dataclass, field

from pombu.envs import EnvConfig


@dataclass(frozen=True)
class ToyConfig:
    env: EnvConfig = field(default_factory=EnvConfig)
    trajectories: int = 2
    iterations: int = 2
    evaluation_episodes: int = 2
    push: float = 0.5
""",
    "presets.py": """
from toy_algorithm.config import ToyConfig


def smoke(task, horizon):
    return ToyConfig()


paper = fast = smoke
""",
    "learner.py": """
import equinox as eqx
import numpy as np

from pombu.algorithms.base import (
    Progress,
    TaskLearner,
    after_iteration,
    init_counters,
    keys_of,
)
from pombu.envs import collect
from pombu.rollout.real import evaluate


class State(Progress):
    action: np.ndarray


class Learner(TaskLearner):
    algorithm = "toy"

    def init(self, seed):
        return State(**init_counters(seed), action=np.zeros(self.task.action_dim))

    def policy(self, state):
        return lambda observations, *_: np.tile(state.action, (len(observations), 1))

    def iterate(self, state, episodes, stage):
        keys, config = keys_of(state), self.config
        with stage("collect"):
            act = self.policy(state)
            seeds = keys.episodes("collect", config.trajectories)
            collected = collect(self.task, lambda seen, _: act(seen), seeds)
            episodes.append(collected)
        state = eqx.tree_at(
            lambda s: (s.action, s.real_steps),
            state,
            (state.action + config.push, state.real_steps + sum(map(len, collected))),
        )
        with stage("evaluate"):
            metrics, _ = evaluate(
                self.task, self.policy(state), config.evaluation_episodes, keys
            )
        return after_iteration(state), metrics
""",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder on the path, and the entry in the registry."""
    folder = tmp_path / "toy_algorithm"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = Entry("Toy", "A toy.", "a toy", "toy_algorithm", "ToyConfig")
    monkeypatch.setitem(ALGORITHMS, "toy", entry)
    yield
    for name in [name for name in sys.modules if name.startswith("toy_algorithm")]:
        del sys.modules[name]


@pytest.mark.usefixtures("toy")
def test_a_new_algorithm_trains_and_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["--algo", "toy", "--env", "Point2D", "--preset", "smoke"]
    assert main(["train", *options, "--push", "0.25", "--json", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["iteration"] == 2
    agent = agent_class("toy").load(out)
    assert agent.config.push == 0.25
    assert agent.state.action.tolist() == [0.5, 0.5]


@pytest.mark.usefixtures("toy")
def test_it_is_in_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--algo", "tpy", "--env", "Point2D"]) == 2
    assert "did you mean toy?" in capsys.readouterr().err
