"""Time and steps to a target: when each method's runs first reach a return.

One table for HalfCheetah, from runs that exist: real steps, minutes of a core, and
imagined steps until the first evaluation with noise that reached the target, seed by
seed.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pombu.algorithms.config import horizon_of
from pombu.algorithms.registry import preset
from pombu.analysis import plots
from pombu.analysis.curves import Curve, by_label
from pombu.analysis.plots import markdown_table, style, thousands
from pombu.envs import EnvConfig
from pombu.errors import UsageError
from pombu.paper.drawing import draw_table
from pombu.paper.experiments import Reproduction
from pombu.paper.panel_runs import Request
from pombu.paper.reproduce import write_line, write_provenance
from pombu.studies.held import EXPLORATION, departed, find_settled
from pombu.training.config_file import flat, from_json, to_json
from pombu.training.run import Run

TASK = "HalfCheetah"
GOALS: dict[int, tuple[float, ...]] = {200: (852.0,), 1000: (3672.0, 5000.0)}
"""By horizon: the paper's POMBU after 200,000 steps, and one beyond it."""
NEVER = "not reached"
MARK = " *"
"""After methods whose runs have other values than their preset has today."""
HEADER = (
    *("H", "target", "method", "seeds", "real steps", "core-minutes"),
    *("imagined steps", "reached"),
)


@dataclass(frozen=True)
class TargetSettings:
    """What was compared."""

    task: str
    targets: dict[int, tuple[float, ...]]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Arrival:
    """One run, and when it first reached a target; None where it did not."""

    seed: int
    last_step: int
    """Real steps that the run has taken altogether."""
    real_steps: int | None
    core_minutes: float | None
    """None also where the run does not say how many cores it could use."""
    imagined_steps: int | None


@dataclass(frozen=True)
class Race:
    """The seeds of one method on their way to one target."""

    horizon: int
    target: float
    method: str
    arrivals: tuple[Arrival, ...]

    @property
    def reached(self) -> int:
        """Seeds that did."""
        return sum(one.real_steps is not None for one in self.arrivals)


def _reproduce_from(request: Request) -> dict[str, Any]:
    """Write the table as README.md, CSV, JSON and picture.

    Raises:
        UsageError: No run is on the task.
    """
    curves = eligible(find_settled(request.sources))
    if not curves:
        raise UsageError(
            f"targets found no run of {TASK} with H = 200 or 1000 and no noise: name "
            "folders that hold some with --from."
        )
    found = races(curves)
    out = request.out
    rows = [row(race) for race in found]
    plots.write_json(out / "summary.json", found)
    plots.write_csv(out / "targets.csv", HEADER, rows)
    note = "First evaluation with noise that reached the target, seed by seed; *: not "
    note += "the preset's values of today."
    with style():
        plots.save_figure(draw_table(HEADER, rows, note), out, "targets")
    sources = tuple(sorted({curve.run.path.name for curve in curves}))
    settings = TargetSettings(TASK, GOALS, sources)
    write_provenance(out, "targets", request.profile, settings)
    (out / "README.md").write_text(_page(rows))
    write_line(out, "targets", request.profile, _tell(found))
    return {
        f"H = {race.horizon}, {race.target:g}, {race.method}": [
            one.real_steps for one in race.arrivals
        ]
        for race in found
    }


def eligible(curves: Sequence[Curve]) -> list[Curve]:
    """Runs of the task as it is, each once."""
    found: dict[str, Curve] = {}
    for curve in curves:
        env = from_json(EnvConfig, curve.run.spec.config["env"], "env")
        if curve.task != TASK or set(env.changed) - {"horizon"}:
            continue
        if _horizon(curve) not in GOALS:
            continue
        # The same run is kept in the folder of every item that shows it, and not always
        # as far.
        spec = curve.run.spec
        key = json.dumps([spec.algorithm, spec.preset, spec.seed, spec.config])
        if key not in found or len(curve.rows) > len(found[key].rows):
            found[key] = curve
    return list(found.values())


