"""Figure 1: is the error of Q as large as its estimated uncertainty?

The paper's setting trains V for a few epochs, which are few gradient steps. Beside it
stand V trained until its loss is flat, and a V that knows the step, trained likewise.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.studies import artifacts
from pombu.studies.points import FLAT, PROFILES, TIMED, Outcome, run, stage_title
from pombu.studies.reproductions import Profile
from pombu.studies.style import BLUE, GREEN, GREY, ORANGE, VERMILLION, grid, style
from pombu.uncertainty.calibration import (
    calibration,
    coverage_curve,
    over_datasets,
    summarise,
    z_scores,
)

SUMMARY = "Figure 1: histograms of error/uncertainty in 2D- and 3D-point (an hour)"
DEFAULT: Profile = "paper"

BINS = np.linspace(-4, 4, 41)
COLORS = {FLAT: GREEN, TIMED: ORANGE}
TITLES = {"Point2D": "2D-point", "Point3D": "3D-point"}


def reproduce(profile: Profile, out: Path) -> dict[str, Any]:
    """Run the experiment, then score, draw and write everything."""
    settings = PROFILES[profile]
    outcomes = run(settings, out / "datasets", report=_report)
    by_environment = {
        name: [o for o in outcomes if o.environment == name]
        for name in settings.environments
    }
    scores = {name: score(found) for name, found in by_environment.items()}
    with style():
        artifacts.save_figure(draw_histograms(by_environment), out, "figure-1")
        artifacts.save_figure(draw_coverage(by_environment), out, "coverage")
    artifacts.write_csv(
        out / "histograms.csv",
        ("environment", "stage", "left", "right", "density"),
        _histogram_rows(by_environment),
    )
    artifacts.write_json(out / "calibration.json", scores)
    artifacts.write_provenance(out, "figure-1", profile, settings)
    return {
        name: {
            stage: found["stages"][stage]["mean_z_squared"]["mean"]
            for stage in found["stages"]
        }
        for name, found in scores.items()
    }


def tell(numbers: dict[str, Any]) -> str:
    """How far from calibrated every stage is."""
    told = [
        f"{TITLES[name]}: "
        + ", ".join(f"{stage_title(k)} {value:.3g}" for k, value in stages.items())
        for name, stages in numbers.items()
    ]
    return f"mean of (error/σ)², which should be 1, by training of V: {'; '.join(told)}"


def score(outcomes: Sequence[Outcome]) -> dict[str, Any]:
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


def draw_histograms(by_environment: dict[str, list[Outcome]]) -> Figure:
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


def draw_coverage(by_environment: dict[str, list[Outcome]]) -> Figure:
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


def _density(outcomes: Sequence[Outcome], stage: str) -> tuple[np.ndarray, np.ndarray]:
    """All ratios of a stage, and their density over the bins (outsiders count too)."""
    z = np.concatenate([z_scores(o.error, o.sigma[stage]) for o in outcomes])
    counts, _ = np.histogram(z, BINS)
    return z, counts / (len(z) * np.diff(BINS))


def _histogram_rows(by_environment: dict[str, list[Outcome]]) -> list[tuple[Any, ...]]:
    return [
        (name, stage, f"{left:.2f}", f"{right:.2f}", f"{height:.6g}")
        for name, outcomes in by_environment.items()
        for stage in outcomes[0].sigma
        for left, right, height in zip(
            BINS[:-1], BINS[1:], _density(outcomes, stage)[1], strict=True
        )
    ]


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
