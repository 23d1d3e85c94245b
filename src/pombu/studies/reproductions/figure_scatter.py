"""Appendix D.1's scatter: error against uncertainty in 2D-point, 500 pairs."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.studies import artifacts
from pombu.studies.points import (
    FLAT,
    PROFILES,
    TIMED,
    Outcome,
    PointSettings,
    run,
    stage_title,
)
from pombu.studies.reproductions import Profile
from pombu.studies.style import BLUE, GREEN, GREY, ORANGE, VERMILLION, grid, style
from pombu.uncertainty.calibration import calibration

SUMMARY = "Appendix D: error against uncertainty in 2D-point, 500 pairs (minutes)"
DEFAULT: Profile = "paper"

COLORS = {FLAT: GREEN, TIMED: ORANGE}


@dataclass(frozen=True)
class Settings:
    """The experiment and how much of it is drawn."""

    experiment: PointSettings
    pairs: int = 500


def reproduce(profile: Profile, out: Path) -> dict[str, Any]:
    """Run one dataset, draw pairs of error and uncertainty, write everything."""
    experiment = replace(PROFILES[profile], environments=("Point2D",), datasets=1)
    pairs = min(Settings.pairs, experiment.start_states)
    settings = Settings(experiment, pairs)
    (outcome,) = run(
        experiment,
        out / "datasets",
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    rng = np.random.default_rng(experiment.seed)
    chosen = np.sort(rng.choice(len(outcome.error), pairs, replace=False))
    with style():
        artifacts.save_figure(draw(outcome, chosen), out, "figure-scatter")
    stages = list(outcome.sigma)
    artifacts.write_csv(
        out / "pairs.csv",
        ("state", "error", *(f"uncertainty_{stage}" for stage in stages)),
        [
            (
                i,
                f"{outcome.error[i]:.8g}",
                *(f"{outcome.sigma[s][i]:.8g}" for s in stages),
            )
            for i in chosen
        ],
    )
    summary = {
        stage: {
            "spearman": calibration(outcome.error, sigma).spearman,
            "mean_z_squared": calibration(outcome.error, sigma).mean_z_squared,
        }
        for stage, sigma in outcome.sigma.items()
    }
    artifacts.write_json(out / "summary.json", summary)
    artifacts.write_provenance(out, "figure-scatter", profile, settings)
    return summary


def tell(numbers: dict[str, Any]) -> str:
    """How well the uncertainty orders the errors at every stage."""
    told = [f"{stage_title(k)} {row['spearman']:.2f}" for k, row in numbers.items()]
    return f"rank correlation of error and σ by training of V: {', '.join(told)}"


def draw(outcome: Outcome, chosen: np.ndarray) -> Figure:
    """One panel per stage; between the lines the error is within 1 or 2 sigma."""
    stages = list(outcome.sigma)
    figure, axes = grid(1, len(stages), width=2.4, height=2.6, sharey=True)
    for ax, stage in zip(axes[0], stages, strict=True):
        error, sigma = outcome.error[chosen], outcome.sigma[stage][chosen]
        color = COLORS.get(stage, BLUE)
        ax.scatter(sigma, error, s=7, alpha=0.6, color=color, linewidths=0)
        edge = np.array([0.0, 1.05 * sigma.max()])
        for width, line in ((1, "-"), (2, "--")):
            label = rf"$\pm{width}\sigma$"
            ax.plot(edge, width * edge, color=VERMILLION, lw=1, ls=line, label=label)
            ax.plot(edge, -width * edge, color=VERMILLION, lw=1, ls=line)
        ax.axhline(0, color=GREY, lw=0.6)
        ax.locator_params(axis="x", nbins=4)
        ax.set(title=stage_title(stage), xlabel="uncertainty", xlim=(0, edge[1]))
    reach = 1.05 * np.abs(outcome.error[chosen]).max()
    axes[0, 0].set(ylabel="error", ylim=(-reach, reach))
    axes[0, -1].legend(loc="upper left", fontsize=7.5)
    return figure
