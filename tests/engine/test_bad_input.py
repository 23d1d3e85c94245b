"""What cannot work is refused in one sentence, and real data is never lost."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tiny import CONFIG, change

from pombu.algorithms.pombu.config import POMBUConfig
from pombu.algorithms.pombu.learner import Learner
from pombu.algorithms.registry import ALGORITHMS, options, preset
from pombu.data.episodes import EpisodeStore
from pombu.envs import CollectionError, EnvConfig, load
from pombu.errors import RunError, UsageError
from pombu.training.algorithm import StageTimer
from pombu.training.loop import learn
from pombu.training.run import RunSpec, create

sys.path.insert(0, str(Path(__file__).parent))


class Walk(gymnasium.Env[Any, Any]):
    """A point on a line for six steps, which may break in the fourth."""

    fault = ""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-100.0, 100.0, (2,), np.float64)
        self.action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2)
        self.steps = 0
        return self.state, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.state = self.state + action
        if self.steps == 4 and self.fault == "raise":
            raise OSError("the cable came loose")
        observation = self.state * (np.nan if self.fault == "nan" else 1.0)
        reward = -float((self.state**2).sum())
        return observation, reward, False, self.steps == 6, {}


class Raises(Walk):
    fault = "raise"


class Nan(Walk):
    fault = "nan"


class Discrete(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3)


class Worded(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = spaces.Text(5)


class Unbounded(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def learner_for(name: str) -> Learner:
    env = EnvConfig(id=f"test_bad_input:{name}", horizon=6)
    config = change(CONFIG, env=env, model__reward="learned")
    return Learner(load(env), config)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Discrete", "action space Discrete"),
        ("Worded", "observation space Text"),
        ("Unbounded", "infinite bounds"),
    ],
)
def test_spaces_that_are_not_finite_boxes(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        learner_for(name)


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("model.members", 0, "[1, 1000"),
        ("alpha", -0.5, "[0, "),
        ("alpha", float("nan"), "[0, "),
        ("returns.gamma", 0.0, "(0, 1]"),
        ("model.validation_fraction", 1.0, "(0, 1)"),
        ("imagination.trajectories", 5, "shards = 2"),
        ("model.max_steps", 0, "1e9], or None"),
    ],
)
def test_an_error_names_field_value_and_what_is_accepted(
    field: str, value: float, accepted: str
) -> None:
    with pytest.raises(UsageError) as caught:
        change(CONFIG, **{field.replace(".", "__"): value})
    for part in (field, str(value), accepted):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if "baseline.kind" in options(name)]
)
def test_a_baseline_without_a_value_past_the_horizon(algorithm: str) -> None:
    config = preset(algorithm, "smoke", "Point2D")
    with pytest.raises(UsageError, match=r"returns\.bootstrap .* baseline\.kind"):
        replace(config, baseline=replace(config.baseline, kind="linear"))


def test_the_simulator_plays_whole_episodes() -> None:
    config = change(CONFIG, model__kind="simulator", imagination__steps=3)
    with pytest.raises(UsageError, match=r"imagination.steps cuts .* short"):
        Learner(load(CONFIG.env), config)


@pytest.mark.parametrize("part", ["policy", "value"])
def test_a_minibatch_larger_than_the_batch(part: str) -> None:
    """Four trajectories of six steps are 24 samples."""
    Learner(load(CONFIG.env), change(CONFIG, **{f"{part}__minibatch": 24}))
    with pytest.raises(UsageError, match=r"minibatch of 25 is larger than .* 24 sam"):
        Learner(load(CONFIG.env), change(CONFIG, **{f"{part}__minibatch": 25}))


def test_a_task_without_a_reward_function() -> None:
    learner = Learner(load("test_bad_input:Walk", horizon=6), CONFIG)
    with pytest.raises(UsageError, match="no known reward function"):
        learner.init(0)


@pytest.mark.parametrize(
    ("name", "message"),
    [("Raises", "the cable came loose"), ("Nan", "observation")],
)
def test_a_broken_environment_keeps_what_was_collected(name: str, message: str) -> None:
    learner = learner_for(name)
    with pytest.raises(CollectionError, match=message) as caught:
        learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    assert isinstance(caught.value, RunError)
    kept = sum(len(episode) for episode in caught.value.episodes)
    assert kept > 0 or name == "Nan"
    for episode in caught.value.episodes:
        assert np.isfinite(episode.observations).all()


def test_a_run_writes_the_episodes_of_a_broken_environment(tmp_path: Path) -> None:
    learner = learner_for("Raises")
    run = create(tmp_path / "run", RunSpec("pombu", "none", 0, 1000, {}))
    with pytest.raises(RunError, match="cable came loose"):
        learn(learner, 0, 1000, (), run)
    assert list((tmp_path / "run").rglob("kept-*.safetensors"))


def test_defaults_are_accepted() -> None:
    POMBUConfig()
