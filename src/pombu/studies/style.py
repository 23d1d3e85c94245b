"""One look for every figure: readable, labelled, safe for colour-blind readers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

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
