"""Appendix C: the true uncertainty and its bounds on the chain, by horizon."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from pombu.analysis import plots
from pombu.analysis.plots import BLACK, BLUE, GREEN, GREY, VERMILLION, grid, style
from pombu.paper import Profile
from pombu.paper.experiments import Reproduction
from pombu.paper.reproduce import write_provenance
from pombu.uncertainty.tabular import (
    chain,
    exact_bound,
    pombu_bound,
    posterior_variance,
    ube_bound,
)


@dataclass(frozen=True)
class ChainSettings:
    """The experiment."""

    horizons: tuple[int, ...] = (2, 4, 8, 16)
    drawn_chain: int = 4


PROFILES: dict[Profile, ChainSettings] = {
    "smoke": ChainSettings(horizons=(2, 4)),
    "fast": ChainSettings(),
    "paper": ChainSettings(),
}


@dataclass(frozen=True)
class Curves:
    """Variances of Q(s_i, a_1) at the first step, i = 0..H."""

    horizon: int
    D: np.ndarray
    W: np.ndarray
    U: np.ndarray
    B: np.ndarray

    @property
    def end(self) -> dict[str, float]:
        """The row of the start state s_H."""
        D, W, U, B = (float(x[-1]) for x in (self.D, self.W, self.U, self.B))
        return {"D": D, "W": W, "U": U, "B": B, "U/D": U / D, "B/D": B / D}


def _reproduce(profile: Profile, out: Path) -> dict[str, Any]:
    """Compute, draw and write everything."""
    settings = PROFILES[profile]
    curves = [_solve(H) for H in settings.horizons]
    summary = {f"H={c.horizon}": c.end for c in curves}
    with style():
        plots.save_figure(_draw_bounds(curves), out, "appendix-c")
        plots.save_figure(_draw_chain(settings.drawn_chain), out, "possible-mdps")
    plots.write_csv(
        out / "appendix-c.csv",
        ("horizon", "state", "D", "W", "U", "B"),
        [
            (c.horizon, i, *(repr(float(x[i])) for x in (c.D, c.W, c.U, c.B)))
            for c in curves
            for i in range(c.horizon + 1)
        ],
    )
    plots.write_json(out / "summary.json", summary)
    write_provenance(out, "appendix-c", profile, settings)
    return summary


def _tell(numbers: dict[str, Any]) -> str:
    """The longest chain."""
    name, end = list(numbers.items())[-1]
    return (
        f"{name.replace('=', ' = ')}: the true variance of Q is {end['D']:.3f}, the "
        f"bound U {end['U']:.3f} ({end['U/D']:.2f} times), UBE's B {end['B']:.3g} "
        f"({end['B/D']:.3g} times)"
    )


def _solve(H: int) -> Curves:
    """All four quantities at (s_0..s_H, a_1), h = 1, under the uniform policy."""
    posterior, policy = chain(H)
    quantities = (posterior_variance, exact_bound, pombu_bound, ube_bound)
    D, W, U, B = (f(posterior, policy, H)[0, : H + 1, 1] for f in quantities)
    return Curves(H, D, W, U, B)


def _draw_bounds(curves: list[Curves]) -> Figure:
    """Top: all bounds. Bottom: what the top cannot show, D = W just below U.

    The variance is 0 at s_0, so the panels begin at s_1.
    """
    figure, axes = grid(2, len(curves), width=2.6, height=2.2, sharey="row")
    for column, c in zip(axes.T, curves, strict=True):
        i = np.arange(1, c.horizon + 1)
        for ax in column:
            ax.plot(i, c.U[1:], color=BLUE, marker="^", ms=4, label="U (POMBU)")
            ax.plot(i, c.D[1:], color=BLACK, marker="o", ms=3, label="D (true)")
            ax.plot(i, c.W[1:], "o", color=GREEN, ms=8, mfc="none", label="W (exact)")
            ax.set_xticks(i if c.horizon <= 8 else i[1::2])
        top, bottom = column
        top.plot(i, c.B[1:], color=VERMILLION, marker="s", ms=4, label="B (UBE)")
        top.set(yscale="log", title=f"H = {c.horizon}")
        bottom.set(xlabel="state index i")
    axes[1, 0].set_ylim(0, 1.1 * max(c.U.max() for c in curves))
    axes[0, 0].set_ylabel("variance, log scale")
    axes[1, 0].set_ylabel("variance")
    figure.suptitle("Variance of $Q(s_i, a_1)$ at the first step, and its bounds")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw_chain(H: int) -> Figure:
    """The possible MDPs: at every s_i a fair coin picks one of two models."""
    figure = Figure(figsize=(6.0, 2.7))
    ax = figure.subplots()
    ax.set(xlim=(-0.4, H + 0.4), ylim=(-1.6, 0.9), aspect="equal")
    ax.axis("off")
    end = (H / 2, -1.3)
    for i in range(H + 1):
        x = float(H - i)
        if i > 0:
            _arrow(ax, (x, 0.0), (x + 1, 0.0), BLUE, "-")
            ax.text(x + 0.5, 0.14, "$a_1$, r = 1", ha="center", color=BLUE)
        _arrow(ax, (x, 0.0), end, GREY, "--")
        _state(ax, (x, 0.0), f"$s_{{{i}}}$")
    _state(ax, end, "$s_t$")
    lines = [
        Line2D([], [], color=BLUE, label="model $f_2$ under $a_1$"),
        Line2D([], [], color=GREY, ls="--", label="model $f_1$; $f_2$ under $a_0$"),
    ]
    ax.legend(handles=lines, loc="upper center", ncols=2)
    ax.set_title("Every state $s_i$, i > 0, draws $f_1$ or $f_2$ by its own fair coin")
    return figure


def _state(ax: Any, at: tuple[float, float], label: str) -> None:
    ax.plot(*at, "o", ms=24, mfc="white", mec=BLACK, mew=1.2, zorder=3)
    ax.text(*at, label, ha="center", va="center", zorder=4)


def _arrow(
    ax: Any, start: tuple[float, float], end: tuple[float, float], color: str, line: str
) -> None:
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11)
    arrow.set(color=color, linestyle=line, linewidth=1.2, zorder=2)
    arrow.shrinkA = arrow.shrinkB = 13
    ax.add_patch(arrow)


APPENDIX_C = Reproduction(
    "appendix-c",
    "Appendix C: true variance and bounds on the chain, H = 2, 4, 8, 16 (seconds)",
    "paper",
    reproduce=_reproduce,
    tell=_tell,
    redraw=lambda profile, kept, out: _reproduce(profile, out),
)
