"""PETS-U and STEVE-U on HalfCheetah: both methods with and without Algorithm 1."""

from pombu.studies.drawing import draw_returns
from pombu.studies.experiments import PETS, STEVE, Arm, Item, Panel, Profile, at
from pombu.studies.style import VERMILLION

SUMMARY = "PETS-U and STEVE-U on HalfCheetah (fast: one seed; an hour)"
DEFAULT: Profile = "fast"

PETS_U = Arm("PETS-U", "pets", VERMILLION, "-", (("kappa", 1.0),))
STEVE_U = Arm("STEVE-U", "steve", VERMILLION, "-", (("weighting", "bellman"),))


def panels(profile: Profile) -> list[Panel]:
    """One for each method; at the paper's scale with the recommended presets too."""
    planned = Panel(
        "PETS", "HalfCheetah", (PETS, PETS_U), total_steps=20_000, preset="fast"
    )
    expanded = Panel(
        "STEVE", "HalfCheetah", (STEVE, STEVE_U), total_steps=50_000, preset="fast"
    )
    return [at(profile, planned, 10_000), at(profile, expanded, 20_000)]


ITEM = Item(panels, lambda results: {"": draw_returns(results)})
