"""Output files of an item of the paper: pictures, data, settings and its line."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pombu.analysis import artifacts
from pombu.analysis.plots import style, thousands
from pombu.analysis.results_page import Published, keep_files
from pombu.analysis.statistics import (
    interval,
    iqm,
    mean_std,
    probability_of_improvement,
)
from pombu.paper.drawing import at_best_mean, spread
from pombu.paper.experiments import Item, Panel, Profile
from pombu.paper.panel_runs import Group, Request, Results, departed
from pombu.training import config_file
from pombu.training.config_file import flat
from pombu.training.run import versions

LINE = "line.json"
_IN_LETTERS = {3: "three", 5: "five"}


@dataclass(frozen=True)
class ItemSettings:
    """What was compared, for config.json."""

    panels: tuple[Panel, ...]
    departures: Mapping[str, Sequence[str]]
    """Runs that were made with other values than the preset has today."""


def write_item(
    name: str, item: Item, results: Results, request: Request
) -> dict[str, Any]:
    """Write everything; gives the headline numbers."""
    out = request.out
    out.mkdir(parents=True, exist_ok=True)
    with style():
        for ending, figure in item.draw(results).items():
            artifacts.save_figure(figure, out, f"{name}{ending}")
    write_curves(results, item.metrics, out / "curves.csv")
    summary = {**summarise(results), **item.numbers(results)}
    artifacts.write_json(out / "summary.json", summary)
    departing = departures(results)
    settings = ItemSettings(tuple(results.panels), departing)
    asked = options(request)
    write_provenance(out, name, results.profile, settings, asked)
    keep_runs(results, out / "runs")
    write_line(
        out,
        name,
        results.profile,
        headline(results),
        results.missing,
        "; ".join(filter(None, (few_seeds(results), _other_values(departing)))),
        asked,
    )
    return summary


def write_provenance(
    folder: Path, name: str, profile: str, settings: Any, options: str = ""
) -> list[Path]:
    """Write config.json and versions.json: how to get these files again.

    Args:
        folder: where to write.
        name: of the reproduction.
        profile: its scale.
        settings: a dataclass.
        options: what else was asked for, as on the command line.
    """
    command = f"pombu reproduce {name} --profile {profile}{options}"
    config = {
        "reproduction": name,
        "profile": profile,
        "command": command,
        "settings": asdict(settings),
    }
    found = {
        "python": platform.python_version(),
        **versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }
    return [
        artifacts.write_json(folder / "config.json", config),
        artifacts.write_json(folder / "versions.json", found),
    ]


def write_line(
    out: Path,
    name: str,
    profile: Profile,
    says: str,
    missing: Sequence[str] = (),
    note: str = "",
    options: str = "",
) -> Path:
    """The item's line of the results page."""
    line = {
        "item": name,
        "profile": profile,
        "says": says,
        "missing": list(missing),
        "note": note,
        "command": f"pombu reproduce {name} --profile {profile}{options}",
    }
    return artifacts.write_json(out / LINE, line)


def options(request: Request) -> str:
    """What was asked for beside the profile, as on the command line."""
    given = {"--total-steps": request.total_steps, "--seeds": request.seeds}
    return "".join(f" {k} {v}" for k, v in given.items() if v is not None)


def write_curves(results: Results, metrics: Sequence[str], path: Path) -> Path:
    """Every seed's curve, row by row."""
    columns = ("iteration", "real_steps", "imagined_steps", *metrics)
    rows = [
        (
            group.panel.title,
            group.arm.label,
            curve.run.spec.seed,
            *(_cell(row.get(column)) for column in columns),
        )
        for group in results.groups
        for curve in group.curves
        for row in curve.rows
    ]
    return artifacts.write_csv(path, ("panel", "arm", "seed", *columns), rows)


def summarise(results: Results) -> dict[str, Any]:
    """Statistics of every arm, with the paper's number beside ours."""
    return {
        panel.title: {
            "arms": {g.arm.label: _arm(g) for g in results.of(panel)},
            "probability_of_improvement": _improvement(results.of(panel)),
        }
        for panel in results.panels
    }


