"""What the reproduction at the paper's scale costs, from runs that were measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pombu.studies import artifacts
from pombu.studies.artifacts import markdown_table
from pombu.studies.costs import Cost, Measured, count, measure
from pombu.studies.drawing import draw_table
from pombu.studies.gathering import Request, read_sources
from pombu.studies.jobs import Job, longest
from pombu.studies.reproductions import PAGES, Profile, find, names
from pombu.studies.style import style, thousands

SUMMARY = "what the paper's scale costs, from measured runs (--from RUNS; seconds)"
DEFAULT: Profile = "paper"

HEADER = ("method", "task", "H", "runs", "real", "imagined", "core-hours")
MEASURED = ("preset", "method", "task", "H", "real", "imagined", "hours", "cores")


@dataclass(frozen=True)
class Settings:
    """What was counted."""

    profile: Profile
    sources: tuple[str, ...]


def reproduce_from(request: Request) -> dict[str, Any]:
    """Count, estimate, and write the tables and their page."""
    every = [measure(curve) for curve in read_sources(request.sources)]
    # The same run is kept in the folder of every item that shows it.
    measured = [*{replace(one, run=""): one for one in every}.values()]
    costs = count(_jobs(request.profile), measured)
    out = request.out
    artifacts.write_json(out / "measured.json", measured)
    artifacts.write_json(out / "costs.json", costs)
    rows = [_row(cost) for cost in costs]
    artifacts.write_csv(out / "costs.csv", HEADER, rows)
    with style():
        artifacts.save_figure(draw_table(HEADER, rows), out, "costs")
    sources = tuple(sorted(one.run for one in measured))
    settings = Settings(request.profile, sources)
    artifacts.write_provenance(out, "costs", request.profile, settings)
    total = _total(costs)
    (out / "README.md").write_text(_page(request.profile, costs, total, measured))
    return total


def _jobs(profile: Profile) -> list[Job]:
    """Every run of the paper's items, once although items share them."""
    others = (*PAGES, "uncertainty-inside", "uncertainty-inside-cheetah")
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
    measured: Sequence[Measured],
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
is imagined. An empty cell was not measured; where it is the imagined steps', the total
leaves them out, because how many there are is seen in a run.

{markdown_table(HEADER, [_row(cost) for cost in costs])}

## Measured runs

Hours are wall-clock; where a run shared its cores, they are more than it needed.

{markdown_table(MEASURED, [_measured_row(one) for one in sorted(measured, key=_name)])}
"""


def _name(one: Measured) -> tuple[str, str, int, str]:
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


def _measured_row(one: Measured) -> tuple[str, ...]:
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
