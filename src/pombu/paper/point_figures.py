"""Figure 1 and Appendix D.1's scatter: is the error of Q as large as its uncertainty?

The paper's setting trains V for a few epochs, which are few gradient steps. Beside it
stand V trained until its loss is flat, and a V that knows the step, trained likewise.

What an epoch is can be read both ways: `figure-1` is the text's reading,
`figure-1-code` the published code's (`as_published`), whose histograms also leave out
what lies beyond 2.5.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.analysis import plots
from pombu.analysis.plots import BLUE, GREEN, GREY, ORANGE, VERMILLION, grid, style
from pombu.paper import Profile
from pombu.paper.experiments import Reproduction
from pombu.paper.point_experiment import (
    FLAT,
    TIMED,
    PointOutcome,
    run_datasets,
    stage_title,
    take_datasets,
)
from pombu.paper.point_model import POINT_PROFILES, PointSettings, as_published
from pombu.paper.reproduce import write_provenance
from pombu.uncertainty.calibration import (
    calibration,
    coverage_curve,
    expected_z_squared,
    over_datasets,
    summarise,
    z_scores,
)

BINS = np.linspace(-4, 4, 41)
PUBLISHED_BINS = np.linspace(-2.5, 2.5, 26)
"""The published code's: what lies outside is left out, and the rest sums to 1."""
BY_CHANCE = 2000
"""Pairs of error and uncertainty that a scatter shows, of all datasets together."""
Outcomes = Mapping[str, Sequence[PointOutcome]]
"""By environment."""
COLORS = {FLAT: GREEN, TIMED: ORANGE}
TITLES = {"Point2D": "2D-point", "Point3D": "3D-point"}


def _reproduce_histograms(
    profile: Profile,
    out: Path,
    name: str = "figure-1",
    settings: PointSettings | None = None,
) -> dict[str, Any]:
    """Run the experiment in one of its readings, then score, draw and write."""
    settings = settings or settings_of(name, profile)
    bins = BINS if name == READINGS[0] else PUBLISHED_BINS
    outcomes = run_datasets(settings, out / "datasets", _print_progress)
    by_environment = {
        name: [o for o in outcomes if o.environment == name]
        for name in settings.environments
    }
    scores = {
        task: _calibration_scores(found) for task, found in by_environment.items()
    }
    with style():
        plots.save_figure(draw_histograms(by_environment, bins), out, name)
        plots.save_figure(_draw_coverage(by_environment), out, "coverage")
        plots.save_figure(_draw_all_pairs(by_environment), out, "scatter")
    plots.write_csv(
        out / "histograms.csv",
        ("environment", "stage", "left", "right", "density"),
        histogram_rows(by_environment, bins),
    )
    plots.write_json(out / "calibration.json", scores)
    write_provenance(out, name, profile, settings)
    return {
        task: {
            stage: {
                "mean": found["stages"][stage]["mean_z_squared"]["mean"],
                "median": found["median_z_squared"][stage],
            }
            for stage in found["stages"]
        }
        for task, found in scores.items()
    }


def _redraw_histograms(
    profile: Profile, kept: Path, out: Path, name: str = "figure-1"
) -> dict[str, Any]:
    """The same from as many datasets as were measured before."""
    settings = settings_of(name, profile)
    settings = take_datasets(settings, kept / "datasets", out / "datasets")
    return _reproduce_histograms(profile, out, name, settings)


def ratios(outcome: PointOutcome, stage: str) -> np.ndarray:
    """z = error / sigma of every start state."""
    return z_scores(outcome.error, outcome.sigma[stage])


def scores_by_stage(outcomes: Sequence[PointOutcome]) -> dict[str, Any]:
    """Scores by stage, with medians over datasets and the coverage of 90 %."""
    return {
        stage: {
            **{
                name: asdict(interval)
                for name, interval in summarise(
                    [(o.error, o.sigma[stage]) for o in outcomes]
                ).items()
            },
            "median_z_squared": median_z_squared(outcomes, stage),
            "coverage_90": asdict(over_datasets([covered(o, stage) for o in outcomes])),
        }
        for stage in outcomes[0].sigma
    }


