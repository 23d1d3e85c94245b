"""Charts of a report as plain data in Plotly's format, and the runs in them.

A trace names the runs it speaks of in `meta.runs`; the page shows it while all of them
are shown. Plotly reads some HTML in texts, so every name is escaped here.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.analysis.curves import Curve, groups_alike, labels_of
from pombu.analysis.plots import BLACK, CYCLE, GREY, random_return
from pombu.analysis.report.measure import Calibrated
from pombu.analysis.statistics import DRAWS, LEVEL, align
from pombu.dynamics.error import HORIZONS
from pombu.uncertainty.calibration import coverage_curve

Trace = dict[str, Any]

_TOTALS = ("iteration_seconds", "elapsed_seconds")
_THIN, _NORMAL, _THICK = 1.2, 2.0, 3.0
_LOGARITHMIC = {"type": "log", "nticks": 6, "exponentformat": "power"}
# Black would vanish on a dark page.
_COLOURS = tuple(colour for colour in CYCLE if colour != BLACK)


@dataclass(frozen=True)
class Entry:
    """One run in the report."""

    number: int
    curve: Curve
    name: str
    colour: str


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in their seed and length alone."""

    label: str
    colour: str
    entries: tuple[Entry, ...]


def arrange(curves: Sequence[Curve]) -> list[Experiment]:
    """Group runs into experiments, and name and colour both.

    A colour stands for an experiment; where there is only one, for a run.
    """
    groups = groups_alike(curves)
    labels = labels_of([curves[numbers[0]] for numbers in groups])
    names = _names(curves)
    alone = len(groups) == 1
    experiments = []
    for index, (label, numbers) in enumerate(zip(labels, groups, strict=True)):
        entries = tuple(
            Entry(n, curves[n], names[n], _colour(n if alone else index))
            for n in numbers
        )
        several = alone and len(entries) > 1
        experiments.append(
            Experiment(label, GREY if several else entries[0].colour, entries)
        )
    return experiments


def entries_of(experiments: Sequence[Experiment]) -> list[Entry]:
    """All runs, in the order in which they were given."""
    every = [entry for one in experiments for entry in one.entries]
    return sorted(every, key=lambda entry: entry.number)


def _names(curves: Sequence[Curve]) -> list[str]:
    """Folder names; whole paths where these are not unique."""
    short = [curve.run.path.resolve().name for curve in curves]
    return [
        name if short.count(name) == 1 else str(curve.run.path)
        for name, curve in zip(short, curves, strict=True)
    ]


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


@dataclass(frozen=True)
class Band:
    """A curve and the interval around it."""

    steps: Float64[ndarray, " n"]
    middle: Float64[ndarray, " n"]
    low: Float64[ndarray, " n"]
    high: Float64[ndarray, " n"]


def _finite(
    curve: Curve, name: str
) -> tuple[Float64[ndarray, " n"], Float64[ndarray, " n"]]:
    """Real steps and values of a metric, where it was measured."""
    steps = curve.column("real_steps").astype(np.float64)
    values = curve.column(name).astype(np.float64)
    measured = np.isfinite(values)
    return steps[measured], values[measured]


