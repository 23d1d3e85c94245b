"""Figures and tables as files: one style for all, and learning curves of runs."""

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
