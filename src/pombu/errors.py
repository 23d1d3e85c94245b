"""The kinds of error a user can meet, and the ranges of the numbers in a config.

All errors carry one sentence that says what was wrong, what is accepted and what to do.
The command line prints that sentence alone and exits with the class's code.

A config's field says by its type which numbers it takes: `members: Members = 5` is an
`int` from 1 to 1000. `require_ranges` checks all fields of a config by these types.
"""

import dataclasses
import functools
import numbers
import typing
from collections.abc import Iterator
from typing import Annotated, Any

SEEDS = 2**32
"""Seeds are smaller than this."""


class PombuError(Exception):
    """Anything pombu reports to a user in one sentence."""

    exit_code = 1


class UsageError(PombuError, ValueError):
    """The request cannot be carried out as written (exit code 2)."""

    exit_code = 2


class RunError(PombuError, RuntimeError):
    """A run that had begun could not go on; its data is kept (exit code 1)."""

    exit_code = 1


class StoppedError(RunError):
    """Someone asked to stop by a signal (exit code 128 and its number)."""

    def __init__(self, sentence: str, signal: int) -> None:
        super().__init__(sentence)
        self.exit_code = 128 + signal


@dataclasses.dataclass(frozen=True)
class Range:
    """The interval that a number of a config must lie in."""

    interval: str
    """As it is told to users: `[0, 1)` includes 0 and excludes 1."""

    def __contains__(self, value: float) -> bool:
        low, high = map(float, self.interval[1:-1].split(","))
        above = value >= low if self.interval[0] == "[" else value > low
        below = value <= high if self.interval[-1] == "]" else value < high
        return above and below


Whole = Annotated[int, Range("[0, 1e9]")]
"""A number of things, perhaps none."""
Count = Annotated[int, Range("[1, 1e9]")]
"""A number of things, at least one."""
Batch = Annotated[int, Range("[1, 1e7]")]
"""Rows that are held in memory together."""
Rows = Annotated[int, Range("[0, 1e8]")]
"""Transitions to make room for; 0 leaves the number open."""
Steps = Annotated[int, Range("[1, 1e6]")]
"""Steps of a trajectory."""
Episodes = Annotated[int, Range("[1, 1e5]")]
"""Episodes of an iteration."""
Evaluations = Annotated[int, Range("[0, 1e5]")]
"""Episodes of an evaluation, perhaps none."""
Iterations = Annotated[int, Range("[1, 1e6]")]
"""Iterations of a run."""
Members = Annotated[int, Range("[1, 1000]")]
"""Networks of an ensemble."""
Sizes = tuple[Annotated[int, Range("[1, 65536]")], ...]
"""Units of each hidden layer."""
Rate = Annotated[float, Range("[0, 1]")]
"""A learning rate."""
Share = Annotated[float, Range("[0, 1]")]
"""A part of a whole."""
PositiveShare = Annotated[float, Range("(0, 1]")]
"""A part of a whole, not nothing; also a discount factor."""
InnerShare = Annotated[float, Range("(0, 1)")]
"""A part of a whole, neither nothing nor all."""
Amount = Annotated[float, Range("[0, 1e12]")]
"""A size that may be nothing."""
Positive = Annotated[float, Range("(0, 1e12]")]
"""A size."""
LogStd = Annotated[float, Range("[-100, 10]")]
"""The logarithm of a standard deviation."""
Finite = Annotated[float, Range("[-1e12, 1e12]")]
"""Any finite number."""


def require_ranges(config: Any, section: str = "") -> None:
    """Refuse a config with a number outside the range that its field's type gives.

    Args:
        config: a dataclass; only its own fields are checked, not those of its parts.
        section: where the config is found in a whole one, such as `model`.

    Raises:
        UsageError: Names the field, its value and what it takes.
    """
    config_type: Any = type(config)
    for name, kind, allowed, optional, several in _ranged_fields(config_type):
        value = getattr(config, name)
        if value is None and optional:
            continue
        key = f"{section}.{name}" if section else name
        if several and not isinstance(value, list | tuple):
            raise UsageError(
                f"{key} is {value!r}; it must be a list of numbers in "
                f"{allowed.interval}."
            )
        for one in value if several else (value,):
            if not _is_number(one, kind) or one not in allowed:
                noun = "a whole number" if kind is int else "a number"
                none = ", or None" if optional else ""
                raise UsageError(
                    f"{key} is {one!r}; it must be {noun} in {allowed.interval}{none}."
                )


def range_of(config: Any, name: str) -> Range | None:
    """The range of a field of a config's class; None where it is no number."""
    found = [field for field in _ranged_fields(config) if field[0] == name]
    return found[0][2] if found else None


def _is_number(value: Any, kind: type) -> bool:
    due = numbers.Integral if kind is int else numbers.Real
    return isinstance(value, due) and not isinstance(value, bool)


@functools.cache
def _ranged_fields(
    config: Any,
) -> tuple[tuple[str, type, Range, bool, bool], ...]:
    """Name, type, range, whether None is taken and whether there are several."""
    hints = typing.get_type_hints(config, include_extras=True)
    found = []
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        parts = typing.get_args(hint)
        several = any(typing.get_origin(one) is tuple for one in (hint, *parts))
        optional = type(None) in parts
        for kind, allowed in _annotated(hint):
            found.append((field.name, kind, allowed, optional, several))
    return tuple(found)


def _annotated(hint: Any) -> Iterator[tuple[type, Range]]:
    """The types with a range that a hint consists of."""
    if typing.get_origin(hint) is Annotated:
        kind, *extras = typing.get_args(hint)
        yield from ((kind, extra) for extra in extras if isinstance(extra, Range))
    else:
        for part in typing.get_args(hint):
            yield from _annotated(part)


def require_seed(seed: Any) -> None:
    """Refuse what is no seed.

    JAX would silently use the last 32 bits, so that two seeds gave the same run.
    """
    whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
    if not (whole and 0 <= seed < SEEDS):
        raise UsageError(
            f"seed is {seed!r}: it must be a whole number from 0 to {SEEDS - 1}."
        )
