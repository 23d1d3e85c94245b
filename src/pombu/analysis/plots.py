"""Figures and tables as files, in one style: learning curves, and a run's diagnosis."""

import csv
import dataclasses
import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure

from pombu.analysis.curves import Curve, by_label
from pombu.analysis.diagnosis import (
    FLOOR,
    Measurements,
    Reliability,
    disagreement_over_error,
    step_sizes,
    worst_dimensions,
)
from pombu.analysis.statistics import align
from pombu.uncertainty.calibration import coverage_curve

# Okabe and Ito's palette.
BLACK = "#000000"
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILLION = "#D55E00"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
GREY = "#8A8A8A"
CYCLE = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)

_SETTINGS: Any = {
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "pdf.fonttype": 42,
    "savefig.dpi": 160,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw inside this block to get the project's look, without touching global state.

    The settings are read when axes are made, so make them inside too.
    """
    with matplotlib.rc_context(_SETTINGS):
        yield


def grid(
    rows: int, columns: int, width: float = 2.7, height: float = 2.5, **options: Any
) -> tuple[Figure, Any]:
    """A figure with ``rows x columns`` axes, each ``width x height`` inches."""
    figure = Figure(figsize=(columns * width, rows * height))
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def thousands(value: float, _: int) -> str:
    """Real steps on an axis."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


DOTS = 4000
"""Points of a cloud, at most."""
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
        chance = random_return(curves)
        if chance is not None:
            axis.axhline(
                chance, color=GREY, linestyle="-.", linewidth=1.0, label="random policy"
            )
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
            *_measured_returns(curve),
            color=colour,
            linestyle=line,
            linewidth=0.9,
            alpha=0.5 if len(group) > 1 else 1.0,
            label=None if len(group) > 1 else f"{label}, seed {curve.run.spec.seed}",
        )
    if len(group) > 1:
        steps, mean = _mean_of(group)
        name = f"{label}, mean of {len(group)} seeds"
        axis.plot(steps, mean, color=colour, linestyle=line, label=name)


def _measured_returns(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Real steps and returns of the iterations that were evaluated."""
    returns = curve.column("return_real")
    measured = ~np.isnan(returns)
    return curve.column("real_steps")[measured], returns[measured]


def random_return(curves: Sequence[Curve]) -> float | None:
    """A random policy's mean return; None for several tasks, or if none was measured.

    A run's environment may differ from others' by its options, so that only one config
    of it counts as one task.
    """
    tasks = {json.dumps(curve.run.spec.config["env"]) for curve in curves}
    measured = [curve.random for curve in curves if not math.isnan(curve.random)]
    return float(np.mean(measured)) if measured and len(tasks) == 1 else None


def _mean_of(group: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds on common real steps, as far as every seed has come."""
    aligned = align([_measured_returns(curve) for curve in group])
    if aligned is None:
        return np.zeros(0), np.zeros(0)
    return aligned.steps, aligned.values.mean(0)


def draw_reliability(error: Any, sigma: Any, title: str = "") -> Figure:
    """Reliability diagram: the share of errors inside intervals of every level."""
    nominal, covered = coverage_curve(error, sigma)
    with style():
        figure, axes = grid(1, 1)
        ax = axes[0, 0]
        ax.plot([0, 1], [0, 1], color=BLACK, linewidth=0.8, label="calibrated")
        ax.plot(nominal, covered, color=BLUE, label="observed")
        ax.set(title=title, xlabel="level of the interval", ylabel="errors inside")
        ax.legend()
    return figure


def draw_diagnosis(measured: Measurements) -> dict[str, Figure]:
    """All figures of a diagnosis, by the name of their files."""
    figures = {
        "error-by-horizon": _draw_errors(measured),
        "trajectories": _draw_trajectories(measured),
        "returns": _draw_returns(measured),
    }
    if measured.members > 1:
        figures["disagreement"] = _draw_disagreement(measured)
    if measured.reliability is not None:
        figures["reliability"] = _draw_coverage(measured.reliability)
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


def _draw_coverage(found: Reliability) -> Figure:
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


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write the figure as PNG and as PDF; the same figure gives the same bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    figure.savefig(paths[0], metadata={"Software": None})
    figure.savefig(paths[1], metadata={"CreationDate": None, "Producer": None})
    return paths


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> Path:
    """Write a table; a name that ends in .gz is compressed, without a time stamp."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write JSON; numbers that are not finite become null, as JSON has none."""
    path.write_text(json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")
    return path


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as it stands in a Markdown page."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value
