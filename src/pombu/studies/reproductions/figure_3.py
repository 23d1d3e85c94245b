"""Figure 3: the return during training with different alpha (HalfCheetah, H = 200)."""

from pombu.studies.drawing import draw_returns
from pombu.studies.experiments import Item, Panel, Profile, alpha_arms, at

SUMMARY = "Figure 3: the penalty alpha, 0 to 1 (fast: HalfCheetah, two seeds; hours)"
DEFAULT: Profile = "fast"

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def panels(profile: Profile) -> list[Panel]:
    """One, with an arm per alpha."""
    panel = Panel("HalfCheetah, H = 200", "HalfCheetah", alpha_arms(ALPHAS), 200_000)
    return [at(profile, panel, seeds=(0, 1))]


ITEM = Item(panels, lambda results: {"": draw_returns(results)})
