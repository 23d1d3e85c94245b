"""Table 2: all methods after 200k real steps in tasks with H = 1000."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.studies.drawing import STAND_IN_NOTE, add_legend, draw_table
from pombu.studies.experiments import (
    MBMPO,
    METRPO,
    PETS,
    POMBU,
    SLBO,
    STEVE,
    Item,
    Panel,
    Profile,
    at,
)
from pombu.studies.gathering import Group, Results
from pombu.studies.outputs import in_words
from pombu.studies.published import RANDOM, TABLE_2, alive_bonus, by_label
from pombu.studies.statistics import performance_profile
from pombu.studies.style import grid

SUMMARY = "Table 2: four tasks, H = 1000, 200k steps, all methods (fast: days)"
DEFAULT: Profile = "fast"

ARMS = (POMBU, STEVE, MBMPO, SLBO, METRPO, PETS)


def panels(profile: Profile) -> list[Panel]:
    """One per task, with the alive bonus of the published numbers."""
    return [
        at(
            profile,
            Panel(
                task,
                task,
                ARMS,
                200_000,
                horizon=1000,
                alive_bonus=alive_bonus(task),
                published=by_label(ARMS, theirs),
            ),
            steps=200_000,
        )
        for task, theirs in TABLE_2.items()
    ]


def rows(results: Results) -> list[tuple[str, ...]]:
    """Per task ours, and below it the paper's."""
    found = []
    for panel in results.panels:
        groups = {group.arm.label: group for group in results.of(panel)}
        found.append((panel.title, "ours", *(_cell(groups.get(a.label)) for a in ARMS)))
        published = TABLE_2[panel.title]
        theirs = (published[arm.algorithm] for arm in ARMS)
        found.append(("", "paper", *(f"{one.mean:g} ± {one.std:g}" for one in theirs)))
    return found


def draw(results: Results) -> Mapping[str, Figure]:
    """The table, and the performance profiles of methods with whole runs."""
    note = "An empty cell has no run. Ant and Walker2d with an alive bonus of 1."
    if results.profile == "smoke":
        note = f"{note} ({STAND_IN_NOTE})"
    header = ("", "", *(arm.label for arm in ARMS))
    table = draw_table(header, rows(results), note)
    return {
        "": table,
        **({"-profiles": profiles(results)} if normalised(results) else {}),
    }


def profiles(results: Results) -> Figure:
    """The share of runs above each score; 0 is random, 1 the paper's POMBU."""
    figure, axes = grid(1, 1, width=5.0, height=3.4)
    axis = axes[0, 0]
    scores = normalised(results)
    every = np.concatenate([[0.0, 1.0], *scores.values()])
    thresholds = np.linspace(every.min(), every.max(), 200)
    for arm in ARMS:
        if arm.label in scores:
            share = performance_profile(scores[arm.label][:, None], thresholds)
            axis.plot(thresholds, share, color=arm.colour, linestyle=arm.line)
    axis.set_xlabel("score: 0 is a random policy, 1 the paper's POMBU")
    axis.set_ylabel("share of runs above it")
    if results.profile == "smoke":
        axis.set_xlabel(f"score ({STAND_IN_NOTE}; units of the tasks)")
    add_legend(figure, results, published=False)
    return figure


def normalised(results: Results) -> dict[str, np.ndarray]:
    """Every whole run's score over all tasks, by method."""
    found: dict[str, list[float]] = {}
    for panel in results.panels:
        low, high = RANDOM[panel.title], TABLE_2[panel.title]["pombu"].mean
        for group in filter(lambda one: one.is_whole, results.of(panel)):
            scores = (group.finals - low) / (high - low)
            found.setdefault(group.arm.label, []).extend(map(float, scores))
    return {label: np.array(scores) for label, scores in found.items()}


def numbers(results: Results) -> Mapping[str, Any]:
    """The normalised scores behind the profiles."""
    scores = {k: v.tolist() for k, v in normalised(results).items()}
    return {"normalised_scores": scores}


def _cell(group: Group | None) -> str:
    return "" if group is None else in_words(group)


ITEM = Item(panels, draw, numbers=numbers)
