"""Each example is short and runs; those that train know `--smoke`."""

import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pages import ROOT

from pombu.agent.runs import read_config
from pombu.cli import main
from pombu.studies.study_file import read_study
from pombu.studies.tuning_file import read_tuning

STUDY = ROOT / "examples" / "study.toml"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "demo": "Return per episode: random",
    "train": "sigma(Q) along the way",
    "callback": "real steps: return",
    "own_ensemble": "times as much as U says",
    "safe_controller": "the safe controller took over in",
}
"""A part of what an example prints; the others only have to succeed."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 40
    assert lines[0].startswith('"""')


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(path), *flags(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert SAYS.get(path.stem, "") in capsys.readouterr().out


def flags(path: Path) -> list[str]:
    return ["--smoke"] if "--smoke" in path.read_text() else []


def test_an_example_runs_as_a_program(tmp_path: Path) -> None:
    path = ROOT / "examples" / "own_ensemble.py"
    done = subprocess.run(
        [sys.executable, str(path), *flags(path)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS["own_ensemble"] in done.stdout


def test_the_study_is_small_and_read() -> None:
    assert len(STUDY.read_text().splitlines()) < 40
    assert len(read_study(STUDY).jobs()) == 8


def test_the_search_is_small_and_read() -> None:
    path = STUDY.with_name("tune.toml")
    assert len(path.read_text().splitlines()) < 40
    tuning = read_tuning(path)
    assert (tuning.trials, tuning.seeds) == (6, (0,))


def test_files_of_the_guide_are_read(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "tuning.md").read_text()
    config, search = re.findall(r"```toml\n(.*?)```", guide, flags=re.DOTALL)
    (tmp_path / "run.toml").write_text(config)
    made = read_config(tmp_path / "run.toml").config("pombu")
    assert (made.env.horizon, made.policy.hidden) == (1000, (256, 256))
    (tmp_path / "tune.toml").write_text(search)
    space = {one.key for one in read_tuning(tmp_path / "tune.toml").space}
    assert "imagination.real_starts" in space


@pytest.mark.slow
def test_the_study_runs(tmp_path: Path) -> None:
    assert main(["study", str(STUDY), "--out", str(tmp_path / "study")]) == 0
