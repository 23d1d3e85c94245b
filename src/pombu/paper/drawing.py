"""Drawing the paper's items: panels of learning curves, and tables as pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from pombu.analysis.plots import BLACK, GREY, grid, thousands
from pombu.analysis.statistics import interval
from pombu.paper.experiments import Arm, Panel
from pombu.paper.panel_runs import Group, Results

STAND_IN_NOTE = "smoke profile: Point2D stands in"


def draw_returns(
    results: Results, columns: int = 2, seeds: bool = False, published: bool = True
) -> Figure:
    """Return by real steps, one axis per panel and one legend below all of them.

    A panel without any run has no axis; the item's line says that it is missing. Where
    the panels' arms differ but look alike, every axis has a legend of its own.

    Args:
        results: what to draw.
        columns: axes per row.
        seeds: every seed as a line of its own; else the mean, and one standard
            deviation around it.
        published: the paper's final numbers as diamonds at the right edge.
    """
    panels = [panel for panel in results.panels if results.of(panel)]
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width, height = (5.6, 3.8) if len(panels) == 1 else (4.3, 3.2)
    figure, axes = grid(rows, columns, width=width, height=height)
    for panel, axis in zip(panels, axes.flat, strict=False):
        draw_panel(axis, panel, results.of(panel), seeds, published)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for row in axes:
        row[0].set_ylabel("return")
    shared = not _looks_clash(results.groups)
    if not shared:
        for panel, axis in zip(panels, axes.flat, strict=False):
            axis.legend(
                handles=_lines(results.of(panel)), loc="lower center", fontsize=8
            )
    add_legend(figure, results.groups if shared else (), published, results.groups)
    return figure


def draw_panel(
    axis: Any, panel: Panel, groups: Sequence[Group], seeds: bool, published: bool
) -> None:
    """One task: curves, "max" lines, final returns and the paper's numbers."""
    for group in groups:
        if group.arm.extended:
            _draw_max(axis, group)
        elif seeds:
            _draw_seeds(axis, group)
        else:
            draw_band(axis, group)
    if published:
        _draw_finals(axis, panel, groups)
    note = f"{STAND_IN_NOTE}, " if panel.preset == "smoke" else ""
    axis.set_title(f"{panel.title}\n({note}{count_seeds(groups)})")
    axis.set_xlabel("real steps")
    axis.xaxis.set_major_formatter(thousands)


def draw_band(
    axis: Any, group: Group, metric: str = "return_real", by: str = "real_steps"
) -> None:
    """The mean over seeds, and one standard deviation to both sides."""
    aligned = group.aligned(metric, by)
    if aligned is None:
        return
    mean, std = aligned.mean, aligned.std
    axis.plot(aligned.steps, mean, **group.arm.look)
    if len(group.curves) > 1:
        axis.fill_between(
            aligned.steps,
            mean - std,
            mean + std,
            color=group.arm.colour,
            alpha=0.15,
            linewidth=0,
        )


def _draw_seeds(axis: Any, group: Group) -> None:
    """Every seed as a line."""
    for curve in group.curves:
        axis.plot(
            curve.column("real_steps"),
            curve.column("return_real"),
            color=group.arm.colour,
            linestyle=group.arm.line,
            linewidth=1.1,
        )


def _draw_max(axis: Any, group: Group) -> None:
    """The best mean of a long training, as a line across."""
    best = float(at_best_mean(group).mean())
    axis.axhline(best, color=group.arm.colour, linestyle=":", linewidth=1.4)


def at_best_mean(group: Group) -> np.ndarray:
    """Every seed's return where the mean over seeds is best."""
    aligned = group.aligned()
    if aligned is None:
        return group.finals
    return np.asarray(aligned.values[:, int(np.argmax(aligned.mean))])


def _draw_finals(axis: Any, panel: Panel, groups: Sequence[Group]) -> None:
    """Beside the end, arm by arm: our final return and the paper's.

    Ours is a dot with the bootstrap interval of its mean, where there are seeds enough
    for one; the paper's is a diamond with its standard deviation.
    """
    ours = {group.arm.label: group for group in groups if not group.arm.extended}
    arms = [a for a in panel.arms if a.label in ours or a.label in panel.published]
    gap = 0.04 * panel.total_steps
    for i, arm in enumerate(arms, 1):
        place = panel.total_steps + i * gap
        if arm.label in ours:
            _draw_interval(axis, place, ours[arm.label])
        if arm.label in panel.published:
            theirs = panel.published[arm.label]
            axis.errorbar(
                place + 0.3 * gap,
                theirs.mean,
                theirs.std,
                color=arm.colour,
                marker="D",
                markersize=4,
                markerfacecolor="white",
                elinewidth=1,
                capsize=2,
            )
    axis.axvline(panel.total_steps + gap / 2, color=GREY, linewidth=0.6)
    axis.set_xlim(-0.02 * panel.total_steps, panel.total_steps + (len(arms) + 1) * gap)
    ticks = [tick for tick in axis.get_xticks() if 0 <= tick <= panel.total_steps]
    axis.set_xticks(ticks)


