"""What the reproduction at the paper's scale costs, from runs that were measured.

Real and imagined steps follow from the presets. Core-hours of a method are those of the
measured run with its `paper` preset that is most alike, per imagined step, or per real
step where nothing is imagined; without such a run the cell is empty, not guessed.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pombu.envs import CATALOGUE
from pombu.studies import artifacts
from pombu.studies.curves import Curve
from pombu.studies.drawing import draw_table
from pombu.studies.gathering import Request, read_sources
from pombu.studies.jobs import Job
from pombu.studies.reproductions import PAGES, Profile, find, names
from pombu.studies.style import style, thousands
from pombu.training.run import VERSIONS

SUMMARY = "what the paper's scale costs, from measured runs (--from RUNS; seconds)"
DEFAULT: Profile = "paper"


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
    cores: int
    """That the run could use; where it shared them, the hours are an upper bound."""

    @property
    def core_hours(self) -> float:
        """Wall-clock times cores."""
        return self.hours * self.cores

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


@dataclass(frozen=True)
class Settings:
    """What was counted."""

    profile: Profile
    sources: tuple[str, ...]


def reproduce_from(request: Request) -> dict[str, Any]:
    """Count, estimate, and write both tables."""
    measured = [measure(curve) for curve in read_sources(request.sources)]
    costs = count(request.profile, measured)
    out = request.out
    artifacts.write_json(out / "measured.json", measured)
    artifacts.write_json(out / "costs.json", costs)
    header = ("method", "task", "H", "runs", "real", "imagined", "core-hours")
    rows = [_row(cost) for cost in costs]
    artifacts.write_csv(out / "costs.csv", header, rows)
    with style():
        artifacts.save_figure(draw_table(header, rows), out, "costs")
    sources = tuple(sorted(one.run for one in measured))
    settings = Settings(request.profile, sources)
    artifacts.write_provenance(out, "costs", request.profile, settings)
    known = [cost.imagined_steps for cost in costs if cost.imagined_steps is not None]
    hours = [cost.core_hours for cost in costs if cost.core_hours is not None]
    return {
        "runs": sum(cost.runs for cost in costs),
        "real_steps": sum(cost.real_steps for cost in costs),
        "imagined_steps": sum(known),
        "core_hours_where_measured": sum(hours),
    }


def count(profile: Profile, measured: Sequence[Measured]) -> list[Cost]:
    """Every method and task, each run counted once although items share them."""
    groups: dict[tuple[str, str, int], list[Job]] = {}
    for job in _jobs(profile):
        key = (job.algorithm, job.task, _horizon(job))
        groups.setdefault(key, []).append(job)
    found = []
    for (algorithm, task, horizon), jobs in groups.items():
        imagined = [imagined_steps(job) for job in jobs]
        total = None if None in imagined else sum(x for x in imagined if x)
        real = sum(job.total_steps or 0 for job in jobs)
        like = _like(measured, jobs[0], horizon)
        hours = None if like is None else like.core_hours_of(real, total)
        found.append(Cost(algorithm, task, horizon, len(jobs), real, total, hours))
    return found


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
        horizon=int(spec.config["env"].get("horizon") or _own_horizon(curve.task)),
        real_steps=int(curve.rows[-1]["real_steps"]),
        imagined_steps=int(curve.rows[-1].get("imagined_steps", 0)),
        hours=curve.hours,
        cores=_cores(starts[-1]) if starts else 1,
    )


def imagined_steps(job: Job) -> int | None:
    """Steps in the learned world, from the config; None where runs decide it."""
    config, horizon = job.config(), _horizon(job)
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


def _jobs(profile: Profile) -> list[Job]:
    longest: dict[object, Job] = {}
    for name in names():
        item = None if name in PAGES else find(name).item
        for panel in item.panels(profile) if item else ():
            for job in (job for arm in panel.arms for job in panel.jobs(arm)):
                experiment = (job.algorithm, job.preset, job.seed, job.config())
                other = longest.setdefault(experiment, job)
                if (job.total_steps or 0) > (other.total_steps or 0):
                    longest[experiment] = job
    return list(longest.values())


def _like(measured: Sequence[Measured], job: Job, horizon: int) -> Measured | None:
    """The measured run that tells most: on the same task if any, and long."""
    fitting = [
        one
        for one in measured
        if (one.algorithm, one.preset) == (job.algorithm, job.preset)
    ]

    def merit(one: Measured) -> tuple[bool, int]:
        return (one.task, one.horizon) == (job.task, horizon), one.real_steps

    return max(fitting, key=merit, default=None)


def _cores(start: dict[str, Any]) -> int:
    return int(start.get("usable_cores") or start["cores"])


def _horizon(job: Job) -> int:
    return job.horizon or _own_horizon(job.task)


def _own_horizon(task: str) -> int:
    return next((entry.horizon for entry in CATALOGUE if entry.name == task), 1)


def _row(cost: Cost) -> tuple[str, ...]:
    return (
        cost.algorithm,
        cost.task,
        str(cost.horizon),
        str(cost.runs),
        thousands(cost.real_steps, 0),
        "" if cost.imagined_steps is None else f"{cost.imagined_steps:.2g}",
        "" if cost.core_hours is None else f"{cost.core_hours:.3g}",
    )
