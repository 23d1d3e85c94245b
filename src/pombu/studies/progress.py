"""Progress of a study: read off run folders, shown as a live table or plain lines."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pombu.files import DamagedFileError
from pombu.studies.backends import FAILURE, read_failure
from pombu.training.display import duration
from pombu.training.metrics import Row, read_rows
from pombu.training.run import CONFIG, EVALUATION, METRICS, open_run

State = Literal["finished", "running", "interrupted", "failed", "waiting"]
COLOURS: dict[State, str] = {
    "finished": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "failed": "red",
    "waiting": "bright_black",
}
WIDE = 110
"""Letters of a terminal that has room for every column."""
LESS = ("steps", "time")
"""Columns that a narrower one does without."""
RECENT = 5
"""Iterations whose pace tells how long the rest takes."""


@dataclass(frozen=True)
class RunProgress:
    """One line of a study's table."""

    name: str
    state: State
    real_steps: int
    total_steps: int
    last_return: float | None = None
    seconds: float = 0.0
    """Spent in iterations so far."""
    seconds_per_step: float | None = None
    failure: str = ""

    @property
    def seconds_left(self) -> float | None:
        """What the pace of the last iterations predicts; None before the first."""
        if self.seconds_per_step is None:
            return None
        return self.seconds_per_step * max(self.total_steps - self.real_steps, 0)


def examine(path: Path, total_steps: int, running: bool = False) -> RunProgress:
    """Look at a run folder, which need not exist."""
    try:
        rows = rows_of(path / METRICS)
    except DamagedFileError as error:
        return RunProgress(path.name, "failed", 0, total_steps, failure=str(error))
    steps = int(rows[-1]["real_steps"]) if rows else 0
    failure = path / FAILURE
    state: State = "waiting"
    if running:
        state = "running"
    elif is_finished(path, rows, total_steps):
        state = "finished"
    elif failure.exists():
        state = "failed"
    elif (path / CONFIG).exists():
        state = "interrupted"
    return RunProgress(
        name=path.name,
        state=state,
        real_steps=steps,
        total_steps=total_steps,
        last_return=rows[-1].get("return_real") if rows else None,
        seconds=sum(row.get("iteration_seconds", 0.0) for row in rows),
        seconds_per_step=pace(rows),
        failure=read_failure(path) if state == "failed" else "",
    )


def is_finished(path: Path, rows: Sequence[Row], total_steps: int) -> bool:
    """Whether a run has all its real steps and its evaluation, or is to go beyond."""
    if not rows or rows[-1]["real_steps"] < total_steps:
        return False
    evaluation, failure = path / EVALUATION, path / FAILURE
    if evaluation.exists():
        failed = failure.exists() and _changed(failure) > _changed(evaluation)
        return not failed
    return open_run(path).spec.total_steps > total_steps


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def rows_of(path: Path) -> list[Row]:
    """The rows of a metrics file, which need not exist."""
    if not path.exists():
        return []
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=1024)
def _read(path: Path, changed: int, size: int) -> list[Row]:
    """Rows of a file, read once for as long as it is the same."""
    return read_rows(path)[1]


def pace(rows: Sequence[Row]) -> float | None:
    """Seconds per real step of the last iterations."""
    recent = rows[-RECENT:]
    if not recent:
        return None
    before = rows[-RECENT - 1]["real_steps"] if len(rows) > RECENT else 0
    steps = recent[-1]["real_steps"] - before
    seconds = sum(row.get("iteration_seconds", 0.0) for row in recent)
    return seconds / steps if steps else None


def time_left(runs: Sequence[RunProgress], side_by_side: int) -> float | None:
    """How long the whole study still takes; None while no run tells a pace.

    A run that has not begun is taken to be as fast as the others are on average.
    """
    paces = [r.seconds_per_step for r in runs if r.seconds_per_step is not None]
    if not paces:
        return None
    usual = float(np.mean(paces))
    open_runs = [r for r in runs if r.state not in ("finished", "failed")]
    left = [
        r.seconds_left
        if r.seconds_left is not None
        else usual * (r.total_steps - r.real_steps)
        for r in open_runs
    ]
    return max(sum(left) / max(side_by_side, 1), max(left, default=0.0))


def headline(runs: Sequence[RunProgress], side_by_side: int) -> str:
    """The study in one line."""
    states = [r.state for r in runs]
    counted = [f"{states.count(s)} {s}" for s in COLOURS if s in states]
    left = time_left(runs, side_by_side)
    if left and {"running", "waiting", "interrupted"} & set(states):
        counted.append(f"about {duration(left)} left")
    return f"{len(runs)} runs: {', '.join(counted)}"


