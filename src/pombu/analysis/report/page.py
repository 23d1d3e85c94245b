"""The page of a report: its sections, a switch per run, and all they need, in one file.

Whatever comes from a run is escaped where it is put in. Besides, the page's policy
names its own two scripts by their hashes, so that a browser runs no others.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pombu import __version__
from pombu.analysis.curves import MISSING, RETURNS, differences, read_curves
from pombu.analysis.report import charts
from pombu.analysis.report.charts import (
    Chart,
    Entry,
    Experiment,
    arrange,
    entries_of,
)
from pombu.analysis.report.measure import RunMeasures, Say, measure
from pombu.analysis.statistics import LEVEL
from pombu.errors import UsageError
from pombu.training import config_file
from pombu.uncertainty.calibration import calibration

Found = Mapping[int, RunMeasures]
"""What was measured, by the number of the run."""


@dataclass(frozen=True)
class ReportPage:
    """A page, and what could not be put into it."""

    page: str
    final_returns: dict[str, float]
    missing: list[str]
    returns: dict[str, dict[str, float]]
    """Of each run, by the names of `RETURNS`."""


def build(
    folders: Sequence[Path],
    video: bool = True,
    calibration: bool = True,
    env: str | None = None,
    say: Say = lambda _: None,
) -> ReportPage:
    """Read runs, measure their last policies, and write the page.

    Args:
        folders: run folders; one that is named twice counts once.
        video: record an episode of each run.
        calibration: compare each run's uncertainty with real returns.
        env: an environment outside pombu whose code may be run.
        say: told of progress.

    Raises:
        UsageError: A folder is no run, or plotly is missing.
    """
    if not folders:
        raise UsageError("No run is named: give at least one run folder.")
    _plotly_source()
    curves = read_curves(list({path.resolve(): path for path in folders}.values()))
    experiments = arrange(curves)
    measured: dict[int, RunMeasures] = {}
    if video or calibration:
        for entry in entries_of(experiments):
            measured[entry.number] = measure(
                entry.curve.run, entry.name, video, calibration, env, say
            )
    page = _render(experiments, sections(experiments, measured))
    finals = {str(curve.run.path): curve.final() for curve in curves}
    missing = [reason for one in measured.values() for reason in one.missing]
    returns = {str(curve.run.path): curve.returns for curve in curves}
    return ReportPage(page, finals, missing, returns)


@dataclass(frozen=True)
class PageSection:
    """A heading, a sentence that says how to read it, charts and further HTML."""

    title: str
    text: str
    charts: list[Chart] = field(default_factory=list)
    html: str = ""


def sections(experiments: Sequence[Experiment], measured: Found) -> list[PageSection]:
    """All sections, without those that have nothing to show."""
    every = [
        _overview(experiments, measured),
        _learning(experiments),
        PageSection(
            "Overfitting the model",
            "A dashed line far above the solid one of its colour: the policy exploits "
            "errors of the model.",
            [charts.overfitting(experiments)],
        ),
        PageSection(
            "Model error",
            "Median error of open-loop predictions along real episodes.",
            [
                charts.error_by_horizon(experiments),
                *charts.errors_over_training(experiments),
            ],
        ),
        _calibration(experiments, measured),
        PageSection(
            "α, β and KL",
            "What the update weighs, and what comes of it.",
            charts.trade_off(experiments),
        ),
        PageSection("Stage times", "", [charts.stage_times(experiments)]),
        _configs(experiments),
        _videos(experiments, measured),
    ]
    shown = [_without_empty_charts(section) for section in every]
    return [section for section in shown if section.charts or section.html]


def _without_empty_charts(section: PageSection) -> PageSection:
    drawn = [c for c in section.charts if any(t["meta"]["runs"] for t in c.traces)]
    return PageSection(section.title, section.text, drawn, section.html)


def _overview(experiments: Sequence[Experiment], measured: Found) -> PageSection:
    labels = {e.number: one.label for one in experiments for e in one.entries}
    head = ["Run", "Experiment", "Task", "Seed", "Real steps", "Iterations"]
    head += [*(f"{kind.capitalize()} return" for kind in RETURNS), "Hours"]
    rows = [
        (
            entry.number,
            [
                entry.name,
                labels[entry.number],
                entry.curve.task,
                str(entry.curve.run.spec.seed),
                f"{entry.curve.rows[-1]['real_steps']:,.0f}"
                + ("" if entry.curve.finished else " (not finished)"),
                str(len(entry.curve.rows)),
                *map(_number, entry.curve.returns.values()),
                f"{entry.curve.hours:.2f}",
            ],
        )
        for entry in entries_of(experiments)
    ]
    notes = "".join(
        f'<p class="quiet" data-run="{number}">{html.escape(reason)}</p>'
        for number, one in measured.items()
        for reason in one.missing
    )
    text = f"Returns. {'; '.join(f'{k}: {v}' for k, v in RETURNS.items())}."
    return PageSection("Runs", text, html=_table(head, rows) + notes)


def _learning(experiments: Sequence[Experiment]) -> PageSection:
    several = any(len(one.entries) > 1 for one in experiments)
    seeds = (
        f"Thin: seeds; thick: their mean, shaded with the {LEVEL:.0%} bootstrap "
        "interval of the mean over seeds. Hiding a seed hides the mean as well. "
    )
    alone = (
        "An experiment with one seed is shaded with one standard deviation over its "
        "evaluation episodes."
    )
    single = any(len(one.entries) == 1 for one in experiments)
    text = (seeds if several else "") + (alone if single else "")
    return PageSection("Learning curves", text, [charts.learning_curves(experiments)])


def _calibration(experiments: Sequence[Experiment], measured: Found) -> PageSection:
    every = {number: one.calibrated for number, one in measured.items()}
    calibrated = {number: one for number, one in every.items() if one is not None}
    if not calibrated:
        return PageSection("Calibration of the uncertainty", "")
    head = ["Run", "Start states", "Mean z²", "Miscalibration area"]
    head += ["Rank correlation", "Mean √U", "Sampling noise"]
    rows = []
    for entry in entries_of(experiments):
        found = calibrated.get(entry.number)
        if found is None:
            continue
        scores = calibration(found.error, found.sigma)
        cells = [entry.name, str(len(found.error)), _number(scores.mean_z_squared)]
        cells += [_number(scores.miscalibration_area), _number(scores.spearman)]
        cells += [_number(float(found.uncertainty.mean())), _number(found.noise)]
        rows.append((entry.number, cells))
    return PageSection(
        "Calibration of the uncertainty",
        "Real discounted returns against the model's Q at start states, for the last "
        "checkpoint. σ² is U plus the sampling variance of both means. Below the "
        "diagonal, or with a mean z² above 1, the uncertainty is too small; where the "
        "sampling noise exceeds √U, this says little.",
        charts.calibration_charts(experiments, calibrated),
        _table(head, rows),
    )


def _configs(experiments: Sequence[Experiment]) -> PageSection:
    entries = entries_of(experiments)
    rows = differences([entry.curve for entry in entries])
    columns = "".join(
        f'<th data-run="{e.number}">{html.escape(e.name)}</th>' for e in entries
    )
    body = "".join(
        f"<tr><th>{html.escape(row.key)}</th>"
        + "".join(
            f'<td data-run="{entry.number}">{html.escape(value)}</td>'
            for entry, value in zip(entries, row.values, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    table = (
        '<div class="card scroll"><table id="differences"><thead><tr><th>Setting</th>'
        f"{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    whole = "".join(
        f'<details data-run="{entry.number}"><summary>All settings of '
        f"{html.escape(entry.name)}</summary><pre>"
        f"{html.escape(_spec_text(entry))}</pre></details>"
        for entry in entries
    )
    text = "Settings that are not the same in every run." if rows else ""
    return PageSection("Configs", text, html=(table if rows else "") + whole)


def _spec_text(entry: Entry) -> str:
    return json.dumps(config_file.to_json(entry.curve.run.spec), indent=2)


def _videos(experiments: Sequence[Experiment], measured: Found) -> PageSection:
    cards = "".join(
        f'<figure class="card" data-run="{entry.number}">'
        f"<h3>{html.escape(entry.name)}</h3>"
        f'<img src="{html.escape(video.uri)}" alt="One episode of '
        f'{html.escape(entry.name)}"><figcaption class="quiet">Return '
        f"{_number(video.episode_return)} in {video.steps:,} steps</figcaption>"
        "</figure>"
        for entry in entries_of(experiments)
        if (video := measured.get(entry.number, RunMeasures()).preview) is not None
    )
    text = "One episode of the last checkpoint with mean actions."
    grid = f'<div class="grid">{cards}</div>' if cards else ""
    return PageSection("The policy", text, html=grid)


def _table(head: Sequence[str], rows: Sequence[tuple[int, list[str]]]) -> str:
    """A table with a row per run."""
    columns = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        f'<tr data-run="{run}">'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for run, cells in rows
    )
    return (
        f'<div class="card scroll"><table><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _number(value: float) -> str:
    return f"{value:,.4g}" if math.isfinite(value) else MISSING


_SCRIPT_ENDS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def _plotly_source() -> str:
    """Plotly's JavaScript.

    Raises:
        UsageError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(
            "A report needs plotly: install it with `pip install 'pombu[report]'`."
        ) from error
    return str(get_plotlyjs())


