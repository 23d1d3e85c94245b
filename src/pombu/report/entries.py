"""The runs of a report: their names and colours."""

from collections.abc import Sequence
from dataclasses import dataclass

from pombu.studies.comparing import groups_alike, labels_of
from pombu.studies.curves import Curve
from pombu.studies.style import BLACK, CYCLE, GREY

# Black would vanish on a dark page.
_COLOURS = tuple(colour for colour in CYCLE if colour != BLACK)


@dataclass(frozen=True)
class Entry:
    """One run in the report."""

    number: int
    curve: Curve
    name: str
    colour: str


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in their seed and length alone."""

    label: str
    colour: str
    entries: tuple[Entry, ...]


def arrange(curves: Sequence[Curve]) -> list[Experiment]:
    """Group runs into experiments, and name and colour both.

    A colour stands for an experiment; where there is only one, for a run.
    """
    groups = groups_alike(curves)
    labels = labels_of([curves[numbers[0]] for numbers in groups])
    names = _names(curves)
    alone = len(groups) == 1
    experiments = []
    for index, (label, numbers) in enumerate(zip(labels, groups, strict=True)):
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


def _names(curves: Sequence[Curve]) -> list[str]:
    """Folder names; whole paths where these are not unique."""
    short = [curve.run.path.resolve().name for curve in curves]
    return [
        name if short.count(name) == 1 else str(curve.run.path)
        for name, curve in zip(short, curves, strict=True)
    ]


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
