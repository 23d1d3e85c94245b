"""Learning curves of runs: read, summarise, draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.errors import UsageError
from pombu.studies.style import BLACK, CYCLE, grid, style
from pombu.training.metrics import Row, read_rows
from pombu.training.run import Run, open_run

LAST = 3
"""Evaluations whose mean is called a run's final return."""


@dataclass(frozen=True)
class Curve:
    """One run's rows."""

    run: Run
    rows: list[Row]

    @property
    def task(self) -> str:
        """The task's short name."""
        name = str(self.run.spec.config["env"]["id"])
        return name.removeprefix("pombu/").removesuffix("-v0")

    @property
    def label(self) -> str:
        """Algorithm and preset: runs of one label are seeds of one experiment.

        A task of pombu whose reward is learned all the same is another experiment.
        """
        label = f"{self.run.spec.algorithm} ({self.run.spec.preset})"
        config = self.run.spec.config
        own = str(config["env"]["id"]).startswith("pombu/")
        learned = config.get("model", {}).get("reward") == "learned"
        return f"{label}, learned reward" if own and learned else label

    @property
    def finished(self) -> bool:
        """Whether all real steps were taken."""
        return bool(self.rows) and (
            self.rows[-1]["real_steps"] >= self.run.spec.total_steps
        )

    def column(self, name: str) -> np.ndarray:
        """A metric by iteration; NaN where it was not measured."""
        return np.array([row.get(name, np.nan) for row in self.rows])

    def final(self, name: str = "return_real") -> float:
        """Mean of a metric over the last evaluations."""
        return float(np.mean(self.column(name)[-LAST:]))


def read_curves(folders: Sequence[Path]) -> list[Curve]:
    """Read the metrics of run folders.

    Raises:
        UsageError: A folder is no run, or has no finished iteration yet.
    """
    curves = []
    for folder in folders:
        run = open_run(folder)
        rows = read_rows(run.metrics)[1] if run.metrics.exists() else []
        if not rows:
            raise UsageError(
                f"{folder} has no finished iteration yet: wait for the first one, or "
                f"go on with `pombu resume {folder}`."
            )
        curves.append(Curve(run, rows))
    return curves


def by_label(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Group the seeds of an experiment."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.label, []).append(curve)
    return groups


def draw_returns(
    curves: Sequence[Curve], reference: tuple[str, float] | None = None
) -> Figure:
    """Real return by real steps: every seed thin, the mean of a label thick."""
    with style():
        figure, axes = grid(1, 1, 5.2, 3.4)
        axis = axes[0, 0]
        for (label, group), colour in zip(
            by_label(curves).items(), CYCLE * 3, strict=False
        ):
            _draw_group(axis, label, group, colour)
        if reference is not None:
            name, value = reference
            axis.axhline(value, color=BLACK, linestyle=":", linewidth=1.2, label=name)
        axis.set_xlabel("real steps")
        axis.set_ylabel("return of the stochastic policy")
        axis.set_title(", ".join(dict.fromkeys(curve.task for curve in curves)))
        axis.xaxis.set_major_formatter(_thousands)
        axis.legend(loc="best")
    return figure


def _draw_group(axis: Any, label: str, group: Sequence[Curve], colour: str) -> None:
    for curve in group:
        axis.plot(
            curve.column("real_steps"),
            curve.column("return_real"),
            color=colour,
            linewidth=0.9,
            alpha=0.5 if len(group) > 1 else 1.0,
            label=None if len(group) > 1 else f"{label}, seed {curve.run.spec.seed}",
        )
    if len(group) > 1:
        steps, mean = mean_curve(group)
        axis.plot(
            steps, mean, color=colour, label=f"{label}, mean of {len(group)} seeds"
        )


def mean_curve(group: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds on common real steps, as far as every seed has come."""
    end = min(curve.rows[-1]["real_steps"] for curve in group)
    steps = np.unique(np.concatenate([c.column("real_steps") for c in group]))
    steps = steps[steps <= end]
    seeds = [
        np.interp(steps, c.column("real_steps"), c.column("return_real")) for c in group
    ]
    return steps, np.mean(seeds, 0)


def _thousands(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if value else "0"
