"""Learning from logged data alone, where what is right is known."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from pombu import DHMBPO, MBPO, MEPPO, POMBU, UsageError
from pombu.agent.agents import Agent
from pombu.agent.runs import algorithm_of, load_state
from pombu.cli import main
from pombu.cli.train import parse_train
from pombu.data import read_logged, write_logged
from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, load
from pombu.training.callbacks import Callback, Progress
from pombu.training.checkpoint import paths
from pombu.training.loop import learn
from pombu.training.metrics import deterministic
from pombu.training.run import EVALUATION, create, open_run

PIT = 0.6
"""Right of it a step costs 3; no logged step has been there."""
STEPS = 20


def reward(x: float) -> float:
    """The best places are -0.5 and 0.4; to the right of 0.4 it falls again."""
    return -3.0 if x > PIT else float(np.cos(7 * (x + 0.5)))


class Ledge(gymnasium.Env[Any, Any]):
    """A point on a line beside a pit; counts what is asked of it."""

    asked = 0

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.x = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        Ledge.asked += 1
        self.x = float(self.np_random.uniform(-0.9, 0.4))
        return np.array([self.x], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Ledge.asked += 1
        self.x = float(np.clip(self.x + 0.2 * float(action[0]), -3, 3))
        return np.array([self.x], np.float32), reward(self.x), False, False, {}


def ledge() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Ledge(), STEPS)


NAME = f"{__name__}:ledge"


def logged(number: int) -> list[Episode]:
    """Random actions, but none that leads out of [-1, 0.5]."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(number):
        states, actions = [rng.uniform(-0.9, 0.4)], []
        for _ in range(STEPS):
            low, high = (-1.0 - states[-1]) / 0.2, (0.5 - states[-1]) / 0.2
            actions.append(rng.uniform(max(low, -1.0), min(high, 1.0)))
            states.append(states[-1] + 0.2 * actions[-1])
        rewards = np.array([reward(x) for x in states[1:]], np.float32)
        columns = (np.array(rows, np.float32)[:, None] for rows in (states, actions))
        episodes.append(Episode(*columns, rewards, False))
    return episodes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "logged.npz"
    write_logged(path, logged(30))
    return path


SMALL: dict[str, Any] = {
    "updates": 10,
    "iterations": 15,
    "evaluation_episodes": 1,
    "exploration": {"policies": 0},
    "imagination": {
        "trajectories": 50,
        "steps": STEPS,
        "shards": 1,
        "disagreement_stop": None,
    },
    "model": {
        # Beyond the data these go on as straight lines, into the pit.
        "activation": "relu",
        "hidden": (32, 32),
        "learning_rate": 6e-3,
        "batch_size": 100,
        "max_steps": 1000,
        "max_epochs": 400,
    },
    **{
        name: {
            "hidden": (16, 16),
            "minibatch": 250,
            "epochs": 5,
            "learning_rate": 3e-3,
            "final_learning_rate": 1e-3,
        }
        for name in ("policy", "value", "tail")
    },
}


def ends_of(agent: Agent) -> np.ndarray:
    """Where real episodes of the policy end."""
    found = []
    env = ledge()
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        for _ in range(STEPS):
            action, _ = agent.predict(observation, deterministic=True)
            observation, *_ = env.step(action)
        found.append(float(observation[0]))
    return np.array(found)


def test_doubt_keeps_a_policy_out_of_a_hole_in_the_data(data: Path) -> None:
    """Members agree less and less beyond 0.5, but on average promise ever more.

    Their mean rises by about 1.3 per step to the right and their spread by 0.85, so
    that doubt wins from a weight of about 1.5 on.
    """
    bold = POMBU(ledge, data=data, alpha=0.0, **SMALL)
    wary = POMBU(ledge, data=data, alpha=2.0, **SMALL)
    for agent in (bold, wary):
        agent.learn_offline(7, evaluate=False)
        assert agent.real_steps == 0
    usual = float(np.mean([episode.rewards.sum() for episode in logged(30)]))
    assert (ends_of(bold) > PIT).all()
    assert (ends_of(wary) < PIT).all()
    assert bold.evaluate(5).mean < usual - 10
    assert wary.evaluate(5).mean > usual + 10
    careless, careful = bold.history[-1], wary.history[-1]
    assert careless["return_imagined"] > careful["return_imagined"] > usual
    assert careless["disagreement_ratio"] > 2 * careful["disagreement_ratio"]
    assert careless["penalty_share"] == 0 < careful["penalty_share"]


AGENTS: list[type[Agent]] = [POMBU, MEPPO, DHMBPO, MBPO]