def covered(outcome: PointOutcome, stage: str) -> float:
    """Share of the errors in the 90 % interval."""
    return float(np.mean(np.abs(ratios(outcome, stage)) <= NormalDist().inv_cdf(0.95)))


def median_z_squared(outcomes: Sequence[PointOutcome], stage: str) -> float:
    """Median over datasets of mean z^2: one bad dataset does not decide it."""
    return float(np.median([np.mean(ratios(o, stage) ** 2) for o in outcomes]))


READINGS = ("figure-1", "figure-1-code")
"""Of the text, and of the published code."""


def settings_of(reading: str, profile: Profile) -> PointSettings:
    """The experiment in one of its readings."""
    settings = POINT_PROFILES[profile]
    return settings if reading == READINGS[0] else as_published(settings)


def _tell_histograms(numbers: dict[str, Any]) -> str:
    """How far from calibrated every stage is."""
    told = [
        f"{TITLES[name]}: "
        + ", ".join(
            f"{stage_title(k)} {value['mean']:.3g} (median {value['median']:.3g})"
            for k, value in stages.items()
        )
        for name, stages in numbers.items()
    ]
    return (
        "mean of (error/σ)² over datasets, 1.5 to 3 for a perfect ensemble of five, by "
        f"training of V: {'; '.join(told)}"
    )


def _calibration_scores(outcomes: Sequence[PointOutcome]) -> dict[str, Any]:
    """Every calibration score by stage, and the diagnosis of independence."""
    stages = {
        stage: {
            name: asdict(interval)
            for name, interval in summarise(
                [(o.error, o.sigma[stage]) for o in outcomes]
            ).items()
        }
        for stage in outcomes[0].sigma
    }
    ratios = [
        float(o.member_variance.mean() / np.mean(o.sigma[TIMED] ** 2)) for o in outcomes
    ]
    shrinkage = [
        float(np.mean(o.error**2) / o.member_variance.mean()) for o in outcomes
    ]
    members = [(o.member_error, np.sqrt(o.member_variance)) for o in outcomes]
    return {
        "datasets": len(outcomes),
        "stages": stages,
        "mean_z_squared_by_dataset": {
            stage: [
                calibration(o.error, o.sigma[stage]).mean_z_squared for o in outcomes
            ]
            for stage in outcomes[0].sigma
        },
        "median_z_squared": {
            stage: median_z_squared(outcomes, stage) for stage in outcomes[0].sigma
        },
        "spearman_by_dataset": {
            stage: [calibration(o.error, o.sigma[stage]).spearman for o in outcomes]
            for stage in outcomes[0].sigma
        },
        "member_variance_over_u": asdict(over_datasets(ratios)),
        "member_variance_over_u_by_dataset": ratios,
        "squared_error_over_member_variance": asdict(over_datasets(shrinkage)),
        "members_rolled_alone": {k: asdict(v) for k, v in summarise(members).items()},
        "root_mean_square_error": asdict(
            over_datasets([float(np.sqrt(np.mean(o.error**2))) for o in outcomes])
        ),
        "value_epochs": [o.epochs for o in outcomes],
        "model_epochs": [o.model_epochs for o in outcomes],
        "model_loss": [o.model_loss for o in outcomes],
    }


