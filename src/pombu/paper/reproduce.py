"""The paper's experiments by name: find one, do one, do all, and write what they give.

An item leaves pictures, data, settings and its line of the overview.
"""

import importlib
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pombu.analysis import plots
from pombu.analysis.plots import style, thousands
from pombu.analysis.results_page import Published, keep_files
from pombu.analysis.statistics import (
    interval,
    iqm,
    mean_std,
    probability_of_improvement,
)
from pombu.errors import UsageError
from pombu.paper import Profile
from pombu.paper.drawing import at_best_mean, spread
from pombu.paper.experiments import Item, Panel, Reproduction
from pombu.paper.panel_runs import (
    Group,
    Request,
    Results,
    departures,
    gather_results,
    panels_of,
)
from pombu.studies.study import Display
from pombu.training.run import versions

LINE = "line.json"
_IN_LETTERS = {3: "three", 5: "five"}


@dataclass(frozen=True)
class ItemSettings:
    """What was compared, for config.json."""

    panels: tuple[Panel, ...]
    departures: Mapping[str, Sequence[str]]
    """Runs that were made with other values than the preset has today."""


def _write_item(
    name: str, item: Item, results: Results, request: Request
) -> dict[str, Any]:
    """Write everything; gives the headline numbers."""
    out = request.out
    out.mkdir(parents=True, exist_ok=True)
    with style():
        for suffix, figure in item.draw(results).items():
            plots.save_figure(figure, out, f"{name}{suffix}")
    _write_curves(results, item.metrics, out / "curves.csv")
    summary = {**summarise(results), **item.numbers(results)}
    plots.write_json(out / "summary.json", summary)
    departing = departures(results)
    settings = ItemSettings(tuple(results.panels), departing)
    asked = options(request)
    write_provenance(out, name, results.profile, settings, asked)
    _keep_runs(results, out / "runs")
    write_line(
        out,
        name,
        results.profile,
        headline(results),
        results.missing,
        "; ".join(filter(None, (_few_seeds(results), _other_values(departing)))),
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
        plots.write_json(folder / "config.json", config),
        plots.write_json(folder / "versions.json", found),
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
    return plots.write_json(out / LINE, line)


def options(request: Request) -> str:
    """What was asked for beside the profile, as on the command line."""
    given = {"--total-steps": request.total_steps, "--seeds": request.seeds}
    return "".join(f" {k} {v}" for k, v in given.items() if v is not None)


def _write_curves(results: Results, metrics: Sequence[str], path: Path) -> Path:
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
    return plots.write_csv(path, ("panel", "arm", "seed", *columns), rows)


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


def _few_seeds(results: Results) -> str:
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


def _keep_runs(results: Results, folder: Path) -> None:
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


PAGES = ("costs", "overview", "studies", "targets", "uncertainty-page")
"""Not the paper's experiments, but pages about those that were done."""

_MODULES = {
    "appendix-c": "appendix_c",
    "appendix-long": "learning_curves",
    "appendix-noise": "learning_curves",
    "appendix-training": "learning_curves",
    "calibrated-doubt": "calibrated_doubt",
    "costs": "costs",
    "figure-1": "point_figures",
    "figure-1-code": "point_figures",
    "figure-1-recalibrated": "point_recalibration",
    "figure-2": "learning_curves",
    "figure-3": "learning_curves",
    "figure-4": "learning_curves",
    "figure-5": "learning_curves",
    "figure-scatter": "point_figures",
    "overview": "pages",
    "paper-beside-fast": "learning_curves",
    "studies": "costs",
    "table-1": "tables",
    "table-2": "tables",
    "targets": "targets",
    "uncertainty-inside": "misled_point2d",
    "uncertainty-inside-cheetah": "learning_curves",
    "uncertainty-page": "pages",
}
"""The module of each reproduction, imported when it is asked for.

`figure-1` is the module's `FIGURE_1`.
"""

Numbers = dict[str, Any]


def names() -> tuple[str, ...]:
    """All reproductions, in alphabetical order."""
    return tuple(sorted(_MODULES))


def find(name: str) -> Reproduction:
    """The reproduction of that name."""
    if name not in _MODULES:
        raise UsageError(
            f"there is no reproduction '{name}'; there are {', '.join(names())}, and "
            "all."
        )
    module = importlib.import_module(f"pombu.paper.{_MODULES[name]}")
    found: Reproduction = getattr(module, name.replace("-", "_").upper())
    return found


def reproduce_one(
    found: Reproduction, request: Request, display: Display
) -> tuple[Numbers, list[str]]:
    """Do one experiment; gives its numbers, and what is missing of it.

    Raises:
        UsageError: There is no run to draw.
    """
    _require_runs(found, request)
    _require_sizes_matter(found, request)
    numbers, missing = _do(found, request, display)
    if numbers is None:
        hint = "see why its runs failed" if request.train else "leave --no-train out"
        raise UsageError(
            f"{found.name} has no run to draw: name some with --from, or {hint}."
        )
    return numbers, missing


def _require_sizes_matter(found: Reproduction, request: Request) -> None:
    """Refuse sizes of runs where no run is asked for."""
    asked = request.total_steps is not None or request.seeds is not None
    if found.name in PAGES and asked:
        raise UsageError(
            f"{found.name} trains nothing, so --total-steps and --seeds say nothing: "
            "leave them out."
        )


def _is_computed(found: Reproduction) -> bool:
    """Whether it is computed from scratch, not drawn from runs or other results."""
    return found.reproduce is not None and found.name not in PAGES


def _require_runs(found: Reproduction, request: Request) -> None:
    """Refuse what is said about runs where there are none."""
    given = {
        "--no-train": not request.train,
        "--total-steps": request.total_steps is not None,
        "--seeds": request.seeds is not None,
        "--from": bool(request.sources),
    }
    if _is_computed(found) and any(given.values()):
        flags = " and ".join(flag for flag, is_given in given.items() if is_given)
        raise UsageError(
            f"{found.name} is computed without training runs, so {flags} says nothing: "
            "leave it out; --profile chooses the size."
        )


def _do(
    found: Reproduction, request: Request, display: Display
) -> tuple[Numbers | None, list[str]]:
    """An experiment's numbers, None where it has no run; and what is missing."""
    if found.item is None:
        return _whole(found, request), []
    results = gather_results(panels_of(found.item, request), request, display)
    if not results.any:
        return None, results.missing
    return _write_item(found.name, found.item, results, request), results.missing


def reproduce_all(request: Request, display: Display) -> tuple[Numbers, list[str]]:
    """Do every experiment, each in its folder, with the runs of all in one study."""
    every = [find(name) for name in names() if name not in PAGES]
    panels = [p for f in every if f.item for p in panels_of(f.item, request)]
    if request.train:
        gather_results(panels, request, display)
    drawing = replace(request, train=False)
    numbers: Numbers = {}
    missing: list[str] = []
    for found in every:
        display.say(f"drawing {found.name}")
        out = request.out / found.name
        out.mkdir(parents=True, exist_ok=True)
        _share_dataset(request.out, out)
        own: Numbers | None
        lacking: list[str]
        if _is_computed(found) and not request.train:
            own, lacking = _redraw(found, request.sources, out, display), []
        else:
            own, lacking = _do(found, replace(drawing, out=out), display)
        missing += [f"{found.name}: {what}" for what in lacking]
        if own is not None:
            numbers[found.name] = own
            continue
        display.say(f"{found.name} has no run yet, and is left out")
        if not any(out.iterdir()):
            out.rmdir()
    if request.profile != "smoke":
        numbers |= _do_targets(request, display)
    overview = find("overview")
    assert overview.reproduce is not None
    overview.reproduce(request.profile, request.out)
    return numbers, missing


def _redraw(
    found: Reproduction, sources: Sequence[Path], out: Path, display: Display
) -> Numbers | None:
    """What is computed, out of a folder in which it was done; None where there is none.

    It has the profile that it had there.
    """
    for kept in (path.parent for one in sources for path in sorted(one.rglob(LINE))):
        line = json.loads((kept / LINE).read_bytes())
        if line["item"] != found.name or found.redraw is None or found.tell is None:
            continue
        try:
            numbers = found.redraw(line["profile"], kept, out)
        except UsageError as error:
            display.say(str(error))
            continue
        write_line(out, found.name, line["profile"], found.tell(numbers))
        return numbers
    return None


def _do_targets(request: Request, display: Display) -> Numbers:
    """The table of targets, where any run is on its task."""
    trained = (request.runs,) if request.runs.is_dir() else ()
    out = request.out / "targets"
    asked = replace(request, out=out, sources=(*request.sources, *trained))
    try:
        out.mkdir(parents=True, exist_ok=True)
        return {"targets": _whole(find("targets"), asked)}
    except UsageError as error:
        out.rmdir()
        display.say(str(error))
        return {}


def _whole(found: Reproduction, request: Request) -> Numbers:
    if found.reproduce_from is not None:
        return found.reproduce_from(request)
    assert found.reproduce is not None
    numbers = found.reproduce(request.profile, request.out)
    if found.tell is not None:
        write_line(request.out, found.name, request.profile, found.tell(numbers))
    return numbers


def _share_dataset(root: Path, out: Path) -> None:
    """The scatter shows one of Figure 1's datasets: it need not be made twice."""
    made = root / "figure-1" / "datasets"
    if out.name != "figure-scatter" or not made.is_dir():
        return
    (out / "datasets").mkdir(exist_ok=True)
    for path in made.glob("Point2D-0.*"):
        shutil.copyfile(path, out / "datasets" / path.name)
