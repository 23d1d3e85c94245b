"""The kinds of error a user can meet.

All carry one sentence that says what was wrong, what is accepted and what to do. The
command line prints that sentence alone and exits with the class's code.
"""


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


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a value that is too small, or no number."""
    if not value >= least:
        raise UsageError(f"{name} is {value}; it must be at least {least}.")


def within(name: str, value: float, interval: str, holds: bool) -> None:
    """Refuse a value outside an interval."""
    if not holds:
        raise UsageError(f"{name} is {value}; it must lie in {interval}.")
