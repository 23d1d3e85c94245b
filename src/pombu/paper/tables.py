"""The paper's tables: HalfCheetah at H = 200 (1), and all methods at H = 1000 (2)."""

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from pombu.analysis.curves import Curve
from pombu.analysis.plots import grid, thousands
from pombu.analysis.results_page import Published
from pombu.analysis.statistics import performance_profile
from pombu.envs import CATALOGUE, EnvConfig
from pombu.nn import MLP, init_value, predict_value
from pombu.paper import Profile
from pombu.paper.drawing import STAND_IN_NOTE, add_legend, draw_returns, draw_table
from pombu.paper.experiments import (
    MBMPO,
    METRPO,
    PETS,
    POMBU,
    PUBLISHED_2,
    RANDOM,
    SLBO,
    STEVE,
    UNCERTAINTY_MINUTES,
    Item,
    Panel,
    Reproduction,
    alive_bonus,
    at,
    published_by_label,
)
from pombu.paper.learning_curves import task_panels
from pombu.paper.panel_runs import Group, Results
from pombu.paper.reproduce import hours, imagined_steps, in_words
from pombu.parallel import jit
from pombu.uncertainty.algorithm1 import (
    local_uncertainty,
    propagate,
    standard_deviation,
)

METHODS = (POMBU, STEVE, MBMPO, SLBO, METRPO, PETS)
"""The columns of Table 2."""
SAMPLE_COLUMNS = ("return", "time (h)", "imagined", "real", "uncertainty (min)")
"""The columns of Table 1."""
REPEATS = 3
"""Of a timed piece of work, the fastest of which counts."""


def _cheetah_panel(profile: Profile) -> list[Panel]:
    """Table 1: Figure 2's HalfCheetah."""
    return [panel for panel in task_panels(profile) if panel.title == "HalfCheetah"]


def _sample_rows(results: Results) -> list[tuple[str, ...]]:
    """Table 1: method, source and numbers: ours, and below it the paper's."""
    (panel,) = results.panels
    found: list[tuple[str, ...]] = []
    groups = {group.arm.label: group for group in results.of(panel)}
    for label in dict.fromkeys([*groups, *panel.published]):
        own = _our_samples(groups[label]) if label in groups else ("no run", *[""] * 4)
        found.append((label, "ours", *own))
        if theirs := panel.published.get(label):
            found.append((label, "paper", *_published_samples(label, theirs)))
    return found


def _draw_samples(results: Results) -> Mapping[str, Figure]:
    """Table 1 as a picture."""
    (panel,) = results.panels
    note = (
        "Hours are wall-clock, ours on the cores of a run, the paper's on one GPU;\n"
        "ours of the uncertainty are minutes of one core."
    )
    if panel.preset == "smoke":
        note = f"{note} ({STAND_IN_NOTE})"
    drawn = [
        (label if source == "ours" else "", source, *rest)
        for label, source, *rest in _sample_rows(results)
    ]
    return {"": draw_table(("", "", *SAMPLE_COLUMNS), drawn, note)}


def _sample_numbers(results: Results) -> Mapping[str, Any]:
    """Table 1, and the time that the uncertainty takes."""
    header = ("method", "source", *SAMPLE_COLUMNS)
    return {
        "table": [dict(zip(header, row, strict=True)) for row in _sample_rows(results)],
        "uncertainty_minutes": {
            group.arm.label: uncertainty_minutes(group.curves[0])
            for group in results.of(results.panels[0])
            if group.arm.algorithm == "pombu"
        },
        "uncertainty_minutes_paper": UNCERTAINTY_MINUTES,
    }


def _our_samples(group: Group) -> tuple[str, ...]:
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


def _published_samples(label: str, theirs: Published) -> tuple[str, ...]:
    return (
        f"{theirs.mean:g} ± {theirs.std:g}",
        "" if theirs.hours is None else f"{theirs.hours:g}",
        "" if theirs.imagined_steps is None else f"{theirs.imagined_steps:.2g}",
        thousands(theirs.real_steps, 0),
        f"{UNCERTAINTY_MINUTES:g}" if label == POMBU.label else "",
    )


def uncertainty_minutes(curve: Curve) -> float:
    """Minutes of one core that Algorithm 1 takes for all the imagined steps of a run.

    In a run it is fused with the imagination, so no stage of it can be timed. Here it
    runs alone on arrays of the run's own sizes: V of every member's next state, the
    variance over the members, and its sum along time. The training of V is not part of
    it, as in the paper's 1.4 minutes.
    """
    config = curve.run.spec.config
    task = next(entry for entry in CATALOGUE if entry.id == config["env"]["id"])
    shape = (
        int(config["model"]["members"]),
        int(config["env"].get("horizon") or task.horizon),
        int(config["imagination"]["trajectories"]),
    )
    hidden = tuple(int(width) for width in config["value"]["hidden"])
    seconds = _batch_seconds(shape, task.observation_dim, hidden)
    steps = curve.rows[-1].get("imagined_steps", 0.0)
    return seconds * steps / (shape[1] * shape[2]) / 60


