"""Figure 1 and Appendix D.1's scatter: is the error of Q as large as its uncertainty?

The paper's setting trains V for a few epochs, which are few gradient steps. Beside it
stand V trained until its loss is flat, and a V that knows the step, trained likewise.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
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
from pombu.paper.point_model import POINT_PROFILES, PointSettings
from pombu.paper.reproduce import write_provenance
from pombu.uncertainty.calibration import (
    calibration,
    coverage_curve,
    over_datasets,
    summarise,
    z_scores,
)

BINS = np.linspace(-4, 4, 41)
COLORS = {FLAT: GREEN, TIMED: ORANGE}
TITLES = {"Point2D": "2D-point", "Point3D": "3D-point"}


def reproduce_histograms(profile: Profile, out: Path) -> dict[str, Any]:
    """Run the experiment, then score, draw and write everything."""
    settings = POINT_PROFILES[profile]
    outcomes = run_datasets(settings, out / "datasets", _print_progress)
    by_environment = {
        name: [o for o in outcomes if o.environment == name]
        for name in settings.environments
    }
    scores = {name: calibration_scores(found) for name, found in by_environment.items()}
    with style():
        plots.save_figure(draw_histograms(by_environment), out, "figure-1")
        plots.save_figure(draw_coverage(by_environment), out, "coverage")
    plots.write_csv(
        out / "histograms.csv",
        ("environment", "stage", "left", "right", "density"),
        _histogram_rows(by_environment),
    )
    plots.write_json(out / "calibration.json", scores)
    write_provenance(out, "figure-1", profile, settings)
    return {
        name: {
            stage: found["stages"][stage]["mean_z_squared"]["mean"]
            for stage in found["stages"]
        }
        for name, found in scores.items()
    }


def tell_histograms(numbers: dict[str, Any]) -> str:
    """How far from calibrated every stage is."""
    told = [
        f"{TITLES[name]}: "
        + ", ".join(f"{stage_title(k)} {value:.3g}" for k, value in stages.items())
        for name, stages in numbers.items()
    ]
    return f"mean of (error/σ)², which should be 1, by training of V: {'; '.join(told)}"


def calibration_scores(outcomes: Sequence[PointOutcome]) -> dict[str, Any]:
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


def draw_histograms(by_environment: dict[str, list[PointOutcome]]) -> Figure:
    """Rows are environments, columns value epochs, the last one the flat V."""
    stages = list(next(iter(by_environment.values()))[0].sigma)
    figure, axes = grid(
        len(by_environment), len(stages), width=2.3, height=2.3, sharex=True
    )
    x = np.linspace(BINS[0], BINS[-1], 200)
    for row, (name, outcomes) in zip(axes, by_environment.items(), strict=True):
        for ax, stage in zip(row, stages, strict=True):
            z, density = _density(outcomes, stage)
            color = COLORS.get(stage, BLUE)
            ax.stairs(density, BINS, fill=True, color=color, alpha=0.55)
            normal = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
            ax.plot(x, normal, color=VERMILLION, ls="--", lw=1.5, label="N(0, 1)")
            beyond = np.mean(np.abs(z) > BINS[-1])
            ax.set_title(stage_title(stage))
            note = f"mean z² {np.mean(z**2):.3g}\n{beyond:.0%} outside"
            ax.text(0.03, 0.97, note, transform=ax.transAxes, va="top", fontsize=7.5)
            ax.set_ylim(0, max(0.62, 1.25 * density.max()))
        row[0].set_ylabel(f"{TITLES.get(name, name)}\ndensity")
    for ax in axes[-1]:
        ax.set_xlabel("error / uncertainty")
    axes[0, 0].legend(loc="upper right", fontsize=7.5)
    return figure


def draw_coverage(by_environment: dict[str, list[PointOutcome]]) -> Figure:
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
    outcomes: Sequence[PointOutcome], stage: str
) -> tuple[np.ndarray, np.ndarray]:
    """All ratios of a stage, and their density over the bins (outsiders count too)."""
    z = np.concatenate([z_scores(o.error, o.sigma[stage]) for o in outcomes])
    counts, _ = np.histogram(z, BINS)
    return z, counts / (len(z) * np.diff(BINS))


def _histogram_rows(
    by_environment: dict[str, list[PointOutcome]],
) -> list[tuple[Any, ...]]:
    return [
        (name, stage, f"{left:.2f}", f"{right:.2f}", f"{height:.6g}")
        for name, outcomes in by_environment.items()
        for stage in outcomes[0].sigma
        for left, right, height in zip(
            BINS[:-1], BINS[1:], _density(outcomes, stage)[1], strict=True
        )
    ]


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ScatterSettings:
    """The experiment and how much of it is drawn."""

    experiment: PointSettings
    pairs: int = 500


def redraw_histograms(profile: Profile, kept: Path, out: Path) -> dict[str, Any]:
    """The same from datasets that were measured before."""
    take_datasets(POINT_PROFILES[profile], kept / "datasets", out / "datasets")
    return reproduce_histograms(profile, out)


def reproduce_scatter(profile: Profile, out: Path) -> dict[str, Any]:
    """Run one dataset, draw pairs of error and uncertainty, write everything."""
    experiment = scatter_experiment(profile)
    pairs = min(ScatterSettings.pairs, experiment.start_states)
    settings = ScatterSettings(experiment, pairs)
    (outcome,) = run_datasets(experiment, out / "datasets", _print_progress)
    rng = np.random.default_rng(experiment.seed)
    chosen = np.sort(rng.choice(len(outcome.error), pairs, replace=False))
    with style():
        plots.save_figure(draw_scatter(outcome, chosen), out, "figure-scatter")
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


def redraw_scatter(profile: Profile, kept: Path, out: Path) -> dict[str, Any]:
    """The same from a dataset that was measured before."""
    take_datasets(scatter_experiment(profile), kept / "datasets", out / "datasets")
    return reproduce_scatter(profile, out)


def scatter_experiment(profile: Profile) -> PointSettings:
    """One dataset of Figure 1's."""
    return replace(POINT_PROFILES[profile], environments=("Point2D",), datasets=1)


def tell_scatter(numbers: dict[str, Any]) -> str:
    """How well the uncertainty orders the errors at every stage."""
    told = [f"{stage_title(k)} {row['spearman']:.2f}" for k, row in numbers.items()]
    return f"rank correlation of error and σ by training of V: {', '.join(told)}"


def draw_scatter(outcome: PointOutcome, chosen: np.ndarray) -> Figure:
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
    "Figure 1: histograms of error/uncertainty in 2D- and 3D-point (an hour)",
    "paper",
    reproduce=reproduce_histograms,
    tell=tell_histograms,
    redraw=redraw_histograms,
)
FIGURE_SCATTER = Reproduction(
    "figure-scatter",
    "Appendix D: error against uncertainty in 2D-point, 500 pairs (minutes)",
    "paper",
    reproduce=reproduce_scatter,
    tell=tell_scatter,
    redraw=redraw_scatter,
)
