"""What runs were asked for, which belong together, and what to call them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pombu.algorithms.registry import defaults
from pombu.studies.curves import Curve
from pombu.training.config_file import flat

LABEL_DIFFERENCES = 3
MISSING = "–"


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
