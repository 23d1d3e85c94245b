"""Policies to take away: exported files, videos, pictures and results pages."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium import spaces
from safetensors.numpy import save_file

import pombu
from pombu.agent.agents import PETS, POMBU, Agent
from pombu.agent.export import export_policy
from pombu.agent.numpy_policy import flatten, load_policy
from pombu.algorithms import registry
from pombu.cli import main
from pombu.data import learn_from
from pombu.envs import EnvConfig, collect
from pombu.errors import RunError, UsageError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "point"
    flags = "train --env Point2D --preset smoke --total-steps 120 --out"
    assert main([*flags.split(), str(folder)]) == 0
    return folder


def test_an_exported_policy_acts_like_the_agent(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    assert main(["export", str(run), str(file)]) == 0
    act = load_policy(str(file))
    observations = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    actions, _ = POMBU.load(run).predict(observations, deterministic=True)
    np.testing.assert_allclose(act(observations), actions, atol=1e-6)
    np.testing.assert_allclose(act(observations[0]), actions[0], atol=1e-6)
    pictures = observations.reshape(50, 1, 2, 1)  # not flat: of any shape
    np.testing.assert_allclose(act(pictures), actions, atol=1e-6)
    np.testing.assert_allclose(act(pictures[0]), actions[0], atol=1e-6)


def test_an_exported_policy_stays_in_its_box(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(size=(2, 500)).astype(np.float32), 0)
    arrays = {
        "observation_mean": np.zeros(1, np.float32),
        "observation_std": np.ones(1, np.float32),
        "weight_0": np.full((1, 500), 9.0, np.float32),
        "bias_0": np.zeros(500, np.float32),
    }
    file = tmp_path / "policy.safetensors"
    # As version 0.1 wrote it.
    save_file({**arrays, "low": low, "high": high}, file, {"format": "1"})
    act = load_policy(str(file))
    for side, bound in ((1, high), (-1, low)):
        action = act(np.full(1, side))
        np.testing.assert_allclose(action, bound, atol=1e-6)
        assert ((low <= action) & (action <= high)).all()


def untrained(path: Path, **changes: Any) -> Path:
    """An exported policy, some arrays of whose first layer were replaced."""
    agent = POMBU("Point2D", preset="smoke")
    policy = replace(agent.state.policy, **changes)
    state = replace(agent.state, policy=policy)
    export_policy(path, agent.learner, state, {"algorithm": "pombu"})
    return path


def test_an_exported_policy_is_always_the_same_file(tmp_path: Path) -> None:
    files = [untrained(tmp_path / f"{i}.safetensors") for i in range(6)]
    assert len({file.read_bytes() for file in files}) == 1


def test_a_damaged_policy_does_not_act(tmp_path: Path) -> None:
    file = untrained(tmp_path / "policy.safetensors")
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    # What is written about it, down to each letter, and some of its numbers.
    for position in (*range(start), *range(start, len(data), 97)):
        flipped = bytes([data[position] ^ 1])
        file.write_bytes(data[:position] + flipped + data[position + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            load_policy(str(file))


def test_a_policy_that_is_no_number_is_not_exported(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    with pytest.raises(RunError, match=r"not finite \(log_std\)"):
        untrained(file, log_std=jnp.full(2, jnp.nan))
    assert not file.exists()


class Arm(gymnasium.Env[Any, Any]):
    """Observes a Dict; its action box is lopsided, has a shape, and fixes an entry."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            goal=spaces.Box(-9.0, 9.0, (2, 2)), mode=spaces.Discrete(3, start=1)
        )
        low = np.array([[-1.0, 2.0, 0.5]], np.float32)
        self.action_space = spaces.Box(low, np.array([[3, 2.5, 0.5]], np.float32))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, False, False, {}


def arm() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Arm(), 8)


def experienced(algorithm: str, env: Any) -> Agent:
    """An agent with a policy far from its first, and units of its own."""
    agent: Agent = getattr(pombu, registry.find(algorithm).agent)(env, preset="smoke")
    rng = np.random.default_rng(1)

    def shaken(leaf: Any) -> Any:
        return leaf + jnp.asarray(rng.normal(scale=0.3, size=leaf.shape), jnp.float32)

    task = agent.learner.task
    episodes = collect(
        task, lambda *_: rng.uniform(-1, 1, (4, task.action_dim)), range(4)
    )
    agent.state = eqx.tree_at(
        lambda s: (s.policy, s.experience),
        agent.state,
        (
            jax.tree.map(shaken, agent.state.policy),
            learn_from(agent.state.experience, episodes, 0.99),
        ),
    )
    return agent


CLOSE = {"atol": 1e-5, "rtol": 1e-5}
"""Sums of float32 in another order."""


BORROWED = ("sac", "droq", "tqc", "crossq", "ppo")
"""Those whose networks are another library's."""


def exportable() -> list[str]:
    """Algorithms whose state has a policy of its own."""
    others = ("pets", "steve", *BORROWED)
    return [name for name in registry.ALGORITHMS if name not in others]


