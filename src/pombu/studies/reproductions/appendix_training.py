"""Appendix D: what happens inside POMBU during training, for each alpha."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from pombu.studies.drawing import (
    STAND_IN_NOTE,
    add_legend,
    count_seeds,
    draw_band,
)
from pombu.studies.experiments import Item, Profile
from pombu.studies.gathering import Results
from pombu.studies.reproductions.figure_3 import panels
from pombu.studies.style import grid

SUMMARY = (
    "Appendix D: entropy, KL, penalty and returns for each alpha (figure-3's runs)"
)
DEFAULT: Profile = "fast"

METRICS = ("entropy", "kl", "penalty", "p_improve", "return_model", "return_real")


def draw(results: Results) -> Mapping[str, Figure]:
    """The paper's six quantities by iteration."""
    (panel,) = results.panels
    figure, axes = grid(2, 3, width=3.0, height=2.5)
    for metric, axis in zip(METRICS, axes.flat, strict=True):
        for group in results.of(panel):
            draw_band(axis, group, metric, "iteration")
        axis.set_title(metric)
        axis.set_xlabel("iteration")
    low = min(axis.get_ylim()[0] for axis in axes[1, 1:])
    high = max(axis.get_ylim()[1] for axis in axes[1, 1:])
    for axis in axes[1, 1:]:
        # The two returns are there to be compared.
        axis.set_ylim(low, high)
    note = f"{STAND_IN_NOTE}, " if panel.preset == "smoke" else ""
    seeds = count_seeds(results.of(panel))
    figure.suptitle(f"{panel.title} ({note}{seeds})", fontsize=10)
    add_legend(figure, results, published=False)
    return {"": figure}


ITEM = Item(panels, draw, metrics=(*METRICS, "alpha"))
