"""PETS-U and STEVE-U on a Point2D whose learned models are misled in one region.

What Algorithm 1 changes inside two other methods, which the paper's authors name as the
next step. Inside a disc every member learns that pushing outwards throws the point
towards the origin; how far differs from member to member, and in truth nothing of the
kind happens. On average the false belief is attractive, so only the members'
disagreement gives it away. Everything else is supervised: actor and critics are fitted
to the optimal policy and to its true values, so that what remains is the effect of the
weighting or of kappa.
"""

import contextlib
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pombu.algorithms.pets import learner as pets
from pombu.algorithms.pets.config import PETSConfig
from pombu.algorithms.registry import preset
from pombu.algorithms.steve.config import STEVEConfig
from pombu.algorithms.steve.expansion import (
    ADAM,
    ActorCritic,
    ExpansionModel,
    Frozen,
    everyone,
    expanded_targets,
    init_actor_critic,
    init_model,
    model_loss,
    target_samples,
)
from pombu.analysis import plots
from pombu.analysis.plots import BLUE, GREY, VERMILLION, grid, style
from pombu.data import Transitions, learn_from
from pombu.dynamics.ensemble import predict
from pombu.dynamics.gaussian import fit_gaussian
from pombu.envs import Episode, Task, collect, load
from pombu.envs.environment import ACTION_BOUND
from pombu.nn import Descent, gradient_step
from pombu.paper import Profile
from pombu.paper.experiments import Reproduction
from pombu.paper.reproduce import write_provenance
from pombu.parallel import jit
from pombu.rng import Keys

WEIGHTINGS: dict[str, dict[str, Any]] = {
    "STEVE": {},
    "STEVE-U": {"weighting": "bellman"},
}
CENTRE = np.array([1.0, 1.0], np.float32)
RADIUS = 0.5
THROWS = (0.0, 0.4, 0.8, 1.2, 1.6)
"""How far each member throws the point at full push; of four, none has the last."""
REACH = 2.5


@dataclass(frozen=True)
class MisledSettings:
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


COLUMNS = {
    "point-pets": ("seed", "kappa", "return", "share_inside"),
    "point-steve": ("seed", "where", "target", "rms_error", "bias"),
}
"""What the tables of both parts hold."""
KAPPAS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
PROFILES: dict[Profile, MisledSettings] = {
    "smoke": MisledSettings((0,), (0.0, 1.0), 2, 60, 20, 60),
    "fast": MisledSettings((0, 1, 2), KAPPAS, 20, 3000, 3000, 2000),
    "paper": MisledSettings((0, 1, 2, 3, 4), KAPPAS, 50, 6000, 10_000, 5000),
}


def reproduce(profile: Profile, out: Path) -> dict[str, Any]:
    """Run both parts, draw and write everything."""
    settings = PROFILES[profile]
    planned = [row for seed in settings.seeds for row in _plan_by_kappa(seed, settings)]
    targets = [row for seed in settings.seeds for row in _target_errors(seed, settings)]
    return _write(profile, out, planned, targets)


def _write(
    profile: Profile,
    out: Path,
    planned: Sequence[tuple[Any, ...]],
    targets: Sequence[tuple[Any, ...]],
) -> dict[str, Any]:
    """Draw and write everything."""
    for name, rows in (("point-pets", planned), ("point-steve", targets)):
        plots.write_csv(out / f"{name}.csv", COLUMNS[name], rows)
    with style():
        plots.save_figure(_draw(planned, targets), out, "uncertainty-inside")
    numbers = summary(planned, targets)
    plots.write_json(out / "summary.json", numbers)
    write_provenance(out, "uncertainty-inside", profile, PROFILES[profile])
    return numbers


def _redraw(profile: Profile, kept: Path, out: Path) -> dict[str, Any]:
    """The same from tables that were written before."""
    planned, targets = (_read(kept / f"{name}.csv") for name in COLUMNS)
    return _write(profile, out, planned, targets)


def _read(path: Path) -> list[tuple[Any, ...]]:
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    return [tuple(map(_value, row)) for row in rows]


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _plan_by_kappa(seed: int, settings: MisledSettings) -> list[tuple[Any, ...]]:
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
        _print_progress(
            f"Point2D, seed {seed}, kappa {kappa:g}: return {rows[-1][2]:.2f}"
        )
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


