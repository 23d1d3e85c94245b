"""Figure 1 after recalibration: a scale of sigma, judged where it has not been seen.

The datasets are those of `figure-1` and `figure-1-code`, which lie beside the folder of
this one. Each is corrected by a scale from all the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pombu.analysis import plots
from pombu.analysis.plots import BLUE, GREEN, GREY, VERMILLION, grid, style
from pombu.errors import UsageError
from pombu.paper import Profile
from pombu.paper.experiments import Reproduction
from pombu.paper.point_experiment import PointOutcome, restore_outcome, stage_title
from pombu.paper.point_figures import (
    READINGS,
    TITLES,
    Outcomes,
    covered,
    draw_histograms,
    ratios,
    scores_by_stage,
    settings_of,
)
from pombu.paper.point_model import PointSettings
from pombu.paper.reproduce import write_provenance
from pombu.uncertainty.calibration import expected_z_squared


@dataclass(frozen=True)
class Settings:
    """Which experiments the datasets are of."""

    readings: Mapping[str, PointSettings]


def _reproduce_recalibrated(profile: Profile, out: Path) -> dict[str, Any]:
    """Correct sigma of the finished datasets beside OUT, each by all the others."""
    found = {
        reading: outcomes
        for reading in READINGS
        if (outcomes := _finished(reading, profile, out.parent / reading / "datasets"))
    }
    if not found:
        raise UsageError(
            f"{out.parent} has no two finished datasets of profile {profile} in "
            "figure-1 or figure-1-code; make them with `pombu reproduce figure-1 "
            f"--profile {profile} --out {out.parent / 'figure-1'}`."
        )
    raw = {(r, task): o for r, by in found.items() for task, o in by.items()}
    corrected = {key: recalibrated(outcomes) for key, outcomes in raw.items()}
    scores = {
        reading: {
            task: {
                "datasets": len(raw[reading, task]),
                "scale": _scales(raw[reading, task]),
                "before": scores_by_stage(raw[reading, task]),
                "after": scores_by_stage(corrected[reading, task]),
            }
            for task in by
        }
        for reading, by in found.items()
    }
    named, named_corrected = (
        {f"{TITLES[task]}, {_READ[reading]}": o for (reading, task), o in given.items()}
        for given in (raw, corrected)
    )
    with style():
        figure = draw_histograms(named_corrected)
        plots.save_figure(figure, out, "figure-1-recalibrated")
        plots.save_figure(_draw_z_squared(named, named_corrected), out, "z-squared")
    plots.write_json(out / "recalibrated.json", scores)
    used = {reading: settings_of(reading, profile) for reading in found}
    write_provenance(out, "figure-1-recalibrated", profile, Settings(used))
    return {
        name: {
            stage: float(np.mean([covered(o, stage) for o in outcomes]))
            for stage in outcomes[0].sigma
        }
        for name, outcomes in named_corrected.items()
    }


_READ = {"figure-1": "text", "figure-1-code": "code"}


def _finished(
    reading: str, profile: Profile, folder: Path
) -> dict[str, list[PointOutcome]]:
    """By environment, where there are two datasets or more."""
    settings = settings_of(reading, profile)
    found: dict[str, list[PointOutcome]] = {}
    for task in settings.environments:
        every = (
            restore_outcome(settings, task, number, folder)
            for number in range(settings.datasets)
        )
        outcomes = [outcome for outcome in every if outcome is not None]
        if len(outcomes) > 1:
            found[task] = outcomes
    return found


def _tell_recalibrated(numbers: dict[str, Any]) -> str:
    """What the corrected intervals hold."""
    told = [
        f"{name}: "
        + ", ".join(f"{stage_title(k)} {share:.0%}" for k, share in stages.items())
        for name, stages in numbers.items()
    ]
    return (
        "share of errors in the 90 % interval, with a scale from the other datasets: "
        + "; ".join(told)
    )


def recalibrated(outcomes: Sequence[PointOutcome]) -> list[PointOutcome]:
    """Every dataset with a sigma that was corrected by all the others.

    One scale per stage, c^2 = mean z^2, in which every other dataset has the same say.
    """
    scales = _scales(outcomes)
    return [
        replace(o, sigma={k: scales[k][i] * sigma for k, sigma in o.sigma.items()})
        for i, o in enumerate(outcomes)
    ]


def _scales(outcomes: Sequence[PointOutcome]) -> dict[str, list[float]]:
    """c of every dataset by stage."""
    squares = {
        stage: np.array([np.mean(ratios(o, stage) ** 2) for o in outcomes])
        for stage in outcomes[0].sigma
    }
    return {
        stage: [float(np.sqrt(np.delete(z, i).mean())) for i in range(len(z))]
        for stage, z in squares.items()
    }


def _draw_z_squared(raw: Outcomes, corrected: Outcomes) -> Figure:
    """Mean z^2 of every dataset, before and after recalibration, and what is due."""
    figure, axes = grid(1, len(raw), width=4.6, height=3.0, sharey=True)
    for ax, (name, outcomes) in zip(axes[0], raw.items(), strict=True):
        stages = list(outcomes[0].sigma)
        members = len(outcomes[0].model_loss)
        for found, color, shift in (
            (outcomes, BLUE, -0.12),
            (corrected[name], GREEN, 0.12),
        ):
            for i, stage in enumerate(stages):
                squares = [np.mean(ratios(o, stage) ** 2) for o in found]
                at = np.full(len(squares), i + shift)
                ax.plot(at, squares, ".", color=color, alpha=0.5, ms=5)
                ax.plot(i + shift, np.mean(squares), "_", color=color, ms=14, mew=2)
                ax.plot(i + shift, np.median(squares), "D", color=color, ms=4)
        for steps, line in ((np.inf, ":"), (1, "--")):
            ax.axhline(
                expected_z_squared(members, steps), color=VERMILLION, ls=line, lw=1
            )
        ax.axhline(1, color=GREY, lw=1)
        ax.set_yscale("log")
        ax.set_title(TITLES.get(name, name))
        short = (" V epochs (paper)", " until flat")
        names = [stage_title(s).removesuffix(short[0]) for s in stages]
        names = [name.removesuffix(short[1]) for name in names]
        ax.set_xticks(range(len(stages)), names, fontsize=7.5)
        ax.set_xlabel("epochs of V, or V until its loss is flat")
    axes[0, 0].set_ylabel("mean z² of a dataset")
    handles = [
        Line2D([], [], color=BLUE, marker=".", ls="", label="as estimated"),
        Line2D([], [], color=GREEN, marker=".", ls="", label="scaled by the others"),
        Line2D([], [], color=GREY, marker="_", ms=12, ls="", label="mean"),
        Line2D([], [], color=GREY, marker="D", ms=4, ls="", label="median"),
        Line2D([], [], color=VERMILLION, ls=":", label="perfect, many steps"),
        Line2D([], [], color=VERMILLION, ls="--", label="perfect, one step"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=7.5)
    return figure


FIGURE_1_RECALIBRATED = Reproduction(
    "figure-1-recalibrated",
    "Figure 1 with a scale of σ from the other datasets (of figure-1 beside OUT)",
    "paper",
    reproduce=_reproduce_recalibrated,
    tell=_tell_recalibrated,
    # It is made of datasets beside OUT, which are drawn again before it.
    redraw=lambda profile, kept, out: _reproduce_recalibrated(profile, out),
)
