"""Learning curves of runs: read and summarise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pombu.envs import short_name
from pombu.errors import UsageError
from pombu.training.metrics import Row, read_rows
from pombu.training.run import CONFIG, Run, open_run

STUDY_FILES = ("study.json", "study.lock")
"""What a study leaves beside its run folders."""
LAST = 3
"""Evaluations whose mean is called a run's final return."""


@dataclass(frozen=True)
class Curve:
    """One run's rows."""

    run: Run
    rows: list[Row]
    cut_at: int | None = None
    """Real steps at which the rest was left out; None leaves out nothing."""

    @property
    def task(self) -> str:
        """The task's short name."""
        return short_name(str(self.run.spec.config["env"]["id"]))

    @property
    def label(self) -> str:
        """Algorithm and preset, and whether a known reward is learned all the same."""
        label = f"{self.run.spec.algorithm} ({self.run.spec.preset})"
        config = self.run.spec.config
        own = str(config["env"]["id"]).startswith("pombu/")
        learned = config.get("model", {}).get("reward") == "learned"
        return f"{label}, learned reward" if own and learned else label

    @property
    def finished(self) -> bool:
        """Whether all real steps were taken, or all up to where it was cut."""
        steps = self.run.spec.total_steps
        due = steps if self.cut_at is None else min(steps, self.cut_at)
        return bool(self.rows) and self.rows[-1]["real_steps"] >= due

    def until(self, steps: int) -> "Curve":
        """What a run of so many real steps leaves: its last row is at or beyond."""
        before = [0.0, *(row["real_steps"] for row in self.rows[:-1])]
        pairs = zip(before, self.rows, strict=True)
        return replace(
            self, rows=[row for taken, row in pairs if taken < steps], cut_at=steps
        )

    def column(self, name: str) -> np.ndarray:
        """A metric by iteration; NaN where it was not measured."""
        return np.array([row.get(name, np.nan) for row in self.rows])

    @property
    def hours(self) -> float:
        """Wall-clock time of all iterations."""
        return float(np.nansum(self.column("iteration_seconds"))) / 3600

    def needed(self, target: float) -> int | None:
        """Real steps before the first evaluation that reached a return."""
        reached = np.flatnonzero(self.column("return_real") >= target)
        return int(self.column("real_steps")[reached[0]]) if len(reached) else None

    def final(self, name: str = "return_real") -> float:
        """Mean of a metric over the last evaluations."""
        return float(np.mean(self.column(name)[-LAST:]))


def read_curves(folders: Sequence[Path]) -> list[Curve]:
    """Read the metrics of run folders, or of folders that hold some, as a study's does.

    Raises:
        UsageError: A folder is no run and holds none, or a run has no finished
            iteration yet.
    """
    curves = []
    for folder in folders:
        for path in _runs_of(folder):
            run = open_run(path)
            rows = read_rows(run.metrics)[1] if run.metrics.exists() else []
            if not rows:
                raise UsageError(
                    f"{path} has no finished iteration yet: wait for the first one, or "
                    f"go on with `pombu resume {run.named}`."
                )
            curves.append(Curve(run, rows))
    return curves


def _runs_of(folder: Path) -> list[Path]:
    if folder.name in STUDY_FILES:
        return []  # `pombu plot STUDY/*` names them as well
    if (folder / CONFIG).exists():
        return [folder]
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    return inside or [folder]