def _target_errors(seed: int, settings: MisledSettings) -> list[tuple[Any, ...]]:
    """Errors of STEVE's targets on Point2D, in and out of the misleading region."""
    config: STEVEConfig = preset("steve", "fast", "Point2D")
    rng, keys = np.random.default_rng([seed, 2]), Keys(seed, 2)
    model = _misled_model(
        init_model(keys.jax("model"), 2, 2, config.model), config, settings.lessons, rng
    )
    networks = _fit_actor_critic(
        init_actor_critic(keys.jax("networks"), 2, 2, config.actor_critic),
        settings.lessons,
        config.gamma,
        0.5,
        config.actor_critic.learning_rate,
        rng,
    )
    real = sample_steps(settings.points, 0.0, rng)
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
            _print_progress(f"Point2D, seed {seed}, {where}, {name}: error {error:.3f}")
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


def _tell(numbers: dict[str, Any]) -> str:
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


def _draw(
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


def _print_progress(line: str) -> None:
    """Tell on stderr how it goes."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Sample:
    """Made-up steps in a member's eyes."""

    states: np.ndarray
    actions: np.ndarray
    """In the environment's units."""
    following: np.ndarray
    rewards: np.ndarray


def inside(states: np.ndarray) -> np.ndarray:
    """Which states lie in the misleading region."""
    found: np.ndarray = np.linalg.norm(states - CENTRE, axis=-1) < RADIUS
    return found


def believed(states: np.ndarray, actions: np.ndarray, throw: float) -> np.ndarray:
    """The next states that a member with this throw is taught."""
    outward = CENTRE / np.linalg.norm(CENTRE)
    push = np.maximum(actions @ outward, 0.0) / ACTION_BOUND
    thrown = np.where(inside(states), throw * push, 0.0)
    moved: np.ndarray = states + actions - thrown[:, None] * outward
    return moved.astype(np.float32)


def sample_steps(number: int, throw: float, rng: np.random.Generator) -> Sample:
    """Steps from all over the plane, a third of them in the region."""
    states = rng.uniform(-REACH, REACH, (number, 2)).astype(np.float32)
    within = rng.uniform(-RADIUS, RADIUS, (number // 3, 2)).astype(np.float32)
    states[: number // 3] = CENTRE + within
    actions = rng.uniform(-ACTION_BOUND, ACTION_BOUND, (number, 2)).astype(np.float32)
    following = believed(states, actions, throw)
    return Sample(states, actions, following, -(following**2).sum(-1))


def misled_planner(config: PETSConfig, task: Task, steps: int, seed: int) -> pets.State:
    """PETS's state with members that learned from their own beliefs, and a V."""
    # Whatever kappa it is to plan with: PETS without one trains no V.
    learner = pets.Learner(task, replace(config, kappa=1.0))
    state = learner.init(seed)
    rng = np.random.default_rng([seed, 1])
    real = collect(task, lambda seen, _: rng.uniform(-1, 1, seen.shape), range(20))
    experience = learn_from(state.experience, real, config.gamma)
    members = []
    for number, throw in enumerate(THROWS[: config.model.members]):
        own = sample_steps(steps, throw, rng)
        inputs = np.concatenate(
            [
                (own.states - experience.observation.mean) / experience.observation.std,
                (own.actions - experience.action.mean) / experience.action.std,
            ],
            1,
        )
        targets = own.following - own.states
        if config.model.normalise_targets:
            targets = (targets - experience.delta.mean) / experience.delta.std
        alone, memory = jax.tree.map(
            lambda leaf, number=number: leaf[number][None],
            (state.ensemble, state.ensemble_optimiser),
        )
        fitted, _, _ = fit_gaussian(
            alone,
            memory,
            inputs,
            targets,
            config.model,
            steps,
            (seed, number),
            learner.workers,
        )
        members.append(fitted)
    ensemble = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *members)
    known = pets.State(
        **{**vars(state), "ensemble": ensemble, "experience": experience}
    )
    trained, _ = learner.improve(known, _optimal_episodes(task), Keys(seed, 0))
    return trained


def _optimal(observations: np.ndarray) -> np.ndarray:
    """Straight to the origin, as fast as the box allows, in policy space."""
    return np.clip(-observations / ACTION_BOUND, -1.0, 1.0)


def optimal_values(states: np.ndarray, gamma: float, steps: int) -> np.ndarray:
    """What the optimal policy earns from states on, discounted."""
    total, place = np.zeros(len(states)), states.astype(np.float64)
    for step in range(steps):
        place = place + ACTION_BOUND * _optimal(place)
        total -= gamma**step * (place**2).sum(-1)
    return total


def _misled_model(
    model: ExpansionModel, config: STEVEConfig, steps: int, rng: np.random.Generator
) -> ExpansionModel:
    """STEVE's models, each member trained on its own belief."""
    share = config.batch_size // config.model.members
    optimiser = ADAM.init(model)

    @jit
    def step(model: ExpansionModel, optimiser: Any, real: Transitions) -> Any:
        later, _, _ = gradient_step(
            lambda model: (model_loss(model, real, config), None),
            ADAM,
            Descent(model, optimiser),
            config.model.learning_rate,
        )
        return later

    for _ in range(steps):
        parts = [
            sample_steps(share, throw, rng) for throw in THROWS[: config.model.members]
        ]
        model, optimiser = step(model, optimiser, as_transitions(parts))
    return model


def as_transitions(parts: list[Sample]) -> Transitions:
    """Samples end to end, with actions in policy space; nothing ends."""
    rows = [
        np.concatenate([getattr(p, name) for p in parts]) for name in vars(parts[0])
    ]
    states, actions, following, rewards = map(jnp.asarray, rows)
    ones = jnp.ones(len(rewards))
    return Transitions(
        states, actions / ACTION_BOUND, following, rewards, ones, 0.0 * ones
    )


def _fit_actor_critic(
    networks: ActorCritic,
    steps: int,
    gamma: float,
    noise: float,
    rate: float,
    rng: np.random.Generator,
) -> ActorCritic:
    """An actor fitted to the optimal policy, and critics to its values plus noise.

    Each critic errs by a smooth random function of its own, of the given size.
    """
    waves = rng.normal(size=(networks.critics.biases[0].shape[0], 2, 2))
    phases = rng.uniform(0, 2 * np.pi, (len(waves), 2))
    optimiser = ADAM.init(networks)

    def loss(networks: ActorCritic, states: Any, actions: Any, goals: Any) -> Any:
        steered = jnp.tanh(predict(networks.actor, states))
        best = jnp.clip(-states / ACTION_BOUND, -1.0, 1.0)
        pair = jnp.concatenate([states, actions], -1)
        said = everyone(networks.critics, pair, "float32")[..., 0]
        return jnp.mean((steered - best) ** 2) + jnp.mean((said - goals) ** 2)

    @jit
    def step(networks: ActorCritic, optimiser: Any, *batch: Any) -> Any:
        direction, optimiser = ADAM.update(jax.grad(loss)(networks, *batch), optimiser)
        return jax.tree.map(lambda w, d: w - rate * d, networks, direction), optimiser

    for _ in range(steps):
        states = rng.uniform(-REACH, REACH, (256, 2)).astype(np.float32)
        actions = rng.uniform(-1, 1, (256, 2)).astype(np.float32)
        after = states + ACTION_BOUND * actions
        goals = -(after**2).sum(-1) + gamma * optimal_values(after, gamma, 60)
        errors = np.sin(states @ waves + phases[:, None]).sum(-1)
        batch = (states, actions, (goals + noise * errors).astype(np.float32))
        networks, optimiser = step(networks, optimiser, *batch)
    return networks


def _optimal_episodes(task: Task) -> list[Episode]:
    return collect(task, lambda seen, _: _optimal(seen), range(50))


UNCERTAINTY_INSIDE = Reproduction(
    "uncertainty-inside",
    "PETS-U and STEVE-U where models are misled, in Point2D (minutes)",
    "fast",
    reproduce=reproduce,
    tell=_tell,
    redraw=_redraw,
)