def _render(experiments: Sequence[Experiment], sections: Sequence[PageSection]) -> str:
    """The whole page."""
    entries = entries_of(experiments)
    plotly, script = _plotly_source(), _resource("page.js")
    drawn = [chart for section in sections for chart in section.charts]
    tasks = ", ".join(dict.fromkeys(entry.curve.task for entry in entries))
    runs = "1 run" if len(entries) == 1 else f"{len(entries)} runs"
    return Template(_resource("page.html")).substitute(
        title=html.escape(f"{tasks}: {runs}"),
        subtitle=html.escape("; ".join(one.label for one in experiments)),
        style=_resource("page.css"),
        hashes=f"{_hash(plotly)} {_hash(script)}",
        switches="\n".join(map(_switch, entries)),
        sections="\n".join(_section_html(sections)),
        version=html.escape(__version__),
        charts=script_json([_chart_json(chart) for chart in drawn]),
        plotly=plotly,
        script=script,
    )


def script_json(content: Any) -> str:
    """JSON that cannot end the script element it stands in; NaN becomes null."""
    text = json.dumps(_finite(content), allow_nan=False)
    for character, escaped in _SCRIPT_ENDS.items():
        text = text.replace(character, escaped)
    return text


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def _chart_json(chart: Chart) -> dict[str, Any]:
    return {"traces": chart.traces, "layout": chart.layout}


