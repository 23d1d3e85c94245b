"""One trial: a call that may go wrong, what it said, and what that counts as."""

import contextlib
import dataclasses
import io
import os
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from pombu.cli import main
from pombu.errors import PombuError

BAD = ("silent", "unexpected", "hung")
"""Kinds of outcomes that must not happen."""
SECONDS = 120.0
"""A call that takes longer hangs."""


class HungError(BaseException):
    """A call took too long; no `except Exception` may swallow it."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a call gave: an exit code, or none where it raised."""

    code: int | None
    out: str = ""
    said: str = ""
    """Standard error, warnings, or the words of what it raised."""
    kind: str = ""
    """`unexpected` or `hung` where it was; empty where it was a proper answer."""


@dataclasses.dataclass
class Count:
    """Outcomes of one way of trying, and every bad one in words."""

    name: str
    trials: int = 0
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    bad: list[str] = dataclasses.field(default_factory=list)

    def add(self, kind: str, what: str = "", trials: int = 1) -> None:
        """Count an outcome; of a bad one, also what it was."""
        self.trials += trials
        self.outcomes[kind] += trials
        if kind in BAD:
            self.bad.append(f"{kind}: {what}"[:600])

    def to_json(self) -> dict[str, Any]:
        """For `reliability.json`."""
        return {
            "trials": self.trials,
            "outcomes": dict(sorted(self.outcomes.items())),
            "bad": self.bad,
        }


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `HungError` inside after so many seconds."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def command(arguments: Sequence[str], seconds: float = SECONDS) -> Answer:
    """Run a command line of pombu in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        answer = call(lambda: main(list(arguments)), seconds)
    said = err.getvalue() + answer.said
    kind = answer.kind
    if not kind and improper(answer.code, said):
        kind = "unexpected"
    return Answer(answer.code, out.getvalue(), said, kind)


def improper(code: int | None, said: str) -> bool:
    """Whether an error is anything but one line of pombu's own."""
    if "Traceback" in said or "a bug in pombu" in said:
        return True
    if not code:
        return False
    lines = [line for line in said.splitlines() if line.startswith("pombu: ")]
    return len(lines) != 1 or not said.rstrip().endswith(lines[0].rstrip())


def call(function: Callable[[], Any], seconds: float = SECONDS) -> Answer:
    """Call something; an error that pombu put into words is a proper answer."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with time_limit(seconds):
                given = function()
        except HungError:
            return Answer(None, kind="hung")
        except PombuError as error:
            kind = "" if str(error) else "unexpected"
            return Answer(error.exit_code, said=str(error), kind=kind)
        except (Exception, SystemExit):
            return Answer(None, said=traceback.format_exc(limit=-4), kind="unexpected")
    words = "\n".join(str(one.message) for one in heard if of_pombu(one))
    return Answer(given if isinstance(given, int) else 0, said=words)


def of_pombu(warning: warnings.WarningMessage) -> bool:
    return issubclass(warning.category, UserWarning)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what code or libraries write past Python to nowhere."""
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for number, handle in zip((1, 2), kept, strict=True):
            os.dup2(handle, number)
            os.close(handle)
        os.close(nowhere)


def files_of(folder: Path) -> list[Path]:
    """All files in a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
