"""The runs behind the paper's panels: find those that exist, train what is missing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pombu.analysis.curves import Curve, find_curves
from pombu.analysis.statistics import Aligned, align
from pombu.errors import StoppedError
from pombu.paper import Profile
from pombu.paper.experiments import Arm, Item, Panel
from pombu.studies.backends import BackendOptions
from pombu.studies.held import answers, departed, find_settled
from pombu.studies.study import Display, Job, longest, plan, run_study
from pombu.training import config_file
from pombu.training.config_file import flat


@dataclass(frozen=True)
class Request:
    """How a reproduction is asked for."""

    profile: Profile
    out: Path
    runs: Path = Path("runs/reproduce")
    """Where runs are trained; shared by all items."""
    sources: tuple[Path, ...] = ()
    """Folders of runs that exist already; they are only read."""
    train: bool = True
    """Train what is missing; else draw what there is."""
    total_steps: int | None = None
    """Real steps of every run; None keeps the profile's."""
    seeds: int | None = None
    """Seeds from 0 on of every arm; None keeps the profile's."""
    backend: BackendOptions = field(default_factory=BackendOptions)


@dataclass(frozen=True)
class Group:
    """The seeds of one arm of a panel, as far as they exist."""

    panel: Panel
    arm: Arm
    curves: tuple[Curve, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Seeds without a run that has all its steps."""
        have = {c.run.spec.seed for c in self.curves if self._whole(c)}
        return tuple(seed for seed in self.panel.seeds if seed not in have)

    @property
    def finals(self) -> np.ndarray:
        """Each seed's final return."""
        return np.array([curve.final() for curve in self.curves])

    @property
    def steps(self) -> int:
        """Real steps that every seed has taken."""
        return int(min(curve.rows[-1]["real_steps"] for curve in self.curves))

    @property
    def is_whole(self) -> bool:
        """Whether its seeds have taken all the steps that were asked for."""
        return self.steps >= self.panel.steps(self.arm)

    def until(self, steps: int) -> "Group":
        """The same seeds, cut off where others end."""
        return replace(self, curves=tuple(one.until(steps) for one in self.curves))

    def aligned(
        self, metric: str = "return_real", by: str = "real_steps"
    ) -> Aligned | None:
        """A metric of all seeds on common steps."""
        return align(
            [(c.column(by).astype(float), c.column(metric)) for c in self.curves]
        )

    def _whole(self, curve: Curve) -> bool:
        return bool(curve.rows[-1]["real_steps"] >= self.panel.steps(self.arm))


@dataclass(frozen=True)
class Results:
    """Everything that an item is drawn from."""

    profile: Profile
    groups: tuple[Group, ...]

    def of(self, panel: Panel) -> list[Group]:
        """The arms of a panel that have at least one run."""
        return [g for g in self.groups if g.panel == panel and g.curves]

    @property
    def panels(self) -> list[Panel]:
        """The panels, in order."""
        return [g.panel for i, g in enumerate(self.groups) if self._is_first(i)]

    def _is_first(self, index: int) -> bool:
        panel = self.groups[index].panel
        return all(group.panel != panel for group in self.groups[:index])

    @property
    def any(self) -> bool:
        """Whether there is anything to draw."""
        return any(group.curves for group in self.groups)

    @property
    def missing(self) -> list[str]:
        """What there is no whole run of, in words."""
        return [
            f"{g.panel.title}, {g.arm.label}: seed {', '.join(map(str, g.missing))}"
            for g in self.groups
            if g.missing
        ]


def panels_of(item: Item, request: Request) -> list[Panel]:
    """An item's panels as they are asked for."""
    panels = list(item.panels(request.profile))
    if request.seeds is not None:
        seeds = tuple(range(request.seeds))
        panels = [replace(panel, seeds=seeds) for panel in panels]
    if request.total_steps is None:
        return panels
    # A "max" line has steps of its own, and would be none with others.
    return [
        replace(
            panel,
            total_steps=request.total_steps,
            arms=tuple(arm for arm in panel.arms if not arm.extended),
        )
        for panel in panels
    ]


def gather_results(
    panels: Sequence[Panel], request: Request, display: Display
) -> Results:
    """The curves of all panels.

    Raises:
        UsageError: A source is no run folder.
        StoppedError: Someone asked to stop while runs were trained.
    """
    known = find_settled(request.sources)
    if request.runs.is_dir():
        known += find_curves([request.runs])
    if request.train:
        jobs = [
            job for panel in panels for arm in panel.arms for job in panel.jobs(arm)
        ]
        missing = [job for job in jobs if not _is_as_asked(choose(job, known), job)]
        if missing:
            # The first seeds of all come before the second of any.
            missing.sort(key=lambda job: job.seed)
            planned = plan(longest(missing), request.runs)
            backend = request.backend.open()
            outcome = run_study(planned, request.runs, backend, display)
            if outcome.signal is not None:
                raise StoppedError(
                    "Stopped, and the runs are saved: the same command goes on.",
                    outcome.signal,
                )
            known = [*find_settled(request.sources), *find_curves([request.runs])]
    return Results(request.profile, find_groups(panels, known))


def find_groups(panels: Sequence[Panel], known: Sequence[Curve]) -> tuple[Group, ...]:
    """The seeds of every arm, as far as runs are known."""
    return tuple(
        Group(panel, arm, _curves(panel, arm, known))
        for panel in panels
        for arm in panel.arms
    )


def departures(results: Results) -> dict[str, list[str]]:
    """For each run, the settings in which it differs from what a new one would have."""
    found: dict[str, list[str]] = {}
    for group in results.groups:
        for job in group.panel.jobs(group.arm):
            wanted = flat(config_file.to_json(job.config()))
            for curve in group.curves:
                if curve.run.spec.seed != job.seed:
                    continue
                if differ := departed(curve.run.spec, wanted):
                    found[job.name] = differ
    return found


def choose(job: Job, known: Sequence[Curve]) -> Curve | None:
    """The run that answers a job.

    Of several, a whole one before others, then the one with the fewest settings that
    are not today's, then the longest.
    """
    config = flat(config_file.to_json(job.config()))
    fitting = [c for c in known if answers(c.run.spec, job, config)]

    def merit(curve: Curve) -> tuple[bool, int, float]:
        departures = len(departed(curve.run.spec, config))
        return _is_whole(curve, job), -departures, curve.rows[-1]["real_steps"]

    return max(fitting, key=merit, default=None)


def _is_whole(curve: Curve | None, job: Job) -> bool:
    steps = job.total_steps
    if curve is None or steps is None:
        return False
    last = curve.rows[-1]
    return last["real_steps"] >= steps and math.isfinite(last.get("return_real", 0.0))


def _is_as_asked(curve: Curve | None, job: Job) -> bool:
    """Whether a run is whole and has the preset's values, or the job's own."""
    if curve is None or not _is_whole(curve, job):
        return False
    return not departed(curve.run.spec, flat(config_file.to_json(job.config())))


def _curves(panel: Panel, arm: Arm, known: Sequence[Curve]) -> tuple[Curve, ...]:
    """The seeds of an arm, cut off where the panel ends.

    Seeds that have not come so far are left out; where none has, all are cut off where
    the shortest ends. A mean is never one over different numbers of steps.
    """
    jobs = panel.jobs(arm)
    found = [(choose(job, known), job) for job in jobs]
    whole = [c for c, job in found if c is not None and _is_whole(c, job)]
    if whole:
        return tuple(curve.until(panel.steps(arm)) for curve in whole)
    begun = [curve for curve, _ in found if curve is not None]
    common = min((int(c.rows[-1]["real_steps"]) for c in begun), default=0)
    return tuple(curve.until(common) for curve in begun)
