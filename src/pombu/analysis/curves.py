"""Learning curves of runs: read them, summarise them, group seeds and label them."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pombu.algorithms.registry import defaults
from pombu.envs import short_name
from pombu.errors import UsageError
from pombu.training.config_file import flat
from pombu.training.metrics import Row
from pombu.training.run import CONFIG, METRICS, Run, open_run

STUDY_FILES = ("study.json", "study.lock")
"""What a study leaves beside its run folders."""
LAST = 3
"""Evaluations whose mean is called a run's final return."""
RETURNS = {
    "last": "the last policy without noise, measured at the end of the run",
    "final": f"mean of the last {LAST} evaluations during training, with noise",
    "best": "the highest evaluation during training, with noise",
    "random": "a random policy, measured at the end of the run",
}
"""What the returns of a run are called, and what each means."""


@dataclass(frozen=True)
class Curve:
    """One run's rows."""

    run: Run
    rows: list[Row]
    cut_at: int | None = None
    """Real steps at which the rest was left out; None leaves out nothing."""

    @property
    def task(self) -> str:
        """The task's short name."""
        return short_name(str(self.run.spec.config["env"]["id"]))

    @property
    def label(self) -> str:
        """Algorithm and preset, and whether a known reward is learned all the same."""
        label = f"{self.run.spec.algorithm} ({self.run.spec.preset})"
        config = self.run.spec.config
        own = str(config["env"]["id"]).startswith("pombu/")
        learned = config.get("model", {}).get("reward") == "learned"
        return f"{label}, learned reward" if own and learned else label

    @property
    def finished(self) -> bool:
        """Whether all real steps were taken, or all up to where it was cut."""
        steps = self.run.spec.total_steps
        due = steps if self.cut_at is None else min(steps, self.cut_at)
        if not self.rows:
            return False
        last = self.rows[-1]
        ended = self.run.spec.is_done(int(last["iteration"]), int(last["real_steps"]))
        return ended or last["real_steps"] >= due

    def until(self, steps: int) -> "Curve":
        """What a run of so many real steps leaves: its last row is at or beyond."""
        before = [0.0, *(row["real_steps"] for row in self.rows[:-1])]
        pairs = zip(before, self.rows, strict=True)
        return replace(
            self, rows=[row for taken, row in pairs if taken < steps], cut_at=steps
        )

    def column(self, name: str) -> np.ndarray:
        """A metric by iteration; NaN where it was not measured."""
        return np.array([row.get(name, np.nan) for row in self.rows])

    @property
    def hours(self) -> float:
        """Wall-clock time of all iterations."""
        return float(np.nansum(self.column("iteration_seconds"))) / 3600

    def needed(self, target: float) -> int | None:
        """Real steps before the first evaluation that reached a return."""
        reached = np.flatnonzero(self.column("return_real") >= target)
        return int(self.column("real_steps")[reached[0]]) if len(reached) else None

    def final(self, name: str = "return_real") -> float:
        """Mean of a metric over the last evaluations; NaN if there was none."""
        measured = self.column(name)
        measured = measured[~np.isnan(measured)][-LAST:]
        return float(np.mean(measured)) if len(measured) else math.nan

    @property
    def best(self) -> float:
        """The highest return of an evaluation during training, with noise."""
        returns = self.column("return_real")
        return math.nan if np.isnan(returns).all() else float(np.nanmax(returns))

    @property
    def last(self) -> float:
        """Return of the last policy without noise; NaN until its run has ended."""
        return self._at_the_end("deterministic")

    @property
    def random(self) -> float:
        """A random policy's return; NaN where it was not measured."""
        return self._at_the_end("random")

    @property
    def returns(self) -> dict[str, float]:
        """Every return by what it is called."""
        values = (self.last, self.final(), self.best, self.random)
        return dict(zip(RETURNS, values, strict=True))

    def _at_the_end(self, kind: str) -> float:
        # Evaluations of version 0.1 have no random policy's.
        measured = (self.run.evaluation() or {}).get(kind)
        return math.nan if measured is None else float(measured["mean"])


def read_curves(folders: Sequence[Path]) -> list[Curve]:
    """Read the metrics of run folders, or of folders that hold some, as a study's does.

    Raises:
        UsageError: A folder is no run and holds none, or a run has no finished
            iteration yet.
    """
    curves = []
    for folder in folders:
        for path in _runs_of(folder):
            run = open_run(path)
            rows = run.rows()
            if not rows:
                raise UsageError(
                    f"{path} has no finished iteration yet: wait for the first one, or "
                    f"go on with `pombu resume {run.named}`."
                )
            curves.append(Curve(run, rows))
    return curves


def _runs_of(folder: Path) -> list[Path]:
    if folder.name in STUDY_FILES:
        return []  # `pombu plot STUDY/*` names them as well
    if (folder / CONFIG).exists():
        return [folder]
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    return inside or [folder]


LABEL_DIFFERENCES = 3
MISSING = "–"


def find_curves(folders: Iterable[Path], without: str | None = None) -> list[Curve]:
    """Read the runs in folders: each is a run folder, or holds some at any depth.

    Runs without a finished iteration are left out, and so are those in a folder of the
    name `without` inside of one of the folders, which are not even opened.

    Raises:
        UsageError: One of them is no folder.
    """
    found = []
    for folder in folders:
        for path in _runs_inside(folder):
            if without in path.relative_to(folder).parts:
                continue
            run = open_run(path)
            rows = run.rows()
            if rows:
                found.append(Curve(run, rows))
    return found


def _runs_inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is no folder: give run folders, or a folder that holds some."
        )
    # Other folders have a config.json as well; only a run has metrics beside it.
    found = sorted(path.parent for path in folder.rglob(METRICS))
    return [path for path in found if (path / CONFIG).exists()]


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in every run, as text per run."""

    key: str
    values: tuple[str, ...]


def settings(curve: Curve) -> dict[str, str]:
    """What a run was asked for, flat, as text."""
    spec = curve.run.spec
    return {
        "algorithm": spec.algorithm,
        "preset": spec.preset,
        "seed": str(spec.seed),
        "total_steps": str(spec.total_steps),
        **{
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in _config(curve).items()
        },
    }


def _config(curve: Curve) -> dict[str, object]:
    """A run's config, flat; what its version did not know of is the default."""
    spec = curve.run.spec
    return {**defaults(spec.algorithm), **flat(spec.config)}


def differences(curves: Sequence[Curve]) -> list[Difference]:
    """Settings that are not the same in every run."""
    every = [settings(curve) for curve in curves]
    keys = dict.fromkeys(key for one in every for key in one)
    rows = [
        Difference(key, tuple(one.get(key, MISSING) for one in every)) for key in keys
    ]
    return [row for row in rows if len(set(row.values)) > 1]


def groups_alike(curves: Sequence[Curve]) -> list[list[int]]:
    """The positions of runs that differ in their seed and length alone."""
    groups: dict[str, list[int]] = {}
    for number, curve in enumerate(curves):
        spec = curve.run.spec
        identity = [spec.algorithm, spec.preset, _config(curve)]
        groups.setdefault(json.dumps(identity, sort_keys=True), []).append(number)
    return list(groups.values())


def labels_of(curves: Sequence[Curve]) -> list[str]:
    """Algorithm and preset; the task and a few settings where these differ.

    Where a few do not tell runs apart, all that differ are named.
    """
    several = len({curve.task for curve in curves}) > 1
    short = [f"{c.label}, {c.task}" if several else c.label for c in curves]
    labels = short
    for most in (LABEL_DIFFERENCES, None):
        told = [_what_differs(curves, short, i, most) for i in range(len(curves))]
        labels = [
            label if labels.count(label) == 1 else ", ".join([first, *rest])
            for label, first, rest in zip(labels, short, told, strict=True)
        ]
    return labels


def by_label(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """The seeds of each experiment, under its name."""
    groups = [[curves[n] for n in numbers] for numbers in groups_alike(curves)]
    labels = labels_of([group[0] for group in groups])
    return {
        label: sorted(group, key=lambda curve: curve.run.spec.seed)
        for label, group in zip(labels, groups, strict=True)
    }


def _what_differs(
    curves: Sequence[Curve], labels: Sequence[str], index: int, most: int | None
) -> list[str]:
    """So many of the settings in which a run differs from others of its label."""
    own = ("algorithm", "preset", "seed", "total_steps", "env.id")
    alike = [i for i, label in enumerate(labels) if label == labels[index]]
    rows = differences([curves[i] for i in alike])
    place = alike.index(index)
    return [f"{r.key} {r.values[place]}" for r in rows if r.key not in own][:most]
