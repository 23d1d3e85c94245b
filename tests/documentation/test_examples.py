"""Each example is short and runs; those that train know `--smoke`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

from pombu.cli import main
from pombu.studies.study_file import read_study

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
def test_examples_run(path: Path, tmp_path: Path) -> None:
    flags = ["--smoke"] if "--smoke" in path.read_text() else []
    done = subprocess.run(
        [sys.executable, str(path), *flags],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS.get(path.stem, "") in done.stdout


def test_the_study_is_small_and_read() -> None:
    assert len(STUDY.read_text().splitlines()) < 40
    assert len(read_study(STUDY).jobs()) == 8


@pytest.mark.slow
def test_the_study_runs(tmp_path: Path) -> None:
    assert main(["study", str(STUDY), "--out", str(tmp_path / "study")]) == 0
