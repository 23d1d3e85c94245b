"""The runs of a report: their names and colours, and how their configs differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pombu.studies.curves import Curve
from pombu.studies.style import BLACK, CYCLE, GREY

# Black would vanish on a dark page.
_COLOURS = tuple(colour for colour in CYCLE if colour != BLACK)
_LABEL_DIFFERENCES = 3
MISSING = "–"


@dataclass(frozen=True)
class Entry:
    """One run in the report."""

    number: int
    curve: Curve
    name: str
    colour: str


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in their seed alone."""

    label: str
    colour: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in every run, as text per run."""

    key: str
    values: tuple[str, ...]


def arrange(curves: Sequence[Curve]) -> list[Experiment]:
    """Group runs into experiments, and name and colour both.

    A colour stands for an experiment; where there is only one, for a run.
    """
    groups: dict[str, list[int]] = {}
    for number, curve in enumerate(curves):
        groups.setdefault(_identity(curve), []).append(number)
    labels = _labels([curves[numbers[0]] for numbers in groups.values()])
    names = _names(curves)
    alone = len(groups) == 1
    experiments = []
    for index, (label, numbers) in enumerate(zip(labels, groups.values(), strict=True)):
        entries = tuple(
            Entry(n, curves[n], names[n], _colour(n if alone else index))
            for n in numbers
        )
        several = alone and len(entries) > 1
        experiments.append(
            Experiment(label, GREY if several else entries[0].colour, entries)
        )
    return experiments


def entries_of(experiments: Sequence[Experiment]) -> list[Entry]:
    """All runs, in the order in which they were given."""
    every = [entry for one in experiments for entry in one.entries]
    return sorted(every, key=lambda entry: entry.number)


def settings(curve: Curve) -> dict[str, str]:
    """What a run was asked for, flat, as text."""
    spec = curve.run.spec
    return {
        "algorithm": spec.algorithm,
        "preset": spec.preset,
        "seed": str(spec.seed),
        "total_steps": str(spec.total_steps),
        **_flat(spec.config),
    }


def differences(curves: Sequence[Curve]) -> list[Difference]:
    """Settings that are not the same in every run."""
    every = [settings(curve) for curve in curves]
    keys = dict.fromkeys(key for one in every for key in one)
    rows = [
        Difference(key, tuple(one.get(key, MISSING) for one in every)) for key in keys
    ]
    return [row for row in rows if len(set(row.values)) > 1]


def _identity(curve: Curve) -> str:
    spec = curve.run.spec
    return json.dumps([spec.algorithm, spec.preset, spec.config], sort_keys=True)


def _labels(curves: Sequence[Curve]) -> list[str]:
    """Algorithm and preset; the task and a few settings where these differ."""
    several = len({curve.task for curve in curves}) > 1
    labels = [f"{c.label}, {c.task}" if several else c.label for c in curves]
    return [
        label if labels.count(label) == 1 else f"{label}, {_what_differs(curves, i)}"
        for i, label in enumerate(labels)
    ]


def _what_differs(curves: Sequence[Curve], index: int) -> str:
    own = ("algorithm", "preset", "seed", "total_steps", "env.id")
    rows = [row for row in differences(curves) if row.key not in own]
    return ", ".join(
        f"{row.key} {row.values[index]}" for row in rows[:_LABEL_DIFFERENCES]
    )


def _names(curves: Sequence[Curve]) -> list[str]:
    """Folder names; whole paths where these are not unique."""
    short = [curve.run.path.resolve().name for curve in curves]
    return [
        name if short.count(name) == 1 else str(curve.run.path)
        for name, curve in zip(short, curves, strict=True)
    ]


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat
