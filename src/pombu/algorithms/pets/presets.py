"""PETS's presets.

`fast` moves one particle along the ensemble's mean (mode E of the published code), so
it plans without trajectory sampling. `paper` has the published values, with its one
episode of 1000 steps per iteration cut into the task's episodes, which are then planned
side by side.
"""

from dataclasses import replace

from pombu.algorithms.config import horizon_of, is_point, trajectories
from pombu.algorithms.pets.config import PETSConfig, PlannerConfig
from pombu.dynamics.config import GaussianModelConfig
from pombu.optim.config import CriticConfig

_REAL_STEPS = 1000
_TOTAL = 200_000


def paper(task: str, horizon: int | None) -> PETSConfig:
    """The published values, the same for every task."""
    length = horizon_of(task, horizon)
    number = trajectories(_REAL_STEPS, length)
    return PETSConfig(
        trajectories=number, iterations=max(_TOTAL // (number * length), 1)
    )


def fast(task: str, horizon: int | None) -> PETSConfig:
    """The ensemble's mean instead of trajectory sampling, and an eighth of sequences.

    One particle per sequence, `propagation = "mean"`, asks a network a quarter as often
    as TS∞'s twenty, for each of which one of the five members answers. A sequence is
    then not ranked by how far members or their noise lead apart, so this is no
    trajectory sampling; `--planner.propagation tsinf` is.

    It looks as far ahead as the paper: with the true dynamics, twenty steps instead of
    thirty throw the cheetah on its back.

    Members of two layers, trained in larger batches on state changes of unit variance
    for a bounded number of steps, whose size falls from ten times the published one to
    0 in every fit: that halves the error. More than 40 epochs would learn the first few
    thousand steps by heart. Two episodes at least are planned side by side.
    """
    length = horizon_of(task, horizon)
    number = max(trajectories(_REAL_STEPS, length), 2)
    base = PETSConfig(
        trajectories=number,
        iterations=max(_TOTAL // (number * length), 1),
        gamma=0.99,
        model=GaussianModelConfig(
            hidden=(200, 200),
            learning_rate=1e-2,
            final_learning_rate=0.0,
            batch_size=256,
            epochs=40,
            max_steps=3000,
            normalise_targets=True,
            weight_decay=(2.5e-5, 5e-5, 7.5e-5),
        ),
        planner=PlannerConfig(
            population=100,
            elites=10,
            iterations=3,
            propagation="mean",
        ),
    )
    return _fast_point(base) if is_point(task) else base


def _fast_point(base: PETSConfig) -> PETSConfig:
    return replace(
        base,
        trajectories=5,
        iterations=10,
        evaluation_episodes=5,
        gamma=0.95,
        model=replace(
            base.model,
            hidden=(64, 64),
            learning_rate=1e-3,
            final_learning_rate=None,
            batch_size=64,
            max_steps=400,
        ),
        planner=replace(
            base.planner, horizon=5, population=100, elites=10, iterations=5
        ),
    )


def smoke(task: str, horizon: int | None) -> PETSConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    base = fast(task, horizon)
    return replace(
        base,
        trajectories=2,
        iterations=8,
        evaluation_episodes=0,
        model=replace(
            base.model,
            members=2,
            hidden=(16, 16),
            batch_size=32,
            epochs=2,
            max_steps=20,
        ),
        planner=replace(
            base.planner,
            horizon=4,
            population=12,
            elites=3,
            iterations=2,
            propagation="tsinf",
            particles=2,
        ),
        value=CriticConfig(hidden=(16, 16), epochs=2, minibatch=50),
        value_samples=100,
    )
