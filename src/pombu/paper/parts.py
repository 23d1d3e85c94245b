"""The parts of the study files, what each takes, and what is held already.

`pombu reproduce studies --out studies --from results` writes studies/README.md from the
files there and from measured runs.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pombu.algorithms.presets import horizon_of
from pombu.analysis.curves import Curve, find_curves
from pombu.analysis.plots import markdown_table
from pombu.errors import UsageError
from pombu.paper.costs import (
    MeasuredRun,
    measure,
    most_alike,
    planned_imagined_steps,
)
from pombu.paper.experiments import Reproduction
from pombu.paper.panel_runs import Request
from pombu.studies.held import find_held, find_settled
from pombu.studies.study import Job, plan
from pombu.studies.study_file import read_study
from pombu.training.run import METRICS

WORKERS = 2
"""Runs side by side, each on one core."""
HEADER = ("part", "runs", "held", "core-hours", f"hours on {WORKERS} cores", "command")


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
    measured = [measure(curve) for curve in _readable(sources)]
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
    like = most_alike(measured, kin, horizon_of(job.task, job.env.horizon))
    if like is None or job.total_steps is None:
        return None
    hours = max(
        like.core_hours_of(job.total_steps, planned_imagined_steps(job)),
        like.core_hours_of(job.total_steps, None),
    )
    return hours * (job.total_steps - done_steps) / job.total_steps


def write_parts(request: Request) -> dict[str, Any]:
    """Write README.md beside the study files."""
    folder = request.out.resolve()
    parts = read_parts(folder, request.sources)
    (folder / "README.md").write_text(_page(parts))
    return {part.title: round(part.makespan, 2) for part in parts}


def _page(parts: Sequence[Part]) -> str:
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

{markdown_table(HEADER, rows)}
"""


def _hours(hours: float, part: Part) -> str:
    return f"{hours:.1f}" + ("+" if None in part.hours else "")


STUDIES = Reproduction(
    "studies",
    "writes OUT/README.md about the parts of the study files in OUT (--from RUNS)",
    "fast",
    reproduce_from=write_parts,
)
