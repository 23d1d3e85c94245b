"""The paper's claims, one by one: does our code reproduce them, and on what evidence.

Everything is computed from the curves of runs that items of a results folder keep. Runs
with other values than their preset has today are left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from pombu.algorithms.config import horizon_of
from pombu.analysis.curves import Curve
from pombu.analysis.plots import markdown_table
from pombu.analysis.statistics import (
    Interval,
    interval,
    mean_std,
    probability_of_improvement,
)
from pombu.paper import Profile
from pombu.paper.experiments import Panel
from pombu.paper.panel_runs import Group, find_groups
from pombu.paper.reproduce import find, in_words
from pombu.paper.tables import uncertainty_minutes
from pombu.studies.held import departed, find_settled
from pombu.training.config_file import flat, to_json

Verdict = Literal["reproduces", "does not reproduce", "undecided", "not run"]
SMALL_COST = 0.05
"""Share of a run's time up to which the uncertainty is called cheap; the paper's is
1.4 minutes of 12 hours, 0.2 %."""
LEAST_SEEDS = 3
"""Of each side, for a verdict; the paper has as many."""
HEADER = (
    *("claim", "where", "compared", "numbers", "seeds", "difference"),
    *("P(improvement)", "verdict"),
)
INTRODUCTION = """## The paper's claims

Does each claim of the paper hold with our code? Returns are means over seeds ± their
standard deviation, after as many real steps as both sides have. "Difference" is that of
the means (of the standard deviations, where a claim is about spread), P(improvement) is
how likely a run of the first beats one of the second, and brackets are 95 % bootstrap
intervals over seeds. A claim reproduces where the interval of P (of the difference,
where it is about spread) is wholly on its side, does not where it is wholly on the
other, and is undecided in between or with fewer than three seeds of either. Three seeds
make short intervals, not sure ones. The model-based baselines share our engine. Runs
that have other values than their preset has today are left out."""


@dataclass(frozen=True)
class Row:
    """One comparison."""

    claim: str
    where: str
    compared: str
    numbers: str = ""
    seeds: str = ""
    difference: str = ""
    improvement: str = ""
    verdict: Verdict = "not run"


@dataclass(frozen=True)
class Claim:
    """What the paper says, and the panels that show it."""

    says: str
    items: tuple[str, ...]
    compare: Callable[[str, Panel, Sequence[Group]], list[Row]]
    wanted: Callable[[Panel], bool] = lambda panel: True


def write_claims(profile: Profile, out: Path) -> str:
    """The part of the overview about claims, from the runs inside a results folder."""
    rows = claim_rows(profile, find_settled([out]))
    verdicts = [
        (claim.says, _count(row for row in rows if row.claim == claim.says))
        for claim in CLAIMS
    ]
    cells = [
        (
            *(row.claim, row.where, row.compared, row.numbers, row.seeds),
            *(row.difference, row.improvement, row.verdict),
        )
        for row in _without_repeats(rows)
    ]
    short = markdown_table(("claim", "verdicts"), verdicts)
    stand_in = "\n\nPoint2D stands in for every task: the verdicts below say nothing."
    opening = INTRODUCTION + (stand_in if profile == "smoke" else "")
    return f"{opening}\n\n{short}\n\n{markdown_table(HEADER, cells)}"


def claim_rows(profile: Profile, known: Sequence[Curve]) -> list[Row]:
    """Every comparison of every claim."""
    found = []
    for claim in CLAIMS:
        for name in claim.items:
            item = find(name).item
            assert item is not None
            for panel in filter(claim.wanted, item.panels(profile)):
                groups = [_of_today(group) for group in find_groups([panel], known)]
                # A "max" line is another budget.
                arms = [group for group in groups if not group.arm.extended]
                found += claim.compare(claim.says, panel, arms)
    return list(dict.fromkeys(found))


def _of_today(group: Group) -> Group:
    """Without runs that have other values than their preset has today."""
    jobs = {job.seed: job for job in group.panel.jobs(group.arm)}

    def is_as_today(curve: Curve) -> bool:
        wanted = flat(to_json(jobs[curve.run.spec.seed].config()))
        return not departed(curve.run.spec, wanted)

    return replace(group, curves=tuple(filter(is_as_today, group.curves)))


def _first_against_others(says: str, panel: Panel, arms: Sequence[Group]) -> list[Row]:
    """How much better the panel's first arm is than each of the others."""
    first, *others = arms
    return [better(says, panel, first, other) for other in others]


def _others_against_first(says: str, panel: Panel, arms: Sequence[Group]) -> list[Row]:
    """How much better each of the others is than the panel's first arm."""
    first, *others = arms
    return [better(says, panel, other, first) for other in others]


def _narrower_than_others(says: str, panel: Panel, arms: Sequence[Group]) -> list[Row]:
    """How much less the first arm's seeds are spread than those of each other."""
    first, *others = arms
    return [_narrower(says, panel, first, other) for other in others]


def cheap(says: str, panel: Panel, arms: Sequence[Group]) -> list[Row]:
    """What share of a run's time the uncertainty takes."""
    row = Row(says, where(panel), "Algorithm 1 of a run's time")
    pombu = next(group for group in arms if group.arm.algorithm == "pombu")
    if not pombu.curves:
        return [row]
    shares = [uncertainty_minutes(c) / (60 * c.hours) for c in pombu.curves]
    return [
        replace(
            row,
            numbers=f"{100 * float(np.mean(shares)):.2g} % (paper 0.2 %)",
            seeds=_seeds(pombu),
            verdict="reproduces" if max(shares) < SMALL_COST else "does not reproduce",
        )
    ]


