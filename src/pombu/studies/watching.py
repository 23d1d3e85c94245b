"""What a user sees of a study: a live table, or plain lines where there is no
terminal."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from pombu.studies.progress import WIDE, RunProgress, headline, line, table

EVERY = 1.0
"""Seconds between two looks at the live table."""
PLAIN_EVERY = 60.0
"""Seconds between two plain lines about the whole study."""


class LiveRuns:
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


def watcher(console: Console) -> "LiveRuns | PlainRuns":
    """The live table on a terminal, plain lines elsewhere."""
    return LiveRuns(console) if console.is_terminal else PlainRuns(console)
