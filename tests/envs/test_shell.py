"""What a user sees from outside: imports, files left, pictures, commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from pombu.cli import main
from pombu.envs import CATALOGUE, load
from pombu.envs.catalogue import Entry
from pombu.envs.environment import PointEnv


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "MUJOCO_GL"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_import_registers_without_jax_or_mujoco(tmp_path: Path) -> None:
    code = (
        "import sys, pombu, gymnasium\n"
        "assert 'pombu/HalfCheetah-v0' in gymnasium.registry\n"
        "assert 'jax' not in sys.modules and 'mujoco' not in sys.modules\n"
        "import pombu.cli.lists\n"
        "assert 'jax' not in sys.modules and 'mujoco' not in sys.modules\n"
        "pombu.envs.load('HalfCheetah')\n"
        "assert 'jax' not in sys.modules\n"
    )
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_printed_or_left_in_the_folder(tmp_path: Path) -> None:
    """Neither by training's collection, nor by rendering, nor by bad input."""
    code = (
        "import numpy as np, gymnasium, pombu\n"
        "from pombu.envs import collect, load\n"
        "for name in ('HalfCheetah', 'HalfCheetah-v5'):\n"
        "    for batched in (True, False):\n"
        "        task = load(name, horizon=3)\n"
        "        collect(task, lambda o, t: np.zeros((2, 6)), [0, 1], batched)\n"
        "env = gymnasium.make('pombu/HalfCheetah-v0', render_mode='rgb_array')\n"
        "env.reset(seed=0)\n"
        "assert env.render().std() > 1\n"
        "try: env.unwrapped.step(np.full(6, np.nan))\n"
        "except ValueError: pass\n"
        "env.unwrapped.physics.advance(np.full(18, np.nan), np.zeros(6))\n"
        "env.close()\n"
    )
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_renders_without_a_display(entry: Entry) -> None:
    env = gymnasium.make(entry.id, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    for _ in range(20):
        env.step(env.action_space.high)
    after = env.render()
    env.close()
    assert before.dtype == np.uint8
    assert before.ndim == 3
    assert before.shape[2] == 3
    assert before.std() > 1
    assert not np.array_equal(before, after)


def test_rendering_does_not_change_the_episode() -> None:
    plain = load("Ant").make()
    rendered = load("Ant").make(render_mode="rgb_array")
    plain.reset(seed=0)
    rendered.reset(seed=0)
    for _ in range(5):
        action = plain.action_space.sample()
        rendered.render()
        np.testing.assert_array_equal(plain.step(action)[0], rendered.step(action)[0])
    rendered.close()


def test_unknown_render_mode() -> None:
    with pytest.raises(ValueError, match="render_mode 'movie'"):
        PointEnv(2, render_mode="movie")


def test_envs_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    printed = capsys.readouterr().out
    for entry in CATALOGUE:
        assert entry.name in printed
        assert entry.reward in printed
    assert main(["envs", "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)
    assert tasks[3] == {
        "name": "HalfCheetah",
        "id": "pombu/HalfCheetah-v0",
        "observations": 17,
        "actions": 6,
        "horizon": 200,
        "reward": "v_x - 0.1 |a|^2",
    }


def test_check_env_command(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--horizon", "50", "--observation-noise", "0.1", "--alive-bonus", "1"]
    assert main(["check-env", "HalfCheetah", "--json", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["id"] == "pombu/HalfCheetah-v0"
    assert main(["check-env", "toys:WrongReward", "--steps", "30"]) == 1
    assert "largest error 0.5" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["HalfCheeta"], "did you mean 'HalfCheetah'?"),
        (["HalfCheetah", "--horizon", "0"], "horizon is 0"),
        (["HalfCheetah", "--observation-noise", "-1"], "observation_noise is -1"),
        (["CartPole-v1"], "Discrete(2)"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check-env", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
