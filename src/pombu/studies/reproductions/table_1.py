"""Table 1: return, time, and real and imagined samples on HalfCheetah, H = 200."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from pombu.studies.drawing import STAND_IN_NOTE, draw_table
from pombu.studies.experiments import POMBU, Item, Panel, Profile
from pombu.studies.gathering import Group, Results
from pombu.studies.outputs import hours, imagined_steps, in_words
from pombu.studies.published import UNCERTAINTY_MINUTES, Published
from pombu.studies.reproductions.figure_2 import panels as tasks
from pombu.studies.style import thousands
from pombu.studies.uncertainty_time import uncertainty_minutes

SUMMARY = "Table 1: return, time and samples on HalfCheetah (figure-2's runs; hours)"
DEFAULT: Profile = "fast"

COLUMNS = ("return", "time (h)", "imagined", "real", "uncertainty (min)")


def panels(profile: Profile) -> list[Panel]:
    """Figure 2's HalfCheetah."""
    return [panel for panel in tasks(profile) if panel.title == "HalfCheetah"]


def rows(results: Results) -> list[tuple[str, ...]]:
    """Method, source and numbers: ours, and below it the paper's."""
    (panel,) = results.panels
    found: list[tuple[str, ...]] = []
    groups = {group.arm.label: group for group in results.of(panel)}
    for label in dict.fromkeys([*groups, *panel.published]):
        own = _ours(groups[label]) if label in groups else ("no run", *[""] * 4)
        found.append((label, "ours", *own))
        if theirs := panel.published.get(label):
            found.append((label, "paper", *_theirs(label, theirs)))
    return found


def draw(results: Results) -> Mapping[str, Figure]:
    """The table as a picture."""
    (panel,) = results.panels
    note = (
        "Hours are wall-clock, ours on the cores of a run, the paper's on one GPU;\n"
        "ours of the uncertainty are minutes of one core."
    )
    if panel.preset == "smoke":
        note = f"{note} ({STAND_IN_NOTE})"
    drawn = [
        (label if source == "ours" else "", source, *rest)
        for label, source, *rest in rows(results)
    ]
    return {"": draw_table(("", "", *COLUMNS), drawn, note)}


def numbers(results: Results) -> Mapping[str, Any]:
    """The table, and the time that the uncertainty takes."""
    header = ("method", "source", *COLUMNS)
    return {
        "table": [dict(zip(header, row, strict=True)) for row in rows(results)],
        "uncertainty_minutes": {
            group.arm.label: uncertainty_minutes(group.curves[0])
            for group in results.of(results.panels[0])
            if group.arm.algorithm == "pombu"
        },
        "uncertainty_minutes_paper": UNCERTAINTY_MINUTES,
    }


def _ours(group: Group) -> tuple[str, ...]:
    minutes = ""
    if group.arm.algorithm == "pombu":
        minutes = f"{uncertainty_minutes(group.curves[0]):.2g}"
    return (
        in_words(group),
        f"{hours(group):.2g}",
        f"{imagined_steps(group):.2g}",
        thousands(group.steps, 0),
        minutes,
    )


def _theirs(label: str, theirs: Published) -> tuple[str, ...]:
    return (
        f"{theirs.mean:g} ± {theirs.std:g}",
        "" if theirs.hours is None else f"{theirs.hours:g}",
        "" if theirs.imagined_steps is None else f"{theirs.imagined_steps:.2g}",
        thousands(theirs.real_steps, 0),
        f"{UNCERTAINTY_MINUTES:g}" if label == POMBU.label else "",
    )


ITEM = Item(panels, draw, numbers=numbers)
