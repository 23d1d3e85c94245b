"""From a command's arguments to its dataclass, with usage errors in one sentence."""

import contextlib
import dataclasses
import inspect
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_origin
from unittest.mock import patch

import docstring_parser
import tyro

from pombu.envs import EnvConfig
from pombu.errors import UsageError

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class EnvOptions(EnvConfig):
    """Every option of `EnvConfig` as a flag; a command asks for the id in its own way.

    As a field of a command: `options: Annotated[EnvOptions, tyro.conf.arg(name="")]`.
    """

    id: tyro.conf.Suppress[str] = EnvConfig.id
    """Not a flag."""

    def __post_init__(self) -> None:
        """Leave the check of values to `of`, so that its errors are the command's."""

    def of(self, name: str) -> EnvConfig:
        """The environment with this id and these options."""
        return EnvConfig(name, **self.options)


ENV_OPTIONS = EnvOptions()
"""The default options."""


KINDS = {
    "{None}": "None",
    "INT": "a whole number",
    "FLOAT": "a number",
}
"""What tyro's words for a flag's type mean."""


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
        with contextlib.redirect_stderr(box), _lines_joined():
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


@contextlib.contextmanager
def _lines_joined() -> Iterator[None]:
    """Have the help of a flag wrap at the terminal's width alone.

    tyro joins the lines of a docstring before it takes their indentation away, and so
    leaves a break wherever the source has one.
    """
    parse_as_written = docstring_parser.parse_from_object

    def parse_joined(thing: Any) -> docstring_parser.Docstring:
        found = parse_as_written(thing)
        for one in found.params:
            one.description = " ".join((one.description or "").split()) or None
        return found

    with patch.object(docstring_parser, "parse_from_object", parse_joined):
        yield


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
    said = _plainly(said[:1].lower() + said[1:])
    near = re.search(r"Perhaps you meant:.*?(--[\w.-]+)", "".join(parts))
    return f"{said}; did you mean {near[1]}?" if near else f"{said}."


def _plainly(said: str) -> str:
    """What tyro says of a value that cannot be read, without words of Python's."""
    wrong = (
        (r"invalid literal for int\(\).*: ('.*')", "INT"),
        (r"could not convert string to float: ('.*')", "FLOAT"),
        (r"no type matching (?P<due>\S+) .* from \[('.*?')\]", ""),
    )
    for pattern, due in wrong:
        found = re.match(rf"error parsing (--\S+): {pattern}", said)
        if found:
            kinds = (found.groupdict().get("due") or due).split("|")
            accepted = " or ".join(KINDS.get(kind, kind) for kind in kinds)
            return f"{found[1]} is {found.groups()[-1]}: it takes {accepted}"
    missing = re.match(r"missing from (pombu \S+): (\S+) (.*?)\.? \(required\)", said)
    if missing:
        command, name, meaning = missing.groups()
        return f"{command} needs {name}: {meaning[:1].lower()}{meaning[1:]}"
    # What our own configs refuse, they say in a sentence of their own.
    return re.sub(r"^error parsing [a-z][\w.]*: ", "", said)
