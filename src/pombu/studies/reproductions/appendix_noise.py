"""Appendix E: POMBU against MEPPO and ME-TRPO in noisy HalfCheetah."""

from pombu.studies.drawing import draw_returns
from pombu.studies.experiments import MEPPO, METRPO, POMBU, Item, Panel, Profile, at

SUMMARY = "Appendix E: noise 0.01 and 0.1, against MEPPO and ME-TRPO (fast: hours)"
DEFAULT: Profile = "fast"


def panels(profile: Profile) -> list[Panel]:
    """The paper's three."""
    compared = ((0.01, MEPPO), (0.1, MEPPO), (0.01, METRPO))
    return [
        at(
            profile,
            Panel(
                f"σ = {noise:g}, against {other.label}",
                "HalfCheetah",
                (POMBU, other),
                200_000,
                observation_noise=noise,
            ),
        )
        for noise, other in compared
    ]


ITEM = Item(panels, lambda results: {"": draw_returns(results, columns=3)})
