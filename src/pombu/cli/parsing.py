"""From a command's arguments to its dataclass, with usage errors in one sentence."""

import contextlib
import inspect
import io
import re
from collections.abc import Sequence
from typing import TypeVar

import tyro

from pombu.errors import UsageError

C = TypeVar("C")


def parse(
    command: type[C], name: str, arguments: Sequence[str], default: C | None = None
) -> C:
    """Parse the arguments of `pombu <name>` into its `Command`."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            parsed: C = tyro.cli(
                command,
                prog=f"pombu {name}",
                description=inspect.getdoc(command),
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
                default=tyro.MISSING_NONPROP if default is None else default,
            )
            return parsed
    except SystemExit as stop:
        if not stop.code:
            raise
        help_line = f"`pombu {name} --help` lists what it takes."
        raise UsageError(f"{sentence(box.getvalue())} {help_line}") from None


def sentence(box: str) -> str:
    """The message inside tyro's error box, on one line, with its nearest suggestion."""
    rows = [line.strip(" │|") for line in box.splitlines()]
    rows = [row for row in rows if row and row[0] not in "╭╰+"]
    message: list[str] = []
    for row in rows:
        if set(row) <= {"─", "-"}:
            break
        message.append(row)
    said = " ".join(message).rstrip(".")
    said = said[:1].lower() + said[1:]
    near = re.search(r"Perhaps you meant:.*?(--[\w.-]+)", " ".join(rows))
    return f"{said}; did you mean {near[1]}?" if near else f"{said}."