def run_onnx(file: Path, observations: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (actions,) = session.run(["action"], {"observation": observations})
    assert isinstance(actions, np.ndarray)
    return actions


def require_same_actions(agent: Agent, folder: Path) -> dict[str, Any]:
    """NumPy and onnxruntime act as the agent does; gives what the model says."""
    task = agent.learner.task
    draw = np.random.default_rng(2).normal
    observations = draw(scale=3, size=(300, task.observation_dim)).astype(np.float32)
    files = [agent.export(folder / f"policy{end}") for end in (".safetensors", ".onnx")]
    expected, _ = agent.predict(observations, deterministic=True)
    expected = expected.reshape(300, task.action_dim)
    assert np.ptp(expected, 0)[0] > (1e-3 if agent.algorithm in BORROWED else 0.1)
    by_numpy = load_policy(str(files[0]))(observations)
    np.testing.assert_allclose(by_numpy, expected, **CLOSE)
    actions = run_onnx(files[1], observations)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, expected, **CLOSE)
    np.testing.assert_allclose(
        run_onnx(files[1], observations[:1]), expected[:1], **CLOSE
    )
    again = agent.export(folder / "again.onnx")
    assert again.read_bytes() == files[1].read_bytes()
    model = onnx.load(files[1])
    onnx.checker.check_model(model, full_check=True)
    (entry,) = model.metadata_props
    about: dict[str, Any] = json.loads(entry.value)["about"]
    return about


@pytest.mark.parametrize("algorithm", exportable())
def test_onnx_acts_like_the_agent(algorithm: str, tmp_path: Path) -> None:
    about = require_same_actions(experienced(algorithm, "Point2D"), tmp_path)
    assert about["algorithm"] == algorithm
    assert about["observation_size"] == 2


@pytest.mark.parametrize("algorithm", BORROWED)
def test_onnx_of_borrowed_networks_acts_like_the_agent(
    algorithm: str, tmp_path: Path
) -> None:
    """Untrained ones: how they are taken out is tested where they are trained."""
    kind = getattr(pombu, registry.find(algorithm).agent)
    about = require_same_actions(kind("Point2D", preset="smoke"), tmp_path)
    assert about["algorithm"] == algorithm


def test_onnx_of_a_history_takes_the_whole_stack(tmp_path: Path) -> None:
    agent = experienced("pombu", EnvConfig(id="Point2D", history=3))
    about = require_same_actions(agent, tmp_path)
    assert about["observation_size"] == 6
    assert about["history"] == {"observations": 3, "first": "newest"}


@pytest.mark.parametrize("algorithm", ["pombu", "mbpo"])
def test_onnx_of_a_dict_says_how_it_is_flattened(
    algorithm: str, tmp_path: Path
) -> None:
    agent = experienced(algorithm, arm)
    about = require_same_actions(agent, tmp_path)
    assert about["action"] == {
        "low": [-1.0, 2.0, 0.5],
        "high": [3.0, 2.5, 0.5],
        "shape": [1, 3],
    }
    observation, _ = arm().reset(seed=3)
    flat = flatten(about["observation"], observation)
    expected, _ = agent.predict(observation, deterministic=True)
    actions = run_onnx(tmp_path / "policy.onnx", flat[None])
    np.testing.assert_allclose(actions.reshape(1, 3), expected, **CLOSE)
    by_numpy = load_policy(str(tmp_path / "policy.safetensors"))(observation)
    np.testing.assert_allclose(by_numpy.reshape(1, 3), expected, **CLOSE)


def test_the_command_writes_onnx_by_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.onnx"
    assert main(["export", str(run), str(file)]) == 0
    assert "`observation`" in capsys.readouterr().out
    observations = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    actions, _ = POMBU.load(run).predict(observations, deterministic=True)
    np.testing.assert_allclose(run_onnx(file, observations), actions, atol=1e-6)
    assert main(["export", str(run), str(tmp_path / "policy.pt")]) == 2
    assert ".onnx" in capsys.readouterr().err


def test_a_planner_has_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pets policy cannot be exported"):
        PETS("Point2D", preset="smoke").export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_onnx_with_nan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.onnx"
    agent = POMBU("Point2D", preset="smoke")
    numberless = jax.tree.map(lambda leaf: leaf * jnp.nan, agent.state.policy)
    agent.state = replace(agent.state, policy=numberless)
    with pytest.raises(RunError, match="not finite"):
        agent.export(file)
    assert not file.exists()


def test_export_overwrites_nothing(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_text("mine")
    assert main(["export", str(run), str(file)]) == 2
    assert file.read_text() == "mine"


def test_a_video_has_a_frame_per_step(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "video.mp4"
    assert main(["video", str(run), "--out", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["frames"] == 31
    assert file.stat().st_size > 1000
    assert file.with_suffix(".gif").read_bytes()[:3] == b"GIF"


def test_a_video_may_have_several_episodes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "video.mp4"
    flags = ["--episodes", "2", "--json"]
    assert main(["video", str(run), "--out", str(file), *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["frames"] == 62
    first, second = answer["returns"]
    assert first != second
    assert answer["return"] == (first + second) / 2
    assert main(["video", str(run), "--episodes", "0"]) == 2
    assert "episodes is 0" in capsys.readouterr().err


def test_a_video_is_an_mp4(run: Path, tmp_path: Path) -> None:
    assert main(["video", str(run), "--out", str(tmp_path / "video.avi")]) == 2


def test_plot_and_results_speak_of_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(run), "--out", str(tmp_path / "curve.png")]) == 0
    assert (tmp_path / "curve.png").read_bytes()[1:4] == b"PNG"
    out = tmp_path / "results" / "point"
    assert main(["results", str(run), "--out", str(out)]) == 0
    page = out.with_suffix(".md").read_text()
    assert "pombu (smoke)" in page
    assert "--total-steps 120" in page
    # The page can be written again from the kept files alone.
    out.with_suffix(".md").unlink()
    assert main(["results", "--out", str(out)]) == 0
    assert out.with_suffix(".md").read_text() == page
    capsys.readouterr()


@pytest.mark.parametrize("command", ["export", "video", "plot", "evaluate"])
def test_a_folder_that_is_no_run_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
