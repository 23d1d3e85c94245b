"""PETS-U and STEVE-U: what Algorithm 1 changes inside two other methods.

The paper's authors name this as the next step. On Point2D the models are misled in one
region, so the effect can be seen by itself.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pombu.actor_critic import Frozen, expanded_targets
from pombu.algorithms import pets
from pombu.config import STEVEConfig
from pombu.envs import collect, load
from pombu.expansion import init_actor_critic, init_model, target_samples
from pombu.presets import preset
from pombu.randomness import Keys
from pombu.studies import artifacts
from pombu.studies.mirage import (
    as_transitions,
    inside,
    misled_model,
    misled_planner,
    optimal_values,
    sample,
    taught,
)
from pombu.studies.reproductions import Profile
from pombu.studies.style import BLUE, GREY, VERMILLION, grid, style

SUMMARY = "PETS-U and STEVE-U where models are misled, in Point2D (minutes)"
DEFAULT: Profile = "fast"

WEIGHTINGS: dict[str, dict[str, Any]] = {
    "STEVE": {},
    "STEVE-U": {"weighting": "bellman"},
}


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment."""

    seeds: tuple[int, ...]
    kappas: tuple[float, ...]
    episodes: int
    """Real episodes for each kappa, which start in or behind the region."""
    samples: int
    """Made-up steps that each of PETS's members learns from."""
    lessons: int
    """Gradient steps of STEVE's networks."""
    points: int
    """Real steps whose targets are compared."""


KAPPAS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
PROFILES: dict[Profile, Settings] = {
    "smoke": Settings((0,), (0.0, 1.0), 2, 60, 20, 60),
    "fast": Settings((0, 1, 2), KAPPAS, 20, 3000, 3000, 2000),
    "paper": Settings((0, 1, 2, 3, 4), KAPPAS, 50, 6000, 10_000, 5000),
}


def reproduce(profile: Profile, out: Path) -> dict[str, Any]:
    """Run both parts, draw and write everything."""
    settings = PROFILES[profile]
    planned = [row for seed in settings.seeds for row in plan_by_kappa(seed, settings)]
    targets = [row for seed in settings.seeds for row in target_errors(seed, settings)]
    tables = {
        "point-pets": (("seed", "kappa", "return", "share_inside"), planned),
        "point-steve": (("seed", "where", "target", "rms_error", "bias"), targets),
    }
    for name, (columns, rows) in tables.items():
        artifacts.write_csv(out / f"{name}.csv", columns, rows)
    with style():
        artifacts.save_figure(draw(planned, targets), out, "uncertainty-inside")
    numbers = summary(planned, targets)
    artifacts.write_json(out / "summary.json", numbers)
    artifacts.write_provenance(out, "uncertainty-inside", profile, settings)
    return numbers


def plan_by_kappa(seed: int, settings: Settings) -> list[tuple[Any, ...]]:
    """Real returns on Point2D of a planner whose models are misled, by kappa."""
    task = load("Point2D")
    config = preset("pets", "fast", "Point2D")
    state = misled_planner(config, task, settings.samples, seed)
    rows = []
    for kappa in settings.kappas:
        learner = pets.Learner(task, replace(config, kappa=kappa))
        keys = Keys(seed, 1)
        act = learner.policy(state).acting(keys.jax("act"))
        episodes = collect(task, act, starts_behind(task, settings.episodes))
        returns = [episode.rewards.sum() for episode in episodes]
        within = [inside(episode.observations).mean() for episode in episodes]
        rows.append((seed, kappa, float(np.mean(returns)), float(np.mean(within))))
        say(f"Point2D, seed {seed}, kappa {kappa:g}: return {rows[-1][2]:.2f}")
    return rows


def starts_behind(task: Any, number: int) -> list[int]:
    """Reset seeds of episodes whose straight way to the origin touches the region."""
    found: list[int] = []
    seed = 0
    env = task.make()
    while len(found) < number:
        first = env.reset(seed=seed)[0]
        along = np.linspace(0, 1, 50)[:, None] * first
        if inside(along).any():
            found.append(seed)
        seed += 1
    env.close()
    return found


