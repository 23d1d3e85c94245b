"""What runs cost: those that were measured, and from them those that were not.

Real and imagined steps follow from the presets. Core-hours of a method are those of the
measured run with the same preset that is most alike, per imagined step, or per real
step where nothing is imagined; without such a run there are none, not a guess.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pombu.algorithms.registry import ALGORITHMS
from pombu.envs import CATALOGUE
from pombu.presets.sizes import horizon_of
from pombu.studies.curves import Curve
from pombu.studies.jobs import Job
from pombu.training.run import VERSIONS


@dataclass(frozen=True)
class Measured:
    """One run that was done."""

    run: str
    algorithm: str
    preset: str
    task: str
    horizon: int
    real_steps: int
    imagined_steps: int
    hours: float
    cores: int | None
    """That the run could use, None where it does not say; where it shared them, the
    hours are an upper bound."""

    @property
    def core_hours(self) -> float:
        """Wall-clock times cores."""
        return self.hours * (self.cores or math.nan)

    def imagined_steps_of(self, real_steps: int) -> int:
        """Imagined steps of so many real ones."""
        return round(self.imagined_steps * real_steps / self.real_steps)

    def core_hours_of(self, real_steps: int, imagined_steps: int | None) -> float:
        """What so many steps would cost: by imagined steps, if both have any."""
        if imagined_steps and self.imagined_steps:
            return self.core_hours * imagined_steps / self.imagined_steps
        return self.core_hours * real_steps / self.real_steps


@dataclass(frozen=True)
class Cost:
    """All the runs of one method on one task at a profile's scale."""

    algorithm: str
    task: str
    horizon: int
    runs: int
    real_steps: int
    imagined_steps: int | None
    core_hours: float | None


def count(jobs: Iterable[Job], measured: Sequence[Measured]) -> list[Cost]:
    """The jobs of every method and task together, by horizon, task and method."""
    groups: dict[tuple[str, str, int], list[Job]] = {}
    for job in jobs:
        key = (job.algorithm, job.task, horizon_of(job.task, job.horizon))
        groups.setdefault(key, []).append(job)
    found = []
    for (algorithm, task, horizon), alike in groups.items():
        real = sum(job.total_steps or 0 for job in alike)
        like = _like(measured, alike[0], horizon)
        counted = [imagined_steps(job) for job in alike]
        imagined: int | None = sum(steps or 0 for steps in counted)
        if None in counted:
            imagined = None if like is None else like.imagined_steps_of(real)
        hours = None if like is None else like.core_hours_of(real, imagined)
        found.append(Cost(algorithm, task, horizon, len(alike), real, imagined, hours))
    return sorted(found, key=_place)


def measure(curve: Curve) -> Measured:
    """What a run cost."""
    spec = curve.run.spec
    versions = curve.run.path / VERSIONS
    starts = json.loads(versions.read_bytes()) if versions.exists() else []
    return Measured(
        run=curve.run.path.name,
        algorithm=spec.algorithm,
        preset=spec.preset,
        task=curve.task,
        horizon=horizon_of(curve.task, spec.config["env"].get("horizon")),
        real_steps=int(curve.rows[-1]["real_steps"]),
        imagined_steps=int(curve.rows[-1].get("imagined_steps", 0)),
        hours=curve.hours,
        cores=starts[-1].get("usable_cores") if starts else None,
    )


def imagined_steps(job: Job) -> int | None:
    """Steps in the learned world, from the config; None where runs decide it."""
    config, horizon = job.config(), horizon_of(job.task, job.horizon)
    if job.algorithm in ("sac", "ppo"):
        return 0
    updates = {
        "pombu": lambda: config.updates,
        "meppo": lambda: config.updates,
        "metrpo": lambda: config.updates,
        "slbo": lambda: config.rounds * config.policy_updates,
    }.get(job.algorithm)
    if updates is None:
        return None
    iterations = math.ceil((job.total_steps or 0) / (config.trajectories * horizon))
    steps = iterations * updates() * config.imagination.trajectories * horizon
    if job.algorithm == "pombu":
        # The first iteration has no model yet, and explores without one.
        explorers = config.exploration.policies * config.exploration.trajectories
        steps += max(iterations - 1, 0) * explorers * horizon
    return int(steps)


def _like(measured: Sequence[Measured], job: Job, horizon: int) -> Measured | None:
    """The measured run that tells most: on the same task if any, and long."""
    fitting = [
        one
        for one in measured
        if one.cores is not None
        and (one.algorithm, one.preset) == (job.algorithm, job.preset)
    ]

    def merit(one: Measured) -> tuple[bool, int]:
        return (one.task, one.horizon) == (job.task, horizon), one.real_steps

    return max(fitting, key=merit, default=None)


def _place(cost: Cost) -> tuple[int, int, int]:
    tasks = [entry.name for entry in CATALOGUE]
    algorithms = list(ALGORITHMS)
    return cost.horizon, tasks.index(cost.task), algorithms.index(cost.algorithm)