def draw_histograms(by_environment: Outcomes, bins: np.ndarray = BINS) -> Figure:
    """Rows are environments, columns value epochs, the last ones the flat Vs.

    The dotted line is what a perfect ensemble of as many members would have: z^2 of 1
    is not to be expected of few.
    """
    members = len(next(iter(by_environment.values()))[0].model_loss)
    expected = expected_z_squared(members, np.inf)
    stages = list(next(iter(by_environment.values()))[0].sigma)
    figure, axes = grid(
        len(by_environment), len(stages), width=2.3, height=2.3, sharex=True
    )
    x = np.linspace(bins[0], bins[-1], 200)
    for row, (name, outcomes) in zip(axes, by_environment.items(), strict=True):
        for ax, stage in zip(row, stages, strict=True):
            z, density = _density(outcomes, stage, bins)
            color = COLORS.get(stage, BLUE)
            ax.stairs(density, bins, fill=True, color=color, alpha=0.55)
            for square, line in ((1.0, "--"), (expected, ":")):
                normal = np.exp(-(x**2) / (2 * square)) / np.sqrt(2 * np.pi * square)
                label = f"N(0, {square:g})"
                ax.plot(x, normal, color=VERMILLION, ls=line, lw=1.5, label=label)
            beyond = np.mean(np.abs(z) > bins[-1])
            ax.set_title(stage_title(stage))
            middle = median_z_squared(outcomes, stage)
            note = f"mean z² {np.mean(z**2):.3g}\nmedian {middle:.3g}"
            note += f"\n{beyond:.0%} outside"
            ax.text(0.03, 0.97, note, transform=ax.transAxes, va="top", fontsize=7.5)
            ax.set_ylim(0, max(0.62, 1.25 * density.max()))
        row[0].set_ylabel(f"{TITLES.get(name, name)}\ndensity")
    for ax in axes[-1]:
        ax.set_xlabel("error / uncertainty")
    axes[0, 0].legend(loc="upper right", fontsize=7.5)
    return figure