def target_errors(seed: int, settings: Settings) -> list[tuple[Any, ...]]:
    """Errors of STEVE's targets on Point2D, in and out of the misleading region."""
    config: STEVEConfig = preset("steve", "fast", "Point2D")
    rng, keys = np.random.default_rng([seed, 2]), Keys(seed, 2)
    model = misled_model(
        init_model(keys.jax("model"), 2, 2, config.model), config, settings.lessons, rng
    )
    networks = taught(
        init_actor_critic(keys.jax("networks"), 2, 2, config.actor_critic),
        settings.lessons,
        config.gamma,
        0.5,
        config.actor_critic.learning_rate,
        rng,
    )
    real = sample(settings.points, 0.0, rng)
    values = optimal_values(real.following, config.gamma, 60)
    truth = real.rewards + config.gamma * values
    steps, frozen = as_transitions([real]), Frozen(networks.critics, model)
    setting = (model, networks, steps, config.gamma, config.expansion)
    horizons = np.asarray(target_samples(*setting)).mean((1, 2, 3))
    found = {f"horizon {i}": target for i, target in enumerate(horizons)}
    for name, changes in WEIGHTINGS.items():
        changed = replace(config, **changes)
        target, _ = expanded_targets(frozen, networks.actor, steps, changed)
        found[name] = np.asarray(target)
    touched = inside(real.states) | inside(real.following)
    rows = []
    for where, mask in (("inside", touched), ("outside", ~touched)):
        for name, target in found.items():
            gap = (target - truth)[mask]
            error = float(np.sqrt(np.mean(gap**2)))
            rows.append((seed, where, name, error, float(gap.mean())))
            say(f"Point2D, seed {seed}, {where}, {name}: error {error:.3f}")
    return rows


def summary(
    planned: Sequence[tuple[Any, ...]], targets: Sequence[tuple[Any, ...]]
) -> dict[str, Any]:
    """Means over seeds."""
    return {
        "point_return_by_kappa": _means(planned, 1, 2),
        "point_share_inside_by_kappa": _means(planned, 1, 3),
        "point_target_error": {
            where: _means([row for row in targets if row[1] == where], 2, 3)
            for where in ("inside", "outside")
        },
    }


def tell(numbers: dict[str, Any]) -> str:
    """What the uncertainty changes in the planner and in the targets."""
    returns = numbers["point_return_by_kappa"]
    planned = ", ".join(f"{v:.2f} with κ = {k:g}" for k, v in returns.items())
    errors = [
        f"{where} the region {found['STEVE']:.3f}, STEVE-U's {found['STEVE-U']:.3f}"
        for where, found in numbers["point_target_error"].items()
    ]
    return (
        f"misled in one region, PETS has a return of {planned}; the error of STEVE's "
        f"targets is {' and '.join(errors)}"
    )


def draw(
    planned: Sequence[tuple[Any, ...]], targets: Sequence[tuple[Any, ...]]
) -> Figure:
    """Return by kappa, and target errors by region."""
    figure, axes = grid(1, 2, width=3.6, height=2.9)
    ax = axes[0, 0]
    for seed in dict.fromkeys(row[0] for row in planned):
        own = [row for row in planned if row[0] == seed]
        ax.plot([r[1] for r in own], [r[2] for r in own], color=GREY, lw=0.8)
    means = _means(planned, 1, 2)
    ax.plot(list(means), list(means.values()), color=BLUE, marker="o", label="mean")
    ax.set(title="PETS-U, Point2D misled", xlabel="κ", ylabel="real return")
    ax = axes[0, 1]
    names = list(dict.fromkeys(row[2] for row in targets))
    for offset, (where, color) in enumerate(
        (("inside", VERMILLION), ("outside", BLUE))
    ):
        means = _means([row for row in targets if row[1] == where], 2, 3)
        places = np.arange(len(names)) + 0.4 * offset
        ax.bar(places, [means[name] for name in names], 0.38, color=color, label=where)
    labels = [name.replace("horizon ", "H=") for name in names]
    ax.set_xticks(np.arange(len(names)) + 0.2, labels, rotation=45)
    ax.set(title="STEVE-U, Point2D misled", ylabel="error of targets")
    ax.legend()
    return figure


def _means(rows: Sequence[tuple[Any, ...]], by: int, of: int) -> dict[Any, float]:
    """Mean of one column for every value of another."""
    return {
        key: float(np.mean([row[of] for row in rows if row[by] == key]))
        for key in dict.fromkeys(row[by] for row in rows)
    }


def say(line: str) -> None:
    """Tell on stderr how it goes."""
    print(line, file=sys.stderr, flush=True)
