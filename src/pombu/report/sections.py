"""The sections of the page, from the runs and what was measured of them."""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pombu.report import charts
from pombu.report.calibration import Calibrated
from pombu.report.charts import Chart
from pombu.report.entries import Entry, Experiment, entries_of
from pombu.report.intervals import LEVEL, finite
from pombu.report.preview import Preview
from pombu.studies.comparing import MISSING, differences
from pombu.training import config_file
from pombu.uncertainty.calibration import calibration


@dataclass(frozen=True)
class Section:
    """A heading, a sentence that says how to read it, charts and further HTML."""

    title: str
    text: str
    charts: list[Chart] = field(default_factory=list)
    html: str = ""


@dataclass(frozen=True)
class Measured:
    """What was measured anew, by the run's number; for the rest, why it was not."""

    calibrated: dict[int, Calibrated] = field(default_factory=dict)
    previews: dict[int, Preview] = field(default_factory=dict)
    missing: dict[int, list[str]] = field(default_factory=dict)


def sections(experiments: Sequence[Experiment], measured: Measured) -> list[Section]:
    """All sections, without those that have nothing to show."""
    every = [
        _overview(experiments, measured),
        _learning(experiments),
        Section(
            "Overfitting the model",
            "A dashed line far above the solid one of its colour: the policy exploits "
            "errors of the model.",
            [charts.overfitting(experiments)],
        ),
        Section(
            "Model error",
            "Median error of open-loop predictions along real episodes.",
            [
                charts.error_by_horizon(experiments),
                *charts.errors_over_training(experiments),
            ],
        ),
        _calibration(experiments, measured),
        Section(
            "α, β and KL",
            "What the update weighs, and what comes of it.",
            charts.trade_off(experiments),
        ),
        Section("Stage times", "", [charts.stage_times(experiments)]),
        _configs(experiments),
        _films(experiments, measured),
    ]
    shown = [_without_empty_charts(section) for section in every]
    return [section for section in shown if section.charts or section.html]


def _without_empty_charts(section: Section) -> Section:
    drawn = [c for c in section.charts if any(t["meta"]["runs"] for t in c.traces)]
    return Section(section.title, section.text, drawn, section.html)


def _overview(experiments: Sequence[Experiment], measured: Measured) -> Section:
    labels = {e.number: one.label for one in experiments for e in one.entries}
    head = ["Run", "Experiment", "Task", "Seed", "Real steps", "Iterations"]
    head += ["Final return", "Best return", "Hours"]
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
                _number(entry.curve.final()),
                _number(_best(entry)),
                f"{entry.curve.hours:.2f}",
            ],
        )
        for entry in entries_of(experiments)
    ]
    notes = "".join(
        f'<p class="quiet" data-run="{number}">{html.escape(reason)}</p>'
        for number, reasons in measured.missing.items()
        for reason in reasons
    )
    text = "The final return is the mean of the last three evaluations."
    return Section("Runs", text, html=_table(head, rows) + notes)


def _best(entry: Entry) -> float:
    returns = finite(entry.curve, "return_real")[1]
    return float(returns.max()) if len(returns) else math.nan


def _learning(experiments: Sequence[Experiment]) -> Section:
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
    return Section("Learning curves", text, [charts.learning_curves(experiments)])


def _calibration(experiments: Sequence[Experiment], measured: Measured) -> Section:
    if not measured.calibrated:
        return Section("Calibration of the uncertainty", "")
    head = ["Run", "Start states", "Mean z²", "Miscalibration area"]
    head += ["Rank correlation", "Mean √U", "Sampling noise"]
    rows = []
    for entry in entries_of(experiments):
        found = measured.calibrated.get(entry.number)
        if found is None:
            continue
        scores = calibration(found.error, found.sigma)
        cells = [entry.name, str(len(found.error)), _number(scores.mean_z_squared)]
        cells += [_number(scores.miscalibration_area), _number(scores.spearman)]
        cells += [_number(float(found.uncertainty.mean())), _number(found.noise)]
        rows.append((entry.number, cells))
    return Section(
        "Calibration of the uncertainty",
        "Real discounted returns against the model's Q at start states, for the last "
        "checkpoint. σ² is U plus the sampling variance of both means. Below the "
        "diagonal, or with a mean z² above 1, the uncertainty is too small; where the "
        "sampling noise exceeds √U, this says little.",
        charts.calibration_charts(experiments, measured.calibrated),
        _table(head, rows),
    )


def _configs(experiments: Sequence[Experiment]) -> Section:
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
    return Section("Configs", text, html=(table if rows else "") + whole)


def _spec_text(entry: Entry) -> str:
    return json.dumps(config_file.to_json(entry.curve.run.spec), indent=2)


def _films(experiments: Sequence[Experiment], measured: Measured) -> Section:
    cards = "".join(
        f'<figure class="card" data-run="{entry.number}">'
        f"<h3>{html.escape(entry.name)}</h3>"
        f'<img src="{html.escape(film.uri)}" alt="One episode of '
        f'{html.escape(entry.name)}"><figcaption class="quiet">Return '
        f"{_number(film.episode_return)} in {film.steps:,} steps</figcaption></figure>"
        for entry in entries_of(experiments)
        if (film := measured.previews.get(entry.number)) is not None
    )
    text = "One episode of the last checkpoint with mean actions."
    grid = f'<div class="grid">{cards}</div>' if cards else ""
    return Section("The policy", text, html=grid)


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
