"""Figure 4: exploration with beta = 10 and 0, and the seeds after 1e5 real steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.studies.drawing import add_legend, draw_panel
from pombu.studies.experiments import POMBU, Arm, Item, Panel, Profile, at
from pombu.studies.gathering import Group, Results
from pombu.studies.style import BLACK, VERMILLION, grid, thousands

SUMMARY = "Figure 4: exploration with beta = 10 against 0 (fast: three seeds; hours)"
DEFAULT: Profile = "fast"

MOMENT = 100_000
"""Real steps after which the paper compares seeds."""
SEEDS = 5
ARMS = (
    replace(POMBU, label="β = 10"),
    Arm("β = 0", "pombu", VERMILLION, "--", (("beta", 0.0),)),
)


def panels(profile: Profile) -> list[Panel]:
    """One panel; its picture has a second one beside it."""
    panel = Panel(
        "HalfCheetah, H = 200",
        "HalfCheetah",
        ARMS,
        200_000,
        seeds=tuple(range(SEEDS)),
        paper_seeds=SEEDS,
    )
    return [at(profile, panel, seeds=(0, 1, 2))]


def moment(groups: Sequence[Group]) -> int:
    """When seeds are compared: after the paper's 1e5 steps, or where the first ends."""
    return min(MOMENT, *(group.steps for group in groups))


def performance(group: Group, step: int) -> np.ndarray:
    """Every seed's return at that moment, between the evaluations around it."""
    return np.array(
        [
            np.interp(step, c.column("real_steps"), c.column("return_real"))
            for c in group.curves
        ]
    )


def draw(results: Results) -> Mapping[str, Figure]:
    """Left the curves, right every seed as a dot and their mean as a bar."""
    (panel,) = results.panels
    figure, axes = grid(1, 2, width=3.6, height=3.0)
    left, right = axes[0]
    groups = results.of(panel)
    draw_panel(left, panel, groups, seeds=False, published=False)
    left.set_ylabel("return")
    step = moment(groups)
    for i, group in enumerate(groups):
        values = performance(group, step)
        shift = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else [0.0]
        right.plot(i + np.array(shift), values, "o", color=group.arm.colour, ms=6)
        right.hlines(values.mean(), i - 0.25, i + 0.25, color=BLACK, linewidth=1.5)
    right.set_xticks(range(len(groups)), [group.arm.label for group in groups])
    right.set_xlim(-0.6, len(groups) - 0.4)
    right.set_title(f"seeds after {thousands(step, 0)} real steps")
    right.set_ylabel("return")
    add_legend(figure, results, published=False)
    return {"": figure}


def numbers(results: Results) -> Mapping[str, Any]:
    """The seeds at that moment."""
    groups = results.of(results.panels[0])
    step = moment(groups)
    return {
        "after_1e5_steps": {
            group.arm.label: {
                "real_steps": step,
                "returns": performance(group, step).tolist(),
                "std": float(performance(group, step).std()),
            }
            for group in groups
        }
    }


ITEM = Item(panels, draw, numbers=numbers)