def table(
    runs: Sequence[RunProgress],
    side_by_side: int,
    width: int = WIDE,
    height: int | None = None,
) -> Table:
    """The study as a table that fits a terminal.

    Names are folded before a number is cut off. Where there are more runs than lines,
    those that something happens to are shown.
    """
    made = Table(title=headline(runs, side_by_side), title_justify="left", box=None)
    made.add_column("run", overflow="fold")
    wide = width >= WIDE
    columns = ("state", "steps", "%", "last return", "time", "left")
    kept = [i for i, name in enumerate(columns[1:]) if wide or name not in LESS]
    made.add_column("state", no_wrap=True)
    for i in kept:
        made.add_column(columns[1 + i], justify="right", no_wrap=True)
    shown = _most_telling(runs, len(runs) if height is None else max(height, 1))
    for run in shown:
        numbers = _numbers(run)
        state = f"[{COLOURS[run.state]}]{run.state}[/]"
        made.add_row(run.name, state, *(numbers[i] for i in kept))
    if len(shown) < len(runs):
        made.add_row(f"and {len(runs) - len(shown)} more")
    return made


def _most_telling(runs: Sequence[RunProgress], number: int) -> list[RunProgress]:
    """So many of the runs, in their order: first those that run, then failed ones."""
    order: tuple[State, ...] = ("running", "failed", "interrupted", "waiting")
    ranks = {state: rank for rank, state in enumerate((*order, "finished"))}
    first = sorted(range(len(runs)), key=lambda i: ranks[runs[i].state])[:number]
    return [runs[i] for i in sorted(first)]


def line(run: RunProgress) -> str:
    """A run as plain text."""
    _, percent, last, spent, left = _numbers(run)
    parts = [f"{run.name}: {run.state}", f"{percent} of {run.total_steps:,} steps"]
    parts += [f"last return {last}"] if last else []
    parts += [f"{spent} spent"] if spent else []
    parts += [f"about {left} left"] if left and run.state == "running" else []
    return ", ".join(parts) + (f": {run.failure}" if run.failure else "")


def _numbers(run: RunProgress) -> tuple[str, str, str, str, str]:
    left = run.seconds_left
    return (
        f"{run.real_steps:,}/{run.total_steps:,}",
        f"{min(run.real_steps / run.total_steps, 1):.0%}",
        "" if run.last_return is None else f"{run.last_return:.4g}",
        duration(run.seconds) if run.seconds else "",
        duration(left) if left and run.state != "finished" else "",
    )


EVERY = 1.0
"""Seconds between two looks at the live table."""
PLAIN_EVERY = 60.0
"""Seconds between two plain lines about the whole study."""


class LiveTable:
    """A table that follows all runs."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`."""
        self._live = Live(console=console, auto_refresh=False)
        self._console = console
        self._next = 0.0

    def show(self, runs: Sequence[RunProgress], slots: int) -> None:
        """Draw the table anew, once a second."""
        if not self._live.is_started:
            self._live.start()
        over = not any(run.state == "running" for run in runs)
        if time.monotonic() >= self._next or over:
            self._next = time.monotonic() + EVERY
            width, height = self._console.size
            # Title, header and rest take a line each, and a folded name takes two.
            lines = height - 4 if width >= WIDE else height // 2 - 2
            made = table(runs, slots, width, lines)
            self._live.update(made, refresh=True)

    def say(self, text: str) -> None:
        """Print a sentence above the table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last table standing."""
        self._live.stop()


class PlainRuns:
    """One line whenever a run changes its state, and one a minute about all."""

    def __init__(self, console: Console) -> None:
        """Print to `console`."""
        self._console = console
        self._states: dict[str, str] = {}
        self._next = time.monotonic() + PLAIN_EVERY

    def show(self, runs: Sequence[RunProgress], slots: int) -> None:
        """Print what is new."""
        if not self._states:
            self.say(headline(runs, slots))
        for run in runs:
            known = self._states.get(run.name)
            if known != run.state and (known or run.state != "waiting"):
                self.say(line(run))
            self._states[run.name] = run.state
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_EVERY
            self.say(headline(runs, slots))
            for run in runs:
                if run.state == "running":
                    self.say(f"  {line(run)}")

    def say(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is left open."""


def display_on(console: Console) -> "LiveTable | PlainRuns":
    """The live table on a terminal, plain lines elsewhere."""
    return LiveTable(console) if console.is_terminal else PlainRuns(console)
