"""Policies to take away: exported files, videos, pictures and results pages."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from pombu.agent.agents import POMBU
from pombu.agent.export import export_policy
from pombu.agent.numpy_policy import load_policy
from pombu.cli import main
from pombu.errors import RunError


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
    save_file({**arrays, "low": low, "high": high}, tmp_path / "policy.safetensors")
    act = load_policy(str(tmp_path / "policy.safetensors"))
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