def over_seeds(curves: Sequence[Curve]) -> Band | None:
    """The mean over runs, as far as all have come, and its percentile bootstrap.

    None where the runs have no real steps in common.
    """
    aligned = align([_finite(curve, "return_real") for curve in curves])
    if aligned is None:
        return None
    steps, runs = aligned.steps, aligned.values
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(runs), size=(DRAWS, len(runs)))
    # A mean of drawn runs is a weighted mean of all of them: no large copies.
    weights = np.stack([(drawn == run).mean(1) for run in range(len(runs))], 1)
    low, high = np.quantile(weights @ runs, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Band(steps, runs.mean(0), low, high)


def over_episodes(curve: Curve) -> Band | None:
    """One run's return, plus or minus one standard deviation over its episodes."""
    steps, returns = _finite(curve, "return_real")
    spread_steps, spread = _finite(curve, "return_real_std")
    if not len(steps) or not np.array_equal(steps, spread_steps):
        return None
    return Band(steps, returns, returns - spread, returns + spread)


@dataclass(frozen=True)
class Chart:
    """One drawing: Plotly's traces and layout, and the heading above it."""

    title: str
    traces: list[Trace]
    layout: dict[str, Any]
    wide: bool = field(default=False)


def learning_curves(experiments: Sequence[Experiment]) -> Chart:
    """Real return by real steps: seeds thin, means thick, intervals shaded."""
    traces: list[Trace] = []
    for one in experiments:
        curves = [entry.curve for entry in one.entries]
        alone = len(curves) == 1
        band = over_episodes(curves[0]) if alone else over_seeds(curves)
        numbers = [entry.number for entry in one.entries]
        if band is not None:
            traces.append(_interval(band, one.colour, numbers))
        if alone:
            named = {"name": _plain(one.label), "showlegend": True}
            traces += [t | named for t in _lines(one.entries, "return_real")]
            continue
        traces += _lines(one.entries, "return_real", width=_THIN)
        if band is not None:
            name = f"{one.label}, mean of {len(curves)} seeds"
            trace = _line(band.steps, band.middle, name, one.colour, numbers, _THICK)
            traces.append({**trace, "showlegend": True})
    traces += _chance(entries_of(experiments))
    return Chart("Return of the stochastic policy", traces, _by_steps("return"), True)


def _chance(entries: Sequence[Entry]) -> list[Trace]:
    """A random policy's return as a line across the chart, where it is known."""
    level = random_return([entry.curve for entry in entries])
    if level is None:
        return []
    most = max(float(entry.curve.rows[-1]["real_steps"]) for entry in entries)
    line = _line([0, most], [level] * 2, "random policy", GREY, [], _THIN)
    line["line"]["dash"] = "dashdot"
    return [{**line, "mode": "lines", "showlegend": True}]


def overfitting(experiments: Sequence[Experiment]) -> Chart:
    """What the model promised (dashed) and what the real environment gave (solid)."""
    entries = entries_of(experiments)
    real = _lines(entries, "return_real")
    whole = [entry for entry in entries if _imagines_episodes(entry)]
    model = _lines(whole, "return_model", dash="dash", suffix=", in the model")
    # No legend entry without a line: fast presets imagine no whole episodes.
    keys = [_key("in the real environment", "solid")] if real else []
    keys += [_key("in the model", "dash")] if model else []
    title = "Return in the model and in the real environment"
    return Chart(title, [*real, *model, *keys], _by_steps("return"), True)


def _imagines_episodes(entry: Entry) -> bool:
    """Whether imagined trajectories are as long as real ones and begin as they do."""
    imagination = entry.curve.run.spec.config.get("imagination", {})
    cut, elsewhere = (imagination.get(name) for name in ("steps", "real_starts"))
    return cut is None and not elsewhere


def error_by_horizon(experiments: Sequence[Experiment]) -> Chart:
    """Each run's last model error, by the steps predicted ahead."""
    traces = []
    for entry in entries_of(experiments):
        found = [(h, _finite(entry.curve, f"model_error_{h}")[1]) for h in HORIZONS]
        points = [(h, values[-1]) for h, values in found if len(values)]
        if points:
            ahead, errors = zip(*points, strict=True)
            line = _line(ahead, errors, entry.name, entry.colour, [entry.number])
            traces.append({**line, "mode": "lines+markers"})
    layout = _layout("steps ahead", "error (standard deviations)")
    layout["xaxis"].update(type="log", tickvals=list(HORIZONS))
    layout["yaxis"].update(_LOGARITHMIC)
    return Chart("In the last iteration, by horizon", traces, layout, True)


def errors_over_training(experiments: Sequence[Experiment]) -> list[Chart]:
    """One chart per horizon."""
    charts = []
    for horizon in HORIZONS:
        steps = "1 step" if horizon == 1 else f"{horizon} steps"
        layout = _by_steps("error (standard deviations)")
        layout["yaxis"].update(_LOGARITHMIC)
        traces = _lines(entries_of(experiments), f"model_error_{horizon}")
        charts.append(Chart(f"{steps} ahead", traces, layout))
    return _drawn(charts)


def trade_off(experiments: Sequence[Experiment]) -> list[Chart]:
    """alpha, beta and KL, and what they act upon."""
    entries = entries_of(experiments)
    columns = {
        "alpha": "α, weight of the penalty",
        "beta": "β, weight of exploration",
        "kl": "KL of an update",
        "uncertainty": "√D, mean uncertainty of imagined steps",
        "penalty": "L_std, uncertainty of the surrogate",
        "p_improve_prob": "probability of improvement",
        "entropy": "entropy of the policy",
        "value_loss": "loss of V",
    }
    charts = []
    for column, title in columns.items():
        layout = _by_steps("")
        if column == "value_loss":
            layout["yaxis"].update(_LOGARITHMIC)
        elif column in ("alpha", "beta"):
            layout["yaxis"]["rangemode"] = "tozero"
        charts.append(Chart(title, _lines(entries, column), layout))
    return _drawn(charts)


def stage_times(experiments: Sequence[Experiment]) -> Chart:
    """Mean seconds per iteration of each stage, one bar per run."""
    traces = []
    for entry in entries_of(experiments):
        rows = entry.curve.rows
        columns = dict.fromkeys(k for row in rows for k in row if k not in _TOTALS)
        stages = [name for name in columns if name.endswith("_seconds")]
        means = [float(np.nanmean(entry.curve.column(name))) for name in stages]
        traces.append(
            {
                "type": "bar",
                "x": [_plain(name.removesuffix("_seconds")) for name in stages],
                "y": means,
                "name": _plain(entry.name),
                "marker": {"color": entry.colour},
                "hovertemplate": "%{x}: %{y:.3g} s",
                "meta": {"runs": [entry.number]},
            }
        )
    layout = _layout("", "seconds per iteration")
    return Chart("Mean time of each stage", traces, layout, True)


def calibration_charts(
    experiments: Sequence[Experiment], found: dict[int, Calibrated]
) -> list[Chart]:
    """How often errors lie inside the intervals, and how they grow with sigma."""
    coverage: list[Trace] = [_diagonal([0, 1])]
    scatter: list[Trace] = []
    largest = 0.0
    for entry in entries_of(experiments):
        one = found.get(entry.number)
        if one is None:
            continue
        numbers = [entry.number]
        nominal, covered = coverage_curve(one.error, one.sigma)
        coverage.append(_line(nominal, covered, entry.name, entry.colour, numbers))
        points = _line(one.sigma, np.abs(one.error), entry.name, entry.colour, numbers)
        scatter.append({**points, "mode": "markers"})
        largest = max(largest, float(one.sigma.max()))
    shares = _layout("predicted share inside", "observed share inside")
    sizes = _layout("predicted σ", "size of the error")
    sizes["yaxis"]["rangemode"] = sizes["xaxis"]["rangemode"] = "tozero"
    return [
        Chart("Errors inside the central intervals", coverage, shares),
        Chart("Error against σ", [_diagonal([0, largest]), *scatter], sizes),
    ]


def _lines(
    entries: Sequence[Entry],
    column: str,
    width: float = _NORMAL,
    dash: str = "solid",
    suffix: str = "",
) -> list[Trace]:
    """One trace per run that measured the column."""
    traces = []
    for entry in entries:
        steps, values = _measured(entry, column)
        if len(steps):
            name = entry.name + suffix
            line = _line(steps, values, name, entry.colour, [entry.number], width)
            line["line"]["dash"] = dash
            traces.append(line)
    return traces


def _measured(entry: Entry, column: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric by real steps; a constant of the config where it is no metric."""
    steps, values = _finite(entry.curve, column)
    constant = entry.curve.run.spec.config.get(column)
    if not len(steps) and isinstance(constant, int | float):
        steps = entry.curve.column("real_steps")
        values = np.full(len(steps), float(constant))
    return steps, values


def _line(
    x: Any,
    y: Any,
    name: str,
    colour: str,
    runs: list[int],
    width: float = _NORMAL,
) -> Trace:
    few = len(x) < 3
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "x": np.asarray(x, float).tolist(),
        "y": np.asarray(y, float).tolist(),
        "name": _plain(name),
        "line": {"color": colour, "width": width},
        "showlegend": False,
        "hovertemplate": "%{x:,.4~g}: %{y:.4~g}",
        "meta": {"runs": runs},
    }


def _interval(band: Band, colour: str, runs: list[int]) -> Trace:
    """A closed outline, so that hiding it never leaves half of it behind."""
    around = np.concatenate([band.steps, band.steps[::-1]])
    outline = np.concatenate([band.high, band.low[::-1]])
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return {
        **_line(around, outline, "interval", colour, runs, 0),
        "mode": "lines",
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.18)",
        "hoverinfo": "skip",
        "hovertemplate": None,
    }


def _diagonal(ends: list[float]) -> Trace:
    line = _line(ends, ends, "as predicted", GREY, [], _THIN)
    line["line"]["dash"] = "dot"
    return {**line, "mode": "lines", "showlegend": True}


def _key(name: str, dash: str) -> Trace:
    """A legend entry without a line of its own."""
    trace = _line([np.nan], [np.nan], name, GREY, [])
    trace["line"]["dash"] = dash
    return {**trace, "mode": "lines", "showlegend": True}


def _drawn(charts: Sequence[Chart]) -> list[Chart]:
    return [chart for chart in charts if chart.traces]


def _by_steps(what: str) -> dict[str, Any]:
    return _layout("real steps", what)


def _layout(x: str, y: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}


def _plain(text: str) -> str:
    return html.escape(text, quote=False)
