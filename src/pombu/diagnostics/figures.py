"""The three pictures of a diagnosis."""

import numpy as np
from matplotlib.figure import Figure

from pombu.diagnostics.measure import Measured
from pombu.diagnostics.words import disagreement_over_error, rank_correlation
from pombu.studies.style import BLACK, BLUE, CYCLE, GREY, VERMILLION, grid, style

NAMED = 6
"""Dimensions that are drawn one by one: those with the largest errors."""
DOTS = 4000
FLOOR = 1e-6


def error_by_horizon(measured: Measured) -> Figure:
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
            axis.plot(
                steps, error[:, dimension], color=colour, label=f"entry {dimension}"
            )
        axis.plot(
            steps, error.mean(1), color=BLACK, linestyle="--", label="mean of all"
        )
        axis.set_yscale("log")
        axis.set_xlabel("steps ahead")
        axis.set_ylabel("median error / std of the data")
        axis.set_title("Prediction error by horizon")
        axis.legend(loc="lower right", ncols=2)
    return figure


def trajectories(measured: Measured) -> Figure:
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
            axis.set_title(f"entry {dimension}")
        for axis in axes.ravel()[len(shown) :]:
            axis.set_axis_off()
        axes[0, 0].plot([], [], color=BLACK, label="real")
        axes[0, 0].plot([], [], color=BLUE, label="imagined")
        axes[0, 0].legend(loc="best")
        for axis in axes[-1]:
            axis.set_xlabel("steps ahead")
        figure.suptitle("The same actions in the real and in the learned world")
    return figure


def disagreement(measured: Measured) -> Figure:
    """Members' disagreement against their error, one dot per real step."""
    chosen = slice(None, None, max(len(measured.disagreement) // DOTS, 1))
    x = np.maximum(measured.disagreement[chosen], FLOOR)
    y = np.maximum(measured.one_step_error[chosen], FLOOR)
    ratio = disagreement_over_error(measured)
    rank = rank_correlation(measured.disagreement, measured.one_step_error)
    with style():
        figure, axes = grid(1, 1, 4.4, 3.8)
        axis = axes[0, 0]
        axis.scatter(x, y, s=5, color=BLUE, alpha=0.3, linewidths=0)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        axis.plot(ends, ends, color=VERMILLION, linewidth=1.2, label="equal")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("disagreement of the members")
        axis.set_ylabel("error of their mean")
        axis.set_title(
            f"One step: disagreement is {ratio:.2g} times the error,\n"
            f"rank correlation {rank:.2f}"
        )
        axis.legend(loc="best")
    return figure


def worst_dimensions(measured: Measured) -> list[int]:
    """The dimensions with the largest errors at the end, in the data's order."""
    order = np.argsort(measured.error[-1])[::-1][:NAMED]
    return sorted(int(dimension) for dimension in order)
