"""From a command's arguments to its dataclass, with usage errors in one sentence."""

import contextlib
import inspect
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_origin

import tyro

from pombu.errors import UsageError

C = TypeVar("C")


def parse(
    command: Callable[..., C],
    name: str,
    arguments: Sequence[str],
    default: C | None = None,
    registry: tyro.constructors.ConstructorRegistry | None = None,
) -> C:
    """Parse the arguments of `pombu <name>` into its `Command`.

    Args:
        command: The dataclass whose fields are the flags; may be `Generic[Config]`.
        name: What the command is called.
        arguments: What follows the name.
        default: Starting values; without one, those of the dataclass.
        registry: How to read types of which tyro knows nothing.

    Raises:
        UsageError: The arguments do not fit.
    """
    start: Any = tyro.MISSING_NONPROP if default is None else default
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(
                command,
                prog=f"pombu {name}",
                description=inspect.getdoc(get_origin(command) or command),
                args=arguments,
                registry=registry,
                default=start,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        help_line = f"`pombu {name} --help` lists what it takes."
        raise UsageError(f"{sentence(box.getvalue())} {help_line}") from None


def sentence(box: str) -> str:
    """The message inside tyro's error box, on one line, with its nearest suggestion.

    The box has a title and then parts between rules; where the terminal has no UTF-8
    its frame is missing, and the title stands above a rule of its own.
    """
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    rows = [line.strip(" │") for line in plain.splitlines()]
    framed = any(row.startswith("╭") for row in rows)
    parts = [""]
    for row in rows:
        if row and set(row) <= {"─", "-"}:
            parts.append("")
        elif not row.startswith(("╭", "╰")):
            parts[-1] += f" {row}"
    said = " ".join(parts[0 if framed else 1].split()).rstrip(".")
    said = said[:1].lower() + said[1:]
    near = re.search(r"Perhaps you meant:.*?(--[\w.-]+)", "".join(parts))
    return f"{said}; did you mean {near[1]}?" if near else f"{said}."
