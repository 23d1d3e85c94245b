"""`pombu plot`: learning curves of runs as a picture."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import tyro

from pombu.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Command:
    """Draw the learning curves of one or more runs.

    Runs that differ in their seed and length alone are taken for seeds of one
    experiment: each is drawn thin, their mean thick.

    Examples:
      pombu plot runs/cheetah
      pombu plot runs/cheetah-* --out curves.png
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    out: Path | None = None
    """Picture to write (.png, .pdf or .svg); None puts it into the first run folder."""
    json: bool = False
    """Print one JSON object with the picture's path and the final returns."""

    def run(self) -> int:
        """Draw and say where the picture is."""
        from pombu.analysis.curves import LAST, read_curves
        from pombu.analysis.plots import draw_learning

        if not self.runs:
            raise UsageError("No run is named: give at least one run folder.")
        curves = read_curves(self.runs)
        path = self.out or self.runs[0] / "returns.png"
        if path.suffix not in {".png", ".pdf", ".svg"}:
            raise UsageError(f"{path} is no .png, .pdf or .svg file: choose one.")
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_learning(curves).savefig(path)
        finals = {str(curve.run.path): curve.final() for curve in curves}
        if self.json:
            print(json.dumps({"picture": str(path), "final_return": finals}))
            return 0
        print(f"Final return: mean of the last {LAST} evaluations, with policy noise.")
        for name, value in finals.items():
            print(f"{name}: final return {value:.1f}")
        print(f"The picture is {path}.")
        return 0
