"""From run folders to the page about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pombu.agent.runs import algorithm_of, load_state
from pombu.errors import UsageError
from pombu.report.calibration import calibrate
from pombu.report.entries import Entry, arrange, entries_of
from pombu.report.page import plotly_source, render
from pombu.report.preview import preview
from pombu.report.sections import Measured, sections
from pombu.studies.curves import read_curves
from pombu.training.algorithm import Algorithm

Say = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """A page, and what could not be put into it."""

    page: str
    final_returns: dict[str, float]
    missing: list[str]


def build(
    folders: Sequence[Path],
    film: bool = True,
    calibration: bool = True,
    env: str | None = None,
    say: Say = lambda _: None,
) -> Report:
    """Read runs, measure their last policies, and write the page.

    Args:
        folders: run folders; one that is named twice counts once.
        film: film an episode of each run.
        calibration: compare each run's uncertainty with real returns.
        env: an environment outside pombu whose code may be run.
        say: told of progress.

    Raises:
        UsageError: A folder is no run, or plotly is missing.
    """
    if not folders:
        raise UsageError("No run is named: give at least one run folder.")
    plotly_source()
    curves = read_curves(list({path.resolve(): path for path in folders}.values()))
    experiments = arrange(curves)
    measured = Measured()
    for entry in entries_of(experiments):
        if film or calibration:
            _measure(entry, film, calibration, env, measured, say)
    page = render(experiments, sections(experiments, measured))
    finals = {str(curve.run.path): curve.final() for curve in curves}
    missing = [reason for reasons in measured.missing.values() for reason in reasons]
    return Report(page, finals, missing)


def _measure(
    entry: Entry,
    film: bool,
    calibration: bool,
    env: str | None,
    measured: Measured,
    say: Say,
) -> None:
    """Add what the run's last checkpoint shows to `measured`."""
    number, run = entry.number, entry.curve.run

    def attempt(what: str, work: Callable[[], Any]) -> Any:
        """The work's result; the page can do without it, so no failure stops it."""
        try:
            return work()
        except Exception as error:
            reason = str(error) or type(error).__name__
            note = f"{entry.name} has no {what}: {reason}"
            measured.missing.setdefault(number, []).append(note)
            return None

    def load() -> tuple[Algorithm[Any], Any]:
        algorithm = algorithm_of(run, env)
        return algorithm, load_state(run, algorithm)

    loaded = attempt("film and no calibration", load)
    if loaded is None:
        return
    if calibration:
        say(f"comparing the uncertainty of {entry.name} with real returns")
        found = attempt("calibration", lambda: calibrate(*loaded))
        if found is not None:
            measured.calibrated[number] = found
    if film:
        say(f"filming {entry.name}")
        found = attempt("film", lambda: preview(*loaded))
        if found is not None:
            measured.previews[number] = found
