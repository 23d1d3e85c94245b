"""What the reproduction at the paper's scale costs, as a whole and by study file.

Real and imagined steps follow from the presets. Core-hours of a method are those of the
measured run with the same preset that is most alike, per imagined step, or per real
step where nothing is imagined; without such a run there are none, not a guess.

`pombu reproduce studies --out studies --from results` writes studies/README.md: the
parts of the study files, what each takes, and what is held already.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pombu.algorithms.config import collected_steps, horizon_of
from pombu.algorithms.registry import ALGORITHMS
from pombu.analysis import plots
from pombu.analysis.curves import Curve, find_curves
from pombu.analysis.plots import markdown_table, style, thousands
from pombu.envs import CATALOGUE
from pombu.errors import UsageError
from pombu.paper import Profile
from pombu.paper.drawing import draw_table
from pombu.paper.experiments import Reproduction
from pombu.paper.panel_runs import Request
from pombu.paper.reproduce import PAGES, find, names, write_provenance
from pombu.studies.held import find_held, find_settled
from pombu.studies.study import Job, longest, plan
from pombu.studies.study_file import read_study
from pombu.training.run import METRICS

HEADER = ("method", "task", "H", "runs", "real", "imagined", "core-hours")
MEASURED = ("preset", "method", "task", "H", "real", "imagined", "hours", "cores")


@dataclass(frozen=True)
class CostSettings:
    """What was counted."""

    profile: Profile
    sources: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredRun:
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
    typical_hours: float
    """If every iteration took as long as the median one: a pause does not count."""

    @property
    def core_hours(self) -> float:
        """Typical hours times cores."""
        return self.typical_hours * (self.cores or math.nan)

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


def _reproduce_from(request: Request) -> dict[str, Any]:
    """Count, estimate, and write the tables and their page."""
    every = [_measure(curve) for curve in find_settled(request.sources)]
    # The same run is kept in the folder of every item that shows it.
    measured = [*{replace(one, run=""): one for one in every}.values()]
    costs = count(_jobs(request.profile), measured)
    out = request.out
    plots.write_json(out / "measured.json", measured)
    plots.write_json(out / "costs.json", costs)
    rows = [_row(cost) for cost in costs]
    plots.write_csv(out / "costs.csv", HEADER, rows)
    with style():
        plots.save_figure(draw_table(HEADER, rows), out, "costs")
    sources = tuple(sorted(one.run for one in measured))
    settings = CostSettings(request.profile, sources)
    write_provenance(out, "costs", request.profile, settings)
    total = _total(costs)
    (out / "README.md").write_text(_page(request.profile, costs, total, measured))
    return total


def _jobs(profile: Profile) -> list[Job]:
    """Every run of the paper's items, once although items share them."""
    others = (
        *(*PAGES, "calibrated-doubt"),
        *("uncertainty-inside", "uncertainty-inside-cheetah"),
    )
    items = [find(name).item for name in names() if name not in others]
    panels = [panel for item in items if item for panel in item.panels(profile)]
    return longest(job for p in panels for arm in p.arms for job in p.jobs(arm))


def _total(costs: Sequence[Cost]) -> dict[str, Any]:
    return {
        "runs": sum(cost.runs for cost in costs),
        "real_steps": sum(cost.real_steps for cost in costs),
        "imagined_steps_where_known": sum(cost.imagined_steps or 0 for cost in costs),
        "core_hours_where_measured": sum(cost.core_hours or 0.0 for cost in costs),
        "runs_without_measured_cost": sum(
            cost.runs for cost in costs if cost.core_hours is None
        ),
    }


def _page(
    profile: Profile,
    costs: Sequence[Cost],
    total: dict[str, Any],
    measured: Sequence[MeasuredRun],
) -> str:
    hours = total["core_hours_where_measured"]
    imagined = total["imagined_steps_where_known"]
    without = total["runs_without_measured_cost"]
    unknown = f", and {without} runs whose cost was not measured" if without else ""
    return f"""# What it costs

Written by `pombu reproduce costs --profile {profile} --from RUNS...`.

## Everything at the scale of `{profile}`

Every figure and table together: {total["runs"]} runs, {total["real_steps"]:,} real and
{imagined:.2g} imagined steps, **{hours:,.0f} core-hours**{unknown}.
Core-hours are those of the measured run below with the same method and preset, of the
same task and horizon if there is one, per imagined step, or per real step where nothing
is imagined. Every iteration counts as the run's median one, so that pauses do not. An
empty cell was not measured; where it is the imagined steps', the total leaves them out,
because how many there are is seen in a run.

{markdown_table(HEADER, [_row(cost) for cost in costs])}

## Measured runs

Hours are wall-clock; where a run shared its cores, they are more than it needed.

{markdown_table(MEASURED, [_measured_row(one) for one in sorted(measured, key=_name)])}
"""