def _draw_interval(axis: Any, place: float, group: Group) -> None:
    found = interval(lambda finals: float(finals.mean()), group.finals[:, None])
    if found.low is not None and found.high is not None:
        axis.vlines(place, found.low, found.high, color=group.arm.colour, linewidth=1.4)
    axis.plot(place, found.value, "o", color=group.arm.colour, markersize=3.5)


def count_seeds(groups: Sequence[Group]) -> str:
    """How many seeds the curves of an axis have."""
    numbers = sorted({len(group.curves) for group in groups})
    if not numbers:
        return "no run yet"
    several = "s" if numbers[-1] > 1 else ""
    return (
        f"{' to '.join(map(str, numbers[:: max(len(numbers) - 1, 1)]))} seed{several}"
    )


def add_legend(
    figure: Figure,
    groups: Sequence[Group],
    published: bool,
    all_groups: Sequence[Group] = (),
) -> None:
    """One legend for all axes, below them.

    Args:
        figure: with axes that are drawn already.
        groups: whose lines are named.
        published: whether final returns stand beside the curves' ends.
        all_groups: what is drawn, where that is more than is named.
    """
    handles = _lines(groups)
    drawn = [group for group in (all_groups or groups) if group.curves]
    if published and drawn:
        handles.append(_mark("o", "ours, 95 % interval", BLACK))
    if published and any(group.panel.published for group in drawn):
        handles.append(_mark("D", "the paper's, ± std", "white"))
    if not handles:
        return
    # An inch holds some fourteen letters; more columns would be cut off.
    widest = max(len(str(handle.get_label())) for handle in handles)
    columns = int(figure.get_figwidth() / (0.55 + widest / 16))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(min(len(handles), columns), 1),
    )


def _lines(groups: Sequence[Group]) -> list[Line2D]:
    drawn: dict[str, Arm] = {}
    for group in groups:
        if group.curves:
            drawn.setdefault(group.arm.label, group.arm)
    return [
        Line2D(
            [],
            [],
            color=arm.colour,
            linestyle=":" if arm.extended else arm.line,
            label=arm.label,
        )
        for arm in drawn.values()
    ]


def _mark(marker: str, label: str, face: str) -> Line2D:
    return Line2D(
        [],
        [],
        color=BLACK,
        marker=marker,
        markersize=4,
        markerfacecolor=face,
        linestyle="",
        label=label,
    )


def _looks_clash(groups: Sequence[Group]) -> bool:
    """Whether two arms with different names have the same colour and line."""
    arms = [group.arm for group in groups if group.curves and not group.arm.extended]
    looks = {arm.label: repr(arm.look) for arm in arms}
    return len(set(looks.values())) < len(looks)


def draw_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> Figure:
    """A table as a picture; a row whose name is empty belongs to the one above."""
    widths = [
        max(len(header[i]), *(len(row[i]) for row in rows)) + 2
        for i in range(len(header))
    ]
    height = 0.30 * (len(rows) + 1) + (0.35 if note else 0.1)
    figure = Figure(figsize=(max(0.085 * sum(widths), 5.0), height))
    axis = figure.subplots()
    axis.set_axis_off()
    made = axis.table(
        cellText=[list(row) for row in rows],
        colLabels=list(header),
        colWidths=[width / sum(widths) for width in widths],
        cellLoc="center",
        bbox=Bbox.unit(),
        edges="horizontal",
    )
    made.auto_set_font_size(False)
    made.set_fontsize(9)
    for (row, column), cell in made.get_celld().items():
        cell.set_edgecolor("#444444")
        starts = row == 0 or bool(rows[row - 1][0])
        cell.visible_edges = ("T" if starts else "") + ("B" if row == len(rows) else "")
        if row == 0 or column == 0:
            cell.set_text_props(weight="bold")
    if note:
        figure.supxlabel(note, fontsize=8)
    return figure


def spread(mean: float, std: float, seeds: int, due: int) -> str:
    """A number of a table, which names its seeds where they are fewer than due."""
    digits = 1 if abs(mean) < 200 else 0
    if seeds == 1:
        return f"{mean:.{digits}f} (1 seed)"
    few = f" ({seeds} seeds)" if seeds < due else ""
    return f"{mean:.{digits}f} ± {std:.{digits}f}{few}"