@pytest.mark.parametrize("kind", AGENTS, ids=lambda kind: str(kind.algorithm))
def test_real_steps_go_on_where_the_data_end(kind: type[Agent], data: Path) -> None:
    """Nothing is counted as real, and what collects next has learned already."""
    before = Ledge.asked
    agent = kind(ledge, preset="smoke", data=data)
    agent.learn_offline(2, evaluate=False)
    assert Ledge.asked == before
    assert agent.real_steps == 0
    last = agent.history[-1]
    for name in ("return_imagined", "disagreement_ratio"):
        assert np.isfinite(last[name])
    assert "return_real" not in last
    stored = len(agent.episodes)
    agent.learn(40)
    assert agent.real_steps == 40
    assert len(agent.episodes) == stored + 2
    assert "return_real" in agent.history[-1]
    again = kind(ledge, preset="smoke", data=data).learn_offline(2, evaluate=False)
    assert [deterministic(row) for row in again.history] == [
        deterministic(row) for row in agent.history[:2]
    ]


def offline(data: Path, run: Path, *more: str) -> list[str]:
    flags = ["--preset", "smoke", "--iterations", "4", "--evaluate", "none"]
    where = ["--env", NAME, "--data", str(data), "--out", str(run)]
    return ["train", *where, *flags, "--offline", *more]


class StopAt(Callback):
    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_iteration(self, progress: Progress) -> bool | None:
        return progress.iteration < self.iteration


def rows(run: Path) -> list[dict[str, float]]:
    return [deterministic(row) for row in open_run(run).rows()]


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from data alone, by the command."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    before = Ledge.asked
    assert main(offline(data, run)) == 0
    assert Ledge.asked == before, "the environment was acted in"
    return run


def test_a_run_from_data_alone(whole: Path) -> None:
    found = rows(whole)
    assert [row["iteration"] for row in found] == [1, 2, 3, 4]
    assert {row["real_steps"] for row in found} == {0}
    assert not (whole / EVALUATION).exists()
    assert all({"penalty_share", "return_model"} <= row.keys() for row in found)


@pytest.mark.parametrize("stop", [0, 2])
def test_resumed_equals_uninterrupted(
    stop: int, whole: Path, data: Path, tmp_path: Path
) -> None:
    """Also where it was stopped before its first iteration was over."""
    run = create(tmp_path / "run", open_run(whole).spec)
    algorithm = algorithm_of(run, NAME)
    begin = algorithm.init(0), EpisodeStore(read_logged(data, algorithm.task))

    class StopAtOnce(Callback):
        def on_stage(self, name: str) -> None:
            raise KeyboardInterrupt

    halt: Sequence[Callback] = [StopAt(stop) if stop else StopAtOnce()]
    try:
        learn(algorithm, 0, 0, halt, run, begin)
    except KeyboardInterrupt:
        assert not stop
    assert next(path.name for path in paths(run.path)) == "000000"
    assert main(["resume", str(run.path), "--env", NAME]) == 0
    assert rows(run.path) == rows(whole)
    states = [load_state(open_run(one), algorithm) for one in (run.path, whole)]
    policies = [state.policy.mean.weights for state in states]
    assert all(map(np.array_equal, *policies))


def test_resume_takes_real_steps_and_may_measure(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(offline(data, run, "--iterations", "1")) == 0
    told = capsys.readouterr().out
    assert "note: alpha is 0.05" in told
    assert "1 of 1 iterations offline" in told
    assert "--total-steps" in told
    more = ["--total-steps", "40", "--evaluate", "usual", "--json"]
    assert main(["resume", str(run), "--env", NAME, *more]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["real_steps"] == 40
    assert summary["finished"]
    assert summary["evaluation"]["random"]["episodes"] == 20
    assert "return_real" in rows(run)[-1]


def test_diagnosis_by_logged_episodes_alone(
    whole: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Ledge.asked
    flags = ["--env", NAME, "--data", str(data), "--json"]
    assert main(["diagnose", str(whole), *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["limit"]
    assert Ledge.asked == before
    assert (whole / "diagnosis" / "returns.png").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--offline"], "name them by --data"),
        (["--offline", "--data", "DATA", "--algo", "slbo"], "pombu, meppo"),
        (["--total-steps", "0"], "--offline"),
    ],
)
def test_what_offline_needs(
    flags: list[str],
    said: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(data) if flag == "DATA" else flag for flag in flags]
    out = ["--out", str(tmp_path / "run"), "--preset", "smoke"]
    assert main(["train", "--env", NAME, *out, *given]) == 2
    assert said in capsys.readouterr().err


def test_a_config_file_asks_for_the_same(whole: Path, data: Path) -> None:
    """All but the data, which it does not name."""
    again = parse_train(
        ["--config", str(whole / "config.json"), "--env", NAME, "--data", str(data)]
    )
    assert again.offline
    assert again.evaluate == "none"
    task = load(again.environment)
    asked = dataclasses.asdict(again.spec(task, again.config))
    kept = dataclasses.asdict(open_run(whole).spec)
    assert json.dumps(asked) == json.dumps(kept)


def test_an_agent_without_data_cannot_learn_offline() -> None:
    with pytest.raises(UsageError, match="no data"):
        POMBU(ledge, preset="smoke").learn_offline(1)