def races(curves: Sequence[Curve]) -> list[Race]:
    """Every method's way to every target of its horizon, the quickest first."""
    found = []
    for horizon, targets in GOALS.items():
        groups = by_label([c for c in curves if _horizon(c) == horizon])
        for target in targets:
            some = [
                Race(
                    horizon,
                    target,
                    label + (MARK if any(map(_is_other, group)) else ""),
                    tuple(arrival(c, target) for c in group),
                )
                for label, group in groups.items()
            ]
            found += sorted(some, key=_sort_key)
    return found


def _is_other(curve: Curve) -> bool:
    """Whether a run has other values than its preset has today."""
    spec = curve.run.spec
    horizon = spec.config["env"].get("horizon")
    today = preset(spec.algorithm, spec.preset, TASK, horizon)
    return bool(departed(spec, flat(to_json(today))))


def arrival(curve: Curve, target: float) -> Arrival:
    """When a run first reached a return."""
    last = int(curve.rows[-1]["real_steps"])
    steps = curve.needed(target)
    if steps is None:
        return Arrival(curve.run.spec.seed, last, None, None, None)
    rows = curve.until(steps).rows
    seconds = sum(row.get("iteration_seconds", 0.0) for row in rows)
    cores = _cores(curve.run)
    return Arrival(
        seed=curve.run.spec.seed,
        last_step=last,
        real_steps=steps,
        core_minutes=None if cores is None else seconds * cores / 60,
        imagined_steps=int(rows[-1].get("imagined_steps", 0)),
    )


def row(race: Race) -> tuple[str, ...]:
    """A line of the table, with a number for every seed."""
    cells = [
        (
            NEVER + f" in {thousands(one.last_step, 0)}"
            if one.real_steps is None
            else thousands(one.real_steps, 0),
            _number(one, one.core_minutes, ".0f"),
            _number(one, one.imagined_steps, ".2g"),
        )
        for one in race.arrivals
    ]
    steps, minutes, imagined = (
        ", ".join(column) for column in zip(*cells, strict=True)
    )
    return (
        str(race.horizon),
        f"{race.target:g}",
        race.method,
        ", ".join(str(one.seed) for one in race.arrivals),
        steps,
        minutes,
        imagined,
        f"{race.reached} of {len(race.arrivals)}",
    )


def _tell(found: Sequence[Race]) -> str:
    """The quickest method to every target."""
    told = []
    for horizon, targets in GOALS.items():
        for target in targets:
            some = [r for r in found if (r.horizon, r.target) == (horizon, target)]
            first = some[0] if some and some[0].reached else None
            who = f"no run of {len(some)} methods" if first is None else first.method
            when = "" if first is None else f" ({row(first)[4]} real steps)"
            told.append(f"H = {horizon}, {target:g}: {who}{when}")
    return f"first to the target: {'; '.join(told)}"


def _number(one: Arrival, value: float | None, digits: str) -> str:
    if one.real_steps is None:
        return "–"
    return "not known" if value is None else f"{value:{digits}}"


def _sort_key(race: Race) -> tuple[bool, float]:
    """Those whose every seed arrived first, by the mean of real steps."""
    steps = [one.real_steps for one in race.arrivals if one.real_steps is not None]
    all_arrived = len(steps) == len(race.arrivals)
    return not all_arrived, float(np.mean(steps)) if steps else math.inf


def _horizon(curve: Curve) -> int:
    return horizon_of(curve.task, curve.run.spec.config["env"].get("horizon"))


def _cores(run: Run) -> int | None:
    starts = run.starts()
    return starts[-1].get("usable_cores") if starts else None


def _page(rows: Sequence[Sequence[str]]) -> str:
    return f"""# Time and steps to a target

Written by `pombu reproduce targets --from RUNS...`.

{TASK}: when the return of an evaluation with noise first reached the target. 852 and
3672 are the paper's POMBU after 200,000 real steps. Every number of a cell belongs to
the seed in the same place. Minutes are wall-clock times the cores of the run, until
then and with evaluations; where other work went on beside a run or it was paused, they
are more than it needed. Methods come in the order in which their seeds arrived. Where
settings of one preset differ between runs, they are named, and a star marks runs that
have other values than their preset has today. Runs in a folder called
`{EXPLORATION}` are left out.

{markdown_table(HEADER, rows)}
"""


TARGETS = Reproduction(
    "targets",
    "time and steps to a return on HalfCheetah, from runs that exist (--from RUNS)",
    "fast",
    reproduce_from=_reproduce_from,
)