def _draw_all_pairs(by_environment: Outcomes) -> Figure:
    """Error against uncertainty over all datasets, each in units of its own spread.

    Datasets differ in the size of everything, and would rank states by that alone: both
    numbers are divided by the dataset's mean sigma.
    """
    stages = list(next(iter(by_environment.values()))[0].sigma)
    figure, axes = grid(
        len(by_environment), len(stages), width=2.3, height=2.3, sharey="row"
    )
    rng = np.random.default_rng(0)
    for row, (name, outcomes) in zip(axes, by_environment.items(), strict=True):
        share = max(1, BY_CHANCE // len(outcomes))
        chosen = [rng.permutation(len(o.error))[:share] for o in outcomes]
        for ax, stage in zip(row, stages, strict=True):
            for o, i in zip(outcomes, chosen, strict=True):
                unit = o.sigma[stage].mean()
                size = float(np.sqrt(np.mean(o.error**2)))
                ax.scatter(
                    o.sigma[stage][i] / unit,
                    o.error[i] / size,
                    s=3,
                    alpha=0.3,
                    color=COLORS.get(stage, BLUE),
                    linewidths=0,
                )
            ranks = [calibration(o.error, o.sigma[stage]).spearman for o in outcomes]
            note = (
                f"Spearman {np.mean(ranks):.2f}\nmedian {np.median(ranks):.2f}\n"
                f"above 0 in {np.sum(np.array(ranks) > 0)} of {len(ranks)}"
            )
            ax.text(0.03, 0.97, note, transform=ax.transAxes, va="top", fontsize=7)
            ax.set(title=stage_title(stage), xlim=(0, 3), ylim=(-4, 4))
        row[0].set_ylabel(f"{TITLES.get(name, name)}\nerror / its root mean square")
    for ax in axes[-1]:
        ax.set_xlabel("σ / its mean")
    return figure


def _draw_coverage(by_environment: Outcomes) -> Figure:
    """How often the real Q lies inside intervals of nominal coverage."""
    figure, axes = grid(1, len(by_environment), width=3.2, height=3.1, sharey=True)
    for ax, (name, outcomes) in zip(axes[0], by_environment.items(), strict=True):
        error = np.concatenate([o.error for o in outcomes])
        for stage in (FLAT, TIMED):
            sigma = np.concatenate([o.sigma[stage] for o in outcomes])
            curve = coverage_curve(error, sigma)
            ax.plot(*curve, color=COLORS[stage], label=f"U, {stage_title(stage)}")
            for o in outcomes:
                curve = coverage_curve(o.error, o.sigma[stage])
                ax.plot(*curve, color=COLORS[stage], lw=0.6, alpha=0.5)
        alone = np.concatenate([o.member_error for o in outcomes])
        spread = np.sqrt(np.concatenate([o.member_variance for o in outcomes]))
        curve = coverage_curve(alone, spread)
        ax.plot(*curve, color=BLUE, ls="--", label="members rolled alone")
        ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label="perfect")
        ax.set(title=TITLES.get(name, name), xlabel="nominal coverage")
    axes[0, 0].set_ylabel("observed coverage")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _density(
    outcomes: Sequence[PointOutcome], stage: str, bins: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All ratios of a stage, and their density over the bins.

    Outsiders count too, except where the published code's bins leave them out.
    """
    z = np.concatenate([ratios(o, stage) for o in outcomes])
    counts, _ = np.histogram(z, bins)
    counted = max(counts.sum(), 1) if bins is PUBLISHED_BINS else len(z)
    return z, counts / (counted * np.diff(bins))


def histogram_rows(by_environment: Outcomes, bins: np.ndarray) -> list[tuple[Any, ...]]:
    """Environment, stage, edges and height of every bar."""
    return [
        (name, stage, f"{left:.2f}", f"{right:.2f}", f"{height:.6g}")
        for name, outcomes in by_environment.items()
        for stage in outcomes[0].sigma
        for left, right, height in zip(
            bins[:-1], bins[1:], _density(outcomes, stage, bins)[1], strict=True
        )
    ]


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ScatterSettings:
    """The experiment and how much of it is drawn."""

    experiment: PointSettings
    pairs: int = 500


def _reproduce_scatter(profile: Profile, out: Path) -> dict[str, Any]:
    """Run one dataset, draw pairs of error and uncertainty, write everything."""
    experiment = _scatter_experiment(profile)
    pairs = min(ScatterSettings.pairs, experiment.start_states)
    settings = ScatterSettings(experiment, pairs)
    (outcome,) = run_datasets(experiment, out / "datasets", _print_progress)
    rng = np.random.default_rng(experiment.seed)
    chosen = np.sort(rng.choice(len(outcome.error), pairs, replace=False))
    with style():
        plots.save_figure(_draw_scatter(outcome, chosen), out, "figure-scatter")
    stages = list(outcome.sigma)
    plots.write_csv(
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
    plots.write_json(out / "summary.json", summary)
    write_provenance(out, "figure-scatter", profile, settings)
    return summary


def _redraw_scatter(profile: Profile, kept: Path, out: Path) -> dict[str, Any]:
    """The same from a dataset that was measured before."""
    take_datasets(_scatter_experiment(profile), kept / "datasets", out / "datasets")
    return _reproduce_scatter(profile, out)


def _scatter_experiment(profile: Profile) -> PointSettings:
    """One dataset of Figure 1's."""
    return replace(POINT_PROFILES[profile], environments=("Point2D",), datasets=1)


def _tell_scatter(numbers: dict[str, Any]) -> str:
    """How well the uncertainty orders the errors at every stage."""
    told = [f"{stage_title(k)} {row['spearman']:.2f}" for k, row in numbers.items()]
    return f"rank correlation of error and σ by training of V: {', '.join(told)}"


def _draw_scatter(outcome: PointOutcome, chosen: np.ndarray) -> Figure:
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


FIGURE_1 = Reproduction(
    "figure-1",
    "Figure 1: histograms of error/uncertainty in 2D- and 3D-point (two hours)",
    "paper",
    reproduce=_reproduce_histograms,
    tell=_tell_histograms,
    redraw=_redraw_histograms,
)
FIGURE_1_CODE = Reproduction(
    "figure-1-code",
    "Figure 1 as the published code reads it: one pool of trajectories (two hours)",
    "paper",
    reproduce=partial(_reproduce_histograms, name="figure-1-code"),
    tell=_tell_histograms,
    redraw=partial(_redraw_histograms, name="figure-1-code"),
)
FIGURE_SCATTER = Reproduction(
    "figure-scatter",
    "Appendix D: error against uncertainty in 2D-point, 500 pairs (minutes)",
    "paper",
    reproduce=_reproduce_scatter,
    tell=_tell_scatter,
    redraw=_redraw_scatter,
)