def _section_html(sections: Sequence[PageSection]) -> list[str]:
    parts, number = [], 0
    for section in sections:
        cards = []
        for chart in section.charts:
            cards.append(_card(chart, number))
            number += 1
        grid = f'<div class="grid">{"".join(cards)}</div>' if cards else ""
        text = f'<p class="quiet">{html.escape(section.text)}</p>'
        parts.append(
            f"<section><h2>{html.escape(section.title)}</h2>"
            f"{text if section.text else ''}{grid}{section.html}</section>"
        )
    return parts


def _card(chart: Chart, number: int) -> str:
    title = html.escape(chart.title)
    return (
        f'<div class="card{" wide" if chart.wide else ""}"><h3>{title}</h3>'
        f'<div class="chart" id="chart-{number}" role="img" aria-label="{title}">'
        "</div></div>"
    )


def _switch(entry: Entry) -> str:
    name = html.escape(entry.name)
    return (
        f'<span class="switch"><label><input type="checkbox" value="{entry.number}" '
        f'checked><span class="dot" style="background:{entry.colour}"></span>{name}'
        f'</label><button type="button" data-only="{entry.number}" '
        f'aria-label="Only {name}">only</button></span>'
    )


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _resource(name: str) -> str:
    return (files("pombu.analysis.report") / name).read_text(encoding="utf-8")