def _name(one: MeasuredRun) -> tuple[str, str, int, str]:
    return one.preset, one.task, one.horizon, one.algorithm


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


def _measured_row(one: MeasuredRun) -> tuple[str, ...]:
    return (
        one.preset,
        one.algorithm,
        one.task,
        str(one.horizon),
        thousands(one.real_steps, 0),
        f"{one.imagined_steps:.2g}",
        f"{one.hours:.2f}",
        "not known" if one.cores is None else str(one.cores),
    )


def count(jobs: Iterable[Job], measured: Sequence[MeasuredRun]) -> list[Cost]:
    """The jobs of every method and task together, by horizon, task and method."""
    groups: dict[tuple[str, str, int], list[Job]] = {}
    for job in jobs:
        key = (job.algorithm, job.task, horizon_of(job.task, job.env.horizon))
        groups.setdefault(key, []).append(job)
    found = []
    for (algorithm, task, horizon), alike in groups.items():
        real = sum(job.total_steps or 0 for job in alike)
        like = _most_alike(measured, alike[0], horizon)
        counted = [planned_imagined_steps(job) for job in alike]
        imagined: int | None = sum(steps or 0 for steps in counted)
        if None in counted:
            imagined = None if like is None else like.imagined_steps_of(real)
        hours = None if like is None else like.core_hours_of(real, imagined)
        found.append(Cost(algorithm, task, horizon, len(alike), real, imagined, hours))
    return sorted(found, key=_sort_key)


def _measure(curve: Curve) -> MeasuredRun:
    """What a run cost."""
    spec, seconds = curve.run.spec, curve.column("iteration_seconds")
    starts = curve.run.starts()
    return MeasuredRun(
        run=curve.run.path.name,
        algorithm=spec.algorithm,
        preset=spec.preset,
        task=curve.task,
        horizon=horizon_of(curve.task, spec.config["env"].get("horizon")),
        real_steps=int(curve.rows[-1]["real_steps"]),
        imagined_steps=int(curve.rows[-1].get("imagined_steps", 0)),
        hours=curve.hours,
        cores=starts[-1].get("usable_cores") if starts else None,
        typical_hours=len(curve.rows) * float(np.nanmedian(seconds)) / 3600,
    )


def planned_imagined_steps(job: Job) -> int | None:
    """Steps in the learned dynamics, from the config; None where runs decide it."""
    config, horizon = job.config(), horizon_of(job.task, job.env.horizon)
    if job.algorithm in ("sac", "droq", "tqc", "crossq", "ppo"):
        return 0
    updates = {
        "pombu": lambda: config.updates,
        "meppo": lambda: config.updates,
        "metrpo": lambda: config.updates,
        "slbo": lambda: config.rounds * config.policy_updates,
        # Before and after every inner step, and once more for the policies that act.
        "mbmpo": lambda: (2 * config.updates + 1) * config.tasks,
    }.get(job.algorithm)
    if updates is None:
        return None
    imagined = config.imagination.horizon(horizon)
    real = config.trajectories * collected_steps(config, horizon)
    iterations = math.ceil((job.total_steps or 0) / real)
    steps = iterations * updates() * config.imagination.trajectories * imagined
    if job.algorithm == "pombu":
        # The first iteration has no model yet, and explores without one.
        explorers = config.exploration.policies * config.exploration.trajectories
        steps += max(iterations - 1, 0) * explorers * imagined
    return int(steps)


def _most_alike(
    measured: Sequence[MeasuredRun], job: Job, horizon: int
) -> MeasuredRun | None:
    """The measured run that tells most: on the same task if any, and long."""
    fitting = [
        one
        for one in measured
        if one.cores is not None
        and (one.algorithm, one.preset) == (job.algorithm, job.preset)
    ]

    def merit(one: MeasuredRun) -> tuple[bool, int]:
        return (one.task, one.horizon) == (job.task, horizon), one.real_steps

    return max(fitting, key=merit, default=None)


def _sort_key(cost: Cost) -> tuple[int, int, int]:
    tasks = [entry.name for entry in CATALOGUE]
    algorithms = list(ALGORITHMS)
    return cost.horizon, tasks.index(cost.task), algorithms.index(cost.algorithm)


COSTS = Reproduction(
    "costs",
    "what the paper's scale costs, from measured runs (--from RUNS; seconds)",
    "paper",
    reproduce_from=_reproduce_from,
)


WORKERS = 2
"""Runs side by side, each on one core."""
PARTS_HEADER = (
    "part",
    "runs",
    "held",
    "core-hours",
    f"hours on {WORKERS} cores",
    "command",
)


