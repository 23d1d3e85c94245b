"""The figures of a diagnosis, by the name of their files."""

import numpy as np
from matplotlib.figure import Figure

from pombu.analysis.diagnosis import (
    FLOOR,
    Measurements,
    Reliability,
    disagreement_over_error,
    step_sizes,
    worst_dimensions,
)
from pombu.analysis.plots import BLACK, BLUE, CYCLE, GREY, VERMILLION, grid, style

DOTS = 4000
"""Points of a cloud, at most."""


def draw_figures(measured: Measurements) -> dict[str, Figure]:
    """All figures, by the name of their files."""
    figures = {
        "error-by-horizon": _draw_errors(measured),
        "trajectories": _draw_trajectories(measured),
        "returns": _draw_returns(measured),
    }
    if measured.members > 1:
        figures["disagreement"] = _draw_disagreement(measured)
    if measured.reliability is not None:
        figures["reliability"] = _draw_reliability(measured.reliability)
    return figures


def _draw_errors(measured: Measurements) -> Figure:
    """Open-loop prediction error of every dimension, the worst of them by name."""
    steps = np.arange(1, len(measured.error) + 1)
    error = np.maximum(measured.error, FLOOR)
    worst = worst_dimensions(measured)
    with style():
        figure, axes = grid(1, 1, 5.2, 3.4)
        axis = axes[0, 0]
        for dimension in range(error.shape[1]):
            if dimension not in worst:
                axis.plot(steps, error[:, dimension], color=GREY, linewidth=0.6)
        for dimension, colour in zip(worst, CYCLE, strict=False):
            name = measured.names[dimension]
            axis.plot(steps, error[:, dimension], color=colour, label=name)
        axis.plot(
            steps, error.mean(1), color=BLACK, linestyle="--", label="mean of all"
        )
        axis.set_yscale("log")
        axis.set_xlabel("steps ahead")
        axis.set_ylabel("median error / std of the data")
        axis.set_title("Prediction error by horizon")
        axis.legend(loc="lower right", ncols=2)
    return figure


def _draw_trajectories(measured: Measurements) -> Figure:
    """A real trajectory, and what each member makes of its start and actions."""
    shown = worst_dimensions(measured)
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    steps = np.arange(len(measured.real))
    with style():
        figure, axes = grid(rows, columns, 3.0, 2.2)
        for axis, dimension in zip(axes.ravel(), shown, strict=False):
            real = measured.real[:, dimension]
            members = measured.predicted[:, :, dimension]
            axis.plot(steps, members, color=BLUE, linewidth=0.9, alpha=0.7)
            axis.plot(steps, real, color=BLACK)
            margin = 0.5 * max(float(np.ptp(real)), 1e-3)
            axis.set_ylim(real.min() - margin, real.max() + margin)
            axis.set_title(measured.names[dimension])
        for axis in axes.ravel()[len(shown) :]:
            axis.set_axis_off()
        axes[0, 0].plot([], [], color=BLACK, label="real")
        axes[0, 0].plot([], [], color=BLUE, label="imagined")
        axes[0, 0].legend(loc="best")
        for axis in axes[-1]:
            axis.set_xlabel("steps ahead")
        figure.suptitle("The same actions in the real and in the learned dynamics")
    return figure


def _draw_disagreement(measured: Measurements) -> Figure:
    """Members' disagreement against their error, one dot per real step."""
    spread, error = step_sizes(measured)
    chosen = slice(None, None, max(len(spread) // DOTS, 1))
    x, y = np.maximum(spread[chosen], FLOOR), np.maximum(error[chosen], FLOOR)
    with style():
        figure, axes = grid(1, 1, 4.4, 3.8)
        axis = axes[0, 0]
        axis.scatter(x, y, s=5, color=BLUE, alpha=0.3, linewidths=0)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        line = "disagreement equals the error"
        axis.plot(ends, ends, color=VERMILLION, linewidth=1.2, label=line)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("disagreement / std of the change")
        axis.set_ylabel("error of the members' mean / std of the change")
        axis.set_title(
            "One step ahead, a dot per real step:\ndisagreement is typically "
            f"{disagreement_over_error(measured):.2g} times the error"
        )
        axis.legend(loc="best")
    return figure


def _draw_returns(measured: Measurements) -> Figure:
    """What the learned dynamics promises from each start, and what came."""
    promised = measured.imagined_returns
    kept = np.isfinite(promised).any(1)
    real = measured.real_returns[kept]
    with style():
        figure, axes = grid(1, 1, 4.4, 3.8)
        axis = axes[0, 0]
        for start, came in zip(promised[kept], real, strict=True):
            axis.plot(start, np.full(len(start), came), ".", color=GREY, markersize=3)
        means = np.array([np.nanmean(start) for start in promised[kept]])
        axis.plot(means, real, "o", color=BLUE, label="mean of a start's promises")
        if len(real):
            ends = [min(means.min(), real.min()), max(means.max(), real.max())]
            axis.plot(ends, ends, color=VERMILLION, linewidth=1.2, label="equal")
        axis.set_xlabel("return in the learned dynamics")
        axis.set_ylabel("return of the real episode")
        axis.set_title("Promised and real returns from the same starts")
        axis.legend(loc="best")
    return figure


def _draw_reliability(found: Reliability) -> Figure:
    """Share of errors of n-step returns inside intervals of every level."""
    with style():
        figure, axes = grid(1, 1, 4.4, 3.8)
        axis = axes[0, 0]
        axis.plot([0, 1], [0, 1], color=BLACK, linewidth=0.8, label="calibrated")
        axis.plot(found.nominal, found.plain, color=GREY, label="sqrt(U)")
        if found.corrected is not None:
            axis.plot(
                found.nominal, found.corrected, color=BLUE, label="corrected by the run"
            )
        axis.set_xlabel("level of the interval")
        axis.set_ylabel("errors inside")
        axis.set_title("Reliability: errors of n-step returns, new episodes")
        axis.legend(loc="best")
    return figure