def better(says: str, panel: Panel, first: Group, other: Group) -> Row:
    """Final returns of two arms."""
    row = Row(says, where(panel), f"{first.arm.label} over {other.arm.label}")
    if not (first.curves and other.curves):
        return row
    first, other = _as_long(first, other)
    scores = first.finals[:, None], other.finals[:, None]
    chance = interval(probability_of_improvement, *scores)
    difference = interval(lambda a, b: float(a.mean() - b.mean()), *scores)
    return replace(
        row,
        numbers=f"{in_words(first)} and {in_words(other)}",
        seeds=f"{_seeds(first)} and {_seeds(other)}",
        difference=spell(difference, ".0f"),
        improvement=spell(chance, ".2f"),
        verdict=judge(chance, 0.5) if _are_enough(first, other) else "undecided",
    )


def _narrower(says: str, panel: Panel, first: Group, other: Group) -> Row:
    """Standard deviations over the seeds of two arms."""
    row = Row(says, where(panel), f"{first.arm.label} below {other.arm.label}")
    if not (first.curves and other.curves):
        return row
    first, other = _as_long(first, other)
    spreads = [mean_std(group.finals)[1] for group in (first, other)]
    found = interval(
        lambda a, b: float(a.std() - b.std()),
        first.finals[:, None],
        other.finals[:, None],
    )
    # A single seed has no spread at all.
    single = found.low is None or found.high is None
    turned = (
        Interval(-found.value, None, None)
        if found.low is None or found.high is None
        else Interval(-found.value, -found.high, -found.low)
    )
    return replace(
        row,
        numbers="" if single else f"std {spreads[0]:.3g} and {spreads[1]:.3g}",
        seeds=f"{_seeds(first)} and {_seeds(other)}",
        difference="" if single else spell(found, ".3g"),
        verdict=judge(turned, 0.0) if _are_enough(first, other) else "undecided",
    )


def judge(found: Interval, even: float) -> Verdict:
    """On which side of an even chance an interval is."""
    if found.low is None or found.high is None:
        return "undecided"
    if found.low > even:
        return "reproduces"
    return "does not reproduce" if found.high < even else "undecided"


def spell(found: Interval, digits: str) -> str:
    """An estimate with its interval, if it has one."""
    if found.low is None or found.high is None:
        return f"{found.value:{digits}}"
    return f"{found.value:{digits}} [{found.low:{digits}}, {found.high:{digits}}]"


def where(panel: Panel) -> str:
    """A panel's task, and what is not usual about it."""
    env = panel.env
    parts = [env.id, f"H = {horizon_of(env.id, env.horizon)}"]
    if env.observation_noise:
        parts.append(f"σ = {env.observation_noise:g} {env.noise_kind}")
    if "α" in panel.title:
        parts.append(panel.title)
    return ", ".join(parts)


def _as_long(first: Group, other: Group) -> tuple[Group, Group]:
    steps = min(first.steps, other.steps)
    return first.until(steps), other.until(steps)


def _are_enough(*groups: Group) -> bool:
    return all(len(group.curves) >= LEAST_SEEDS for group in groups)


def _seeds(group: Group) -> str:
    return ", ".join(str(curve.run.spec.seed) for curve in group.curves)


def _count(rows: Iterable[Row]) -> str:
    order: tuple[Verdict, ...] = (
        *("reproduces", "does not reproduce", "undecided", "not run"),
    )
    counted = Counter(row.verdict for row in rows)
    total = counted.total()
    if counted["not run"] == total:
        return "not run"
    told = [f"{v} in {counted[v]}" for v in order if counted[v] and v != "not run"]
    told += [f"{counted['not run']} not run"] if counted["not run"] else []
    return f"{', '.join(told)} (of {total} comparisons)"


def _without_repeats(rows: Sequence[Row]) -> list[Row]:
    """Comparisons that were not run in one row for each claim and place."""
    missing: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.verdict == "not run":
            missing.setdefault((row.claim, row.where), []).append(row.compared)
    found = []
    for row in rows:
        if row.verdict != "not run":
            found.append(row)
        elif names := missing.pop((row.claim, row.where), []):
            found.append(replace(row, compared="; ".join(names)))
    return found


CLAIMS = (
    Claim(
        "better than each baseline, H = 200",
        ("figure-2",),
        _first_against_others,
    ),
    Claim(
        "better than each baseline, H = 1000",
        ("table-2",),
        _first_against_others,
    ),
    Claim(
        "robust over seeds",
        ("figure-2", "figure-4"),
        _narrower_than_others,
        lambda panel: panel.title.startswith("HalfCheetah"),
    ),
    Claim(
        "robust to noise",
        ("figure-5", "appendix-noise"),
        _first_against_others,
        lambda panel: panel.env.observation_noise > 0,
    ),
    Claim(
        "long horizons",
        ("figure-5", "appendix-long"),
        _first_against_others,
        lambda panel: panel.env.horizon is not None,
    ),
    Claim("small cost of the uncertainty", ("table-1",), cheap),
    Claim("α helps", ("figure-3",), _others_against_first),
    Claim("β helps", ("figure-4",), _first_against_others),
)
"""What the paper says its experiments show."""
