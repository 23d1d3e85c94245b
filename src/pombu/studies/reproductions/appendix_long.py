"""Appendix E: POMBU against MEPPO in long-horizon tasks, H = 1000."""

from pombu.studies.drawing import draw_returns
from pombu.studies.experiments import MEPPO, POMBU, Item, Panel, Profile, at
from pombu.studies.published import TABLE_2, alive_bonus, by_label

SUMMARY = "Appendix E: four tasks with H = 1000, against MEPPO (fast: a day)"
DEFAULT: Profile = "fast"

ARMS = (POMBU, MEPPO)


def panels(profile: Profile) -> list[Panel]:
    """One per task."""
    return [
        at(
            profile,
            Panel(
                f"{task}, H = 1000",
                task,
                ARMS,
                200_000,
                horizon=1000,
                alive_bonus=alive_bonus(task),
                published=by_label(ARMS, TABLE_2[task]),
            ),
            steps=200_000,
        )
        for task in ("HalfCheetah", "Ant", "Swimmer", "Walker2d")
    ]


ITEM = Item(panels, lambda results: {"": draw_returns(results)})