def headline(results: Results) -> str:
    """Ours beside the paper's, in one line."""
    parts = []
    for panel in results.panels:
        arms = []
        for group in results.of(panel):
            text = f"{group.arm.label} has {in_words(group)}"
            if theirs := panel.published.get(group.arm.label):
                text += f" ({_theirs(theirs, group.steps)})"
            arms.append(text)
        if arms:
            steps = thousands(panel.total_steps, 0)
            # Whatever a smoke panel is called, Point2D is what ran.
            acted = f" ({panel.task} stands in)" if panel.preset == "smoke" else ""
            parts.append(f"{panel.title}{acted}, {steps} steps: {', '.join(arms)}")
    return "; ".join(parts)


def _theirs(paper: Published, steps: int) -> str:
    """The paper's number, with its steps where they are not ours."""
    text = f"paper {paper.mean:g} ± {paper.std:g}"
    same = paper.real_steps == steps
    return text if same else f"{text} at {thousands(paper.real_steps, 0)}"


def in_words(group: Group) -> str:
    """Our number of an arm; with its steps where these are not all, and few seeds."""
    mean, std = mean_std(scores(group))
    text = spread(mean, std, len(group.curves), group.panel.paper_seeds)
    return text if group.is_whole else f"{text} at {thousands(group.steps, 0)}"


def scores(group: Group) -> np.ndarray:
    """An arm's numbers, seed by seed: at the end, or at the best mean of a "max"."""
    return at_best_mean(group) if group.arm.extended else group.finals


def hours(group: Group) -> float:
    """Wall-clock hours of a run, on average."""
    return float(np.mean([curve.hours for curve in group.curves]))


def imagined_steps(group: Group) -> float:
    """Imagined steps of a run, on average."""
    return float(np.mean([c.rows[-1].get("imagined_steps", 0) for c in group.curves]))


def few_seeds(results: Results) -> str:
    """A warning where an arm has fewer seeds than the paper's three or five."""
    few = [
        (len(group.curves), group.panel.paper_seeds)
        for group in results.groups
        if 0 < len(group.curves) < group.panel.paper_seeds
    ]
    if not few:
        return ""
    seeds, due = min(few)
    return f"fewer seeds ({seeds}) than the paper's {_IN_LETTERS.get(due, due)}"


def _other_values(departing: Mapping[str, Sequence[str]]) -> str:
    """A warning where runs were made with other values than a preset has today."""
    if not departing:
        return ""
    return (
        f"runs with other values than the preset has today: {len(departing)}, see "
        "departures in config.json"
    )


def departures(results: Results) -> dict[str, list[str]]:
    """For each run, the settings in which it differs from what a new one would have."""
    found: dict[str, list[str]] = {}
    for group in results.groups:
        for job in group.panel.jobs(group.arm):
            wanted = flat(config_file.to_json(job.config()))
            for curve in group.curves:
                if curve.run.spec.seed != job.seed:
                    continue
                if differ := departed(curve.run.spec, wanted):
                    found[job.name] = differ
    return found


def keep_runs(results: Results, folder: Path) -> None:
    """Copy what a run leaves for others to check; the item can be drawn from it."""
    for group in results.groups:
        for job, curve in _with_jobs(group):
            keep_files(curve, folder / job)


def _with_jobs(group: Group) -> list[tuple[str, Any]]:
    names = {job.seed: job.name for job in group.panel.jobs(group.arm)}
    return [(names[curve.run.spec.seed], curve) for curve in group.curves]


def _arm(group: Group) -> dict[str, Any]:
    own = scores(group)
    mean, std = mean_std(own)
    theirs = group.panel.published.get(group.arm.label)
    return {
        "seeds": [curve.run.spec.seed for curve in group.curves],
        "missing_seeds": list(group.missing),
        "real_steps": group.steps,
        "final_returns": [float(x) for x in own],
        "mean": mean,
        "std": std,
        "iqm": asdict(interval(iqm, own[:, None])),
        "hours": hours(group),
        "imagined_steps": imagined_steps(group),
        "paper": theirs._asdict() if theirs else None,
    }


def _improvement(groups: Sequence[Group]) -> dict[str, Any]:
    """How likely the panel's first arm beats each other one after as many steps."""
    compared = [group for group in groups if not group.arm.extended]
    if not compared:
        return {}
    first, *others = compared
    found = {}
    for other in others:
        steps = min(first.steps, other.steps)
        finals = (one.until(steps).finals[:, None] for one in (first, other))
        estimate = interval(probability_of_improvement, *finals)
        name = f"{first.arm.label} over {other.arm.label}"
        found[name] = {**asdict(estimate), "real_steps": steps}
    return found


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.8g}"
