"""The guide's files and commands, as a reader would type them (but shorter)."""

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pombu.cli import main, read

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "own-environment.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL))
COMMANDS = [
    line
    for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]


def shorter(text: str) -> str:
    """The same with the smallest preset and few steps."""
    text = text.replace("POMBU(make_cart", 'POMBU(make_cart, preset="smoke"')
    text = text.replace("total_timesteps=10_000", "total_timesteps=50")
    return text.replace("range(50)", "range(2)")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    """A folder with the guide's files, in which it is followed."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(shorter(text))
    monkeypatch.setattr("pombu.training.algorithm.FINAL_EPISODES", 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def words_of(number: int) -> list[str]:
    """A command as it is typed, at a size for tests."""
    _, name, *words = COMMANDS[number].split()
    if name == "train":
        words = [w for w in words if w not in ("--total-steps", "10000")]
        words += ["--preset", "smoke", "--total-steps", "1"]
        if "--out" not in words:
            words += ["--out", f"runs/{number}"]
    if name in ("evaluate", "diagnose"):
        words += ["--episodes", "2"]
    return [name, *words]


def test_the_guides_commands(folder: Path) -> None:
    """Those on the first environment run; the others are read, and run when slow."""
    runpy.run_path("log_some.py")
    assert len(COMMANDS) == 9
    for number, command in enumerate(COMMANDS):
        name, *words = words_of(number)
        if 1 <= number <= 4 or name != "train":
            assert main([name, *words]) == 0, command
        else:
            read(name, words)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(9))
def test_each_of_the_guides_commands(number: int, folder: Path) -> None:
    runpy.run_path("log_some.py")
    if words_of(number)[0] in ("evaluate", "diagnose"):
        assert main(words_of(2)) == 0
    assert main(words_of(number)) == 0, COMMANDS[number]


@pytest.mark.parametrize("script", ["train_cart.py", "robot.py"])
def test_the_guides_scripts(script: str, folder: Path, capsys: Any) -> None:
    runpy.run_path(script)
    assert capsys.readouterr().out
