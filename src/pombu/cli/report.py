"""`pombu report`: one HTML page about one or more runs."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import tyro

from pombu.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Command:
    """Write one HTML page about one or more runs; it needs no network.

    It shows learning curves, model error, calibration of the uncertainty, overfitting,
    alpha, beta and KL, stage times, config differences and the policy itself. Runs that
    differ in their seed alone are taken for one experiment.

    Examples:
      pombu report runs/cheetah
      pombu report runs/cheetah-* --out cheetah.html
      pombu report runs/* --no-film --no-calibration
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    out: Path | None = None
    """The page (.html); None puts report.html into the first run folder."""
    film: bool = True
    """Film an episode of each run's last policy."""
    calibration: bool = True
    """Compare each run's uncertainty with real returns, which takes some episodes."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object with the page's path and the final returns."""

    def run(self) -> int:
        """Write the page and say where it is."""
        from pombu.analysis.report.page import build
        from pombu.files import write_atomic

        if not self.runs:
            raise UsageError("No run is named: give at least one run folder.")
        path = self.out or self.runs[0] / "report.html"
        if path.suffix not in {".html", ".htm"}:
            raise UsageError(f"{path} is no .html file: choose a name that ends so.")
        report = build(self.runs, self.film, self.calibration, self.env, _say)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, report.page.encode())
        if self.json:
            answer = {"report": str(path), "final_return": report.final_returns}
            print(json.dumps({**answer, "missing": report.missing}))
            return 0
        for reason in report.missing:
            print(reason)
        print(f"The report is {path}.")
        return 0


def _say(progress: str) -> None:
    print(progress, file=sys.stderr)
