"""The paper's experiments by name: find one, do one, do all."""

import importlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pombu.errors import UsageError
from pombu.paper.experiments import Reproduction
from pombu.paper.outputs import write_item, write_line
from pombu.paper.panel_runs import Request, gather_results, panels_of
from pombu.studies.study import Watcher

PAGES = ("costs", "overview", "uncertainty-page")
"""Not the paper's experiments, but pages about those that were done."""

_MODULES = {
    "appendix-c": "appendix_c",
    "appendix-long": "learning_curves",
    "appendix-noise": "learning_curves",
    "appendix-training": "learning_curves",
    "costs": "costs",
    "figure-1": "point_figures",
    "figure-2": "learning_curves",
    "figure-3": "learning_curves",
    "figure-4": "learning_curves",
    "figure-5": "learning_curves",
    "figure-scatter": "point_figures",
    "overview": "pages",
    "table-1": "tables",
    "table-2": "tables",
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
    found: Reproduction, request: Request, watcher: Watcher
) -> tuple[Numbers, list[str]]:
    """Do one experiment; gives its numbers, and what is missing of it.

    Raises:
        UsageError: There is no run to draw.
    """
    _require_runs(found, request)
    _require_sizes_matter(found, request)
    numbers, missing = _do(found, request, watcher)
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


def is_computed(found: Reproduction) -> bool:
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
    if is_computed(found) and any(given.values()):
        flags = " and ".join(flag for flag, is_given in given.items() if is_given)
        raise UsageError(
            f"{found.name} is computed without training runs, so {flags} says nothing: "
            "leave it out; --profile chooses the size."
        )


def _do(
    found: Reproduction, request: Request, watcher: Watcher
) -> tuple[Numbers | None, list[str]]:
    """An experiment's numbers, None where it has no run; and what is missing."""
    if found.item is None:
        return _whole(found, request), []
    results = gather_results(panels_of(found.item, request), request, watcher)
    if not results.any:
        return None, results.missing
    return write_item(found.name, found.item, results, request), results.missing


def reproduce_all(request: Request, watcher: Watcher) -> tuple[Numbers, list[str]]:
    """Do every experiment, each in its folder, with the runs of all in one study."""
    every = [find(name) for name in names() if name not in PAGES]
    if not request.train:
        for found in filter(is_computed, every):
            watcher.say(f"{found.name} is not drawn but computed, and is left out")
        every = [found for found in every if not is_computed(found)]
    panels = [p for f in every if f.item for p in panels_of(f.item, request)]
    if request.train:
        gather_results(panels, request, watcher)
    drawing = replace(request, train=False)
    numbers: Numbers = {}
    missing: list[str] = []
    for found in every:
        watcher.say(f"drawing {found.name}")
        out = request.out / found.name
        out.mkdir(parents=True, exist_ok=True)
        _share_dataset(request.out, out)
        own, lacking = _do(found, replace(drawing, out=out), watcher)
        missing += [f"{found.name}: {what}" for what in lacking]
        if own is None:
            watcher.say(f"{found.name} has no run yet, and is left out")
        else:
            numbers[found.name] = own
    overview = find("overview")
    assert overview.reproduce is not None
    overview.reproduce(request.profile, request.out)
    return numbers, missing


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
