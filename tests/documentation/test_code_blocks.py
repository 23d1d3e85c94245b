"""Every Python block of the pages runs, and every command that they show parses."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, Block, blocks, name

from pombu.cli import COMMANDS, read


def python(page: Path, slow: bool) -> list[Block]:
    """A page's Python that is, or is not, slow."""
    return [
        block
        for block in blocks(page)
        if block.language == "python" and block.runs and block.slow == slow
    ]


def run(page: Path, slow: bool) -> None:
    """Run a page's blocks one after the other, as a reader would."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in python(page, slow):
        program = block.program()
        lines = "\n" * max(block.line - program.count("\n") + block.code.count("\n"), 0)
        exec(compile(lines + program, str(page), "exec"), names)


@pytest.mark.parametrize("page", [p for p in PAGES if python(p, slow=False)], ids=name)
def test_python_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if python(p, slow=True)], ids=name)
def test_slow_python_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, slow=True)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every `pombu ...` of a fenced block that is meant for a shell."""
    for page in PAGES:
        for block in blocks(page):
            if block.language not in ("", "console", "bash", "sh") or not block.runs:
                continue
            for line in block.code.replace("\\\n", " ").splitlines():
                found = re.match(r"\s*(?:\$ )?(?:\w+=\S+ )*pombu (\S.*)", line)
                if found:
                    words = shlex.split(found[1], comments=True)
                    yield f"{name(page)}: {found[1]}", words


LINES = dict(command_lines())


def test_there_are_commands_to_check() -> None:
    assert len(LINES) > 30


@pytest.mark.parametrize("words", LINES.values(), ids=LINES.keys())
def test_shown_commands_parse(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *arguments = words[: words.index(">")] if ">" in words else words
    assert command in COMMANDS
    if "--config" in arguments:  # it is read with the flags
        monkeypatch.chdir(tmp_path)
        path = Path(arguments[arguments.index("--config") + 1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}" if path.suffix == ".json" else "")
    read(command, arguments)
