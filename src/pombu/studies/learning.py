"""A picture of runs as they learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.studies.comparing import by_label
from pombu.studies.curves import Curve
from pombu.studies.statistics import align
from pombu.studies.style import BLACK, CYCLE, grid, style, thousands

LINES = ("-", "--", ":")
"""One for each round of the colours."""
WIDEST = 35
"""Letters of a label that still lets two columns stand side by side."""


def draw_learning(
    curves: Sequence[Curve], reference: tuple[str, float] | None = None
) -> Figure:
    """Real return by real steps: every seed thin, the mean of a label thick."""
    with style():
        figure, axes = grid(1, 1, 5.2, 4.0)
        axis = axes[0, 0]
        for i, (label, group) in enumerate(by_label(curves).items()):
            again, colour = divmod(i, len(CYCLE))
            _draw_group(axis, label, group, CYCLE[colour], LINES[again % len(LINES)])
        if reference is not None:
            name, value = reference
            axis.axhline(value, color=BLACK, linestyle=":", linewidth=1.2, label=name)
        axis.set_xlabel("real steps")
        axis.set_ylabel("return of the stochastic policy")
        axis.set_title(", ".join(dict.fromkeys(curve.task for curve in curves)))
        axis.xaxis.set_major_formatter(thousands)
        names = axis.get_legend_handles_labels()[1]
        columns = 1 if max(map(len, names), default=0) > WIDEST else 2
        figure.legend(loc="outside lower center", ncols=columns)
    return figure


def _draw_group(
    axis: Any, label: str, group: Sequence[Curve], colour: str, line: str
) -> None:
    for curve in group:
        axis.plot(
            curve.column("real_steps"),
            curve.column("return_real"),
            color=colour,
            linestyle=line,
            linewidth=0.9,
            alpha=0.5 if len(group) > 1 else 1.0,
            label=None if len(group) > 1 else f"{label}, seed {curve.run.spec.seed}",
        )
    if len(group) > 1:
        steps, mean = mean_of(group)
        name = f"{label}, mean of {len(group)} seeds"
        axis.plot(steps, mean, color=colour, linestyle=line, label=name)


def mean_of(group: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds on common real steps, as far as every seed has come."""
    aligned = align([(c.column("real_steps"), c.column("return_real")) for c in group])
    if aligned is None:
        return np.zeros(0), np.zeros(0)
    return aligned.steps, aligned.values.mean(0)
