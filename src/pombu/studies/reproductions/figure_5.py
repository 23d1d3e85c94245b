"""Figure 5: every seed of POMBU and ME-TRPO, with noise and with a long horizon."""

from pombu.studies.drawing import draw_returns
from pombu.studies.experiments import METRPO, POMBU, Item, Panel, Profile, at

SUMMARY = "Figure 5: noise 0.1 and H = 1000 against ME-TRPO (fast: one seed; hours)"
DEFAULT: Profile = "fast"

ARMS = (POMBU, METRPO)


def panels(profile: Profile) -> list[Panel]:
    """Noise, and a long horizon."""
    noisy = Panel(
        "HalfCheetah, σ = 0.1", "HalfCheetah", ARMS, 200_000, observation_noise=0.1
    )
    long = Panel("HalfCheetah, H = 1000", "HalfCheetah", ARMS, 200_000, horizon=1000)
    return [at(profile, noisy), at(profile, long)]


ITEM = Item(panels, lambda results: {"": draw_returns(results, seeds=True)})