@dataclass(frozen=True)
class Part:
    """One command of a study file."""

    file: Path
    name: str | None
    jobs: tuple[Job, ...]
    held: int
    """Runs of it that a folder holds already."""
    hours: tuple[float | None, ...]
    """What each of the others takes on one core; None was not measured."""

    @property
    def title(self) -> str:
        """The file and the part's name."""
        return " ".join(filter(None, (self.file.stem, self.name)))

    @property
    def command(self) -> str:
        """What does it."""
        part = "" if self.name is None else f" --part {self.name}"
        return f"pombu study {self.file.parent.name}/{self.file.name}{part}"

    @property
    def core_hours(self) -> float:
        """Of all that is to be done, where it was measured."""
        return sum(hours or 0.0 for hours in self.hours)

    @property
    def makespan(self) -> float:
        """Hours with a worker on each core, in the order of the study."""
        free = [0.0] * WORKERS
        for hours in self.hours:
            free.sort()
            free[0] += hours or 0.0
        return max(free)


def read_parts(folder: Path, sources: Sequence[Path]) -> list[Part]:
    """Every part of every study file in a folder, in the order of their names.

    What a run takes is seen from every run of the sources, exploration or not.

    Raises:
        UsageError: There is no study file.
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise UsageError(f"{folder} has no study file: name its folder with --out.")
    measured = [_measure(curve) for curve in _readable(sources)]
    settled = find_settled(sources)
    found = []
    for file in files:
        study = read_study(file)
        done: dict[Path, int] = {}
        for name in study.parts or (None,):
            planned = plan(study.part(name).jobs(), folder / "none")
            held = find_held(planned, settled)
            hours = []
            for one in planned:
                if one.path not in held:
                    before = done.get(one.path, 0)
                    hours.append(estimate(one.job, measured, before))
                    done[one.path] = one.spec.total_steps
            jobs = tuple(one.job for one in planned)
            found.append(Part(file, name, jobs, len(held), tuple(hours)))
    return found


def _readable(sources: Sequence[Path]) -> Iterator[Curve]:
    """Every run that can be read; another one only tells nothing about time."""
    for folder in sources:
        for path in sorted(folder.rglob(METRICS)):
            with contextlib.suppress(UsageError):
                yield from find_curves([path.parent])


def estimate(
    job: Job, measured: Sequence[MeasuredRun], done_steps: int = 0
) -> float | None:
    """Hours of a run on one core beyond the steps that an earlier part has done.

    By imagined or by real steps of the run most alike, whichever is more: neither fits
    nor evaluations shrink with imagination. MEPPO, which is POMBU without its
    uncertainty, counts as POMBU.
    """
    kin = replace(job, algorithm="pombu") if job.algorithm == "meppo" else job
    like = _most_alike(measured, kin, horizon_of(job.task, job.env.horizon))
    if like is None or job.total_steps is None:
        return None
    hours = max(
        like.core_hours_of(job.total_steps, planned_imagined_steps(job)),
        like.core_hours_of(job.total_steps, None),
    )
    return hours * (job.total_steps - done_steps) / job.total_steps


def _write_parts(request: Request) -> dict[str, Any]:
    """Write README.md beside the study files."""
    folder = request.out.resolve()
    parts = read_parts(folder, request.sources)
    (folder / "README.md").write_text(_parts_page(parts))
    return {part.title: round(part.makespan, 2) for part in parts}


def _parts_page(parts: Sequence[Part]) -> str:
    rows = [
        (
            part.title,
            str(len(part.jobs)),
            str(part.held),
            _hours(part.core_hours, part),
            _hours(part.makespan, part),
            f"`{part.command}`",
        )
        for part in parts
    ]
    total = sum(part.core_hours for part in parts)
    return f"""# The paper's experiments, part by part

Written by `pombu reproduce studies --out studies --from results`.

The runs behind `pombu reproduce --profile fast`, in parts that two cores do in at most
two and a half hours. Each command goes on where it was stopped, and skips what
`results/` holds already: a run with the same settings and seed, and at least as many
steps. All runs come into `runs/reproduce`, where one study works at a time;
`pombu reproduce ITEM --from runs results --out results/ITEM` draws them.

Core-hours are estimated from the measured run in `results/` that is most alike, by
imagined or by real steps, whichever is more; "+" means that some were not measured.
Altogether {total:.0f} are left. `g-paper` is quicker with `--cores-per-run 2`.

{markdown_table(PARTS_HEADER, rows)}
"""


def _hours(hours: float, part: Part) -> str:
    return f"{hours:.1f}" + ("+" if None in part.hours else "")


STUDIES = Reproduction(
    "studies",
    "writes OUT/README.md about the parts of the study files in OUT (--from RUNS)",
    "fast",
    reproduce_from=_write_parts,
)