@lru_cache(maxsize=16)
def _batch_seconds(
    shape: tuple[int, int, int], observation_dim: int, hidden: tuple[int, ...]
) -> float:
    """Seconds of one core for a batch of K members, H steps and N trajectories.

    Counted as processor time, which others on the machine do not lengthen.
    """
    value = init_value(jax.random.key(0), observation_dim, hidden)
    rewards = jax.random.normal(jax.random.key(1), shape)
    states = jax.random.normal(jax.random.key(2), (*shape, observation_dim))

    @jit
    def algorithm_1(
        value: MLP, rewards: Float[Array, "K H N"], states: Float[Array, "K H N o"]
    ) -> Float[Array, "H N"]:
        local = local_uncertainty(rewards, predict_value(value, states), 0.99)
        return standard_deviation(propagate(local, 0.99))

    algorithm_1(value, rewards, states).block_until_ready()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        algorithm_1(value, rewards, states).block_until_ready()
        times.append(time.process_time() - start)
    return min(times)


def _long_panels(profile: Profile) -> list[Panel]:
    """Table 2: one panel per task, with the alive bonus of the published numbers."""
    return [
        at(
            profile,
            Panel(
                task,
                EnvConfig(task, horizon=1000, alive_bonus=alive_bonus(task)),
                METHODS,
                200_000,
                published=published_by_label(METHODS, theirs),
            ),
            steps=200_000,
        )
        for task, theirs in PUBLISHED_2.items()
    ]


def return_rows(results: Results) -> list[tuple[str, ...]]:
    """Table 2: per task ours, and below it the paper's."""
    found = []
    for panel in results.panels:
        groups = {group.arm.label: group for group in results.of(panel)}
        found.append(
            (panel.title, "ours", *(_cell(groups.get(a.label)) for a in METHODS))
        )
        theirs = PUBLISHED_2[panel.title]
        cells = (theirs[arm.algorithm] for arm in METHODS)
        found.append(("", "paper", *(f"{one.mean:g} ± {one.std:g}" for one in cells)))
    return found


def _draw_return_table(results: Results) -> Mapping[str, Figure]:
    """Table 2 as a picture, its curves, and the profiles of methods with whole runs."""
    note = "An empty cell has no run. Ant and Walker2d with an alive bonus of 1."
    if results.profile == "smoke":
        note = f"{note} ({STAND_IN_NOTE})"
    header = ("", "", *(arm.label for arm in METHODS))
    table = draw_table(header, return_rows(results), note)
    return {
        "": table,
        "-curves": draw_returns(results),
        **(
            {"-profiles": _draw_profiles(results)}
            if _normalised_scores(results)
            else {}
        ),
    }


def _draw_profiles(results: Results) -> Figure:
    """The share of runs above each score; 0 is random, 1 the paper's POMBU."""
    figure, axes = grid(1, 1, width=5.0, height=3.4)
    axis = axes[0, 0]
    scores = _normalised_scores(results)
    every = np.concatenate([[0.0, 1.0], *scores.values()])
    thresholds = np.linspace(every.min(), every.max(), 200)
    for arm in METHODS:
        if arm.label in scores:
            share = performance_profile(scores[arm.label][:, None], thresholds)
            axis.plot(thresholds, share, color=arm.colour, linestyle=arm.line)
    axis.set_xlabel("score: 0 is a random policy, 1 the paper's POMBU")
    axis.set_ylabel("share of runs above it")
    if results.profile == "smoke":
        axis.set_xlabel(f"score ({STAND_IN_NOTE}; units of the tasks)")
    add_legend(figure, results.groups, published=False)
    return figure


def _normalised_scores(results: Results) -> dict[str, np.ndarray]:
    """Every whole run's score over all tasks, by method."""
    found: dict[str, list[float]] = {}
    for panel in results.panels:
        low, high = (
            RANDOM[panel.title],
            PUBLISHED_2[panel.title]["pombu"].mean,
        )
        for group in filter(lambda one: one.is_whole, results.of(panel)):
            scores = (group.finals - low) / (high - low)
            found.setdefault(group.arm.label, []).extend(map(float, scores))
    return {label: np.array(scores) for label, scores in found.items()}


def _return_numbers(results: Results) -> Mapping[str, Any]:
    """The normalised scores behind the profiles."""
    scores = {k: v.tolist() for k, v in _normalised_scores(results).items()}
    return {"normalised_scores": scores}


def _cell(group: Group | None) -> str:
    return "" if group is None else in_words(group)


TABLE_1 = Reproduction(
    "table-1",
    "Table 1: return, time and samples on HalfCheetah (figure-2's runs; hours)",
    "fast",
    Item(_cheetah_panel, _draw_samples, numbers=_sample_numbers),
)
TABLE_2 = Reproduction(
    "table-2",
    "Table 2: four tasks, H = 1000, 200k steps, all methods (fast: days)",
    "fast",
    Item(_long_panels, _draw_return_table, numbers=_return_numbers),
)
