"""Figure 2: learning curves on four tasks, H = 200, with the "max" of SAC and PPO."""

from pombu.studies.drawing import draw_returns
from pombu.studies.experiments import (
    MEPPO,
    METRPO,
    POMBU,
    PPO,
    PPO_MAX,
    SAC,
    SAC_MAX,
    SLBO,
    Item,
    Panel,
    Profile,
    at,
)
from pombu.studies.published import TABLE_1, TABLE_1_MAX, alive_bonus, by_label

SUMMARY = "Figure 2: learning curves on four tasks, H = 200 (fast: about a day)"
DEFAULT: Profile = "fast"

STEPS = {
    "HalfCheetah": 200_000,
    "Swimmer": 100_000,
    "Ant": 600_000,
    "Walker2d": 400_000,
}
"""The paper's: iterations x trajectories x 200 of its Table 5."""
FAST_STEPS = {"Swimmer": 50_000}
ARMS = (POMBU, MEPPO, METRPO, SLBO, SAC, PPO, SAC_MAX, PPO_MAX)


def panels(profile: Profile) -> list[Panel]:
    """One per task, with the alive bonus of the published code.

    The paper prints numbers for HalfCheetah alone.
    """
    numbers = {"HalfCheetah": by_label(ARMS, TABLE_1, TABLE_1_MAX)}
    return [
        at(
            profile,
            Panel(
                task,
                task,
                ARMS,
                steps,
                alive_bonus=alive_bonus(task),
                published=numbers.get(task, {}),
            ),
            FAST_STEPS.get(task, 100_000),
            (0, 1, 2) if task == "HalfCheetah" else (0,),
        )
        for task, steps in STEPS.items()
    ]


ITEM = Item(panels, lambda results: {"": draw_returns(results)})
