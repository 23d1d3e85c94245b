"""Does calibrated doubt learn better? POMBU with U, with F, and with both recalibrated.

Not one of the paper's experiments. The uncertainty enters the objective everywhere, and
exploration where there are exploration policies: `fast` has none of its own, so they
have a panel for themselves.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from pombu.analysis.plots import BLUE, GREEN, ORANGE, VERMILLION, markdown_table
from pombu.envs import EnvConfig
from pombu.paper import Profile
from pombu.paper.drawing import draw_returns, draw_table
from pombu.paper.experiments import Arm, Item, Panel, Reproduction, at
from pombu.paper.panel_runs import Results
from pombu.paper.reproduce import summarise

NAME = "calibrated-doubt"
CHEETAH_STEPS = 50_000
PENDULUM_STEPS = 20_000
EXPLORERS = 10
_F = ("returns.correlation", "full")
_SCALED = ("returns.recalibrate", True)
ARMS = (
    Arm("U", "pombu", BLUE),
    Arm("F", "pombu", VERMILLION, (0, (5, 1)), (_F,)),
    Arm("U, recalibrated", "pombu", GREEN, (0, (3, 1, 1, 1)), (_SCALED,)),
    Arm("F, recalibrated", "pombu", ORANGE, (0, (1, 1)), (_F, _SCALED)),
)
HEADER = ("task", "uncertainty", "seeds", "returns", "IQM", "P(better than U)")


def doubt_panels(profile: Profile) -> list[Panel]:
    """Two tasks, and one of them with exploration policies."""
    seeking = tuple(
        replace(arm, overrides=(("exploration.policies", EXPLORERS), *arm.overrides))
        for arm in ARMS
        if _F not in arm.overrides
    )
    cheetah = EnvConfig("HalfCheetah")
    panels = (
        Panel("HalfCheetah", cheetah, ARMS, CHEETAH_STEPS, preset="fast"),
        Panel("Pendulum-v1", EnvConfig("Pendulum-v1"), ARMS, PENDULUM_STEPS),
        Panel(f"HalfCheetah, {EXPLORERS} explorers", cheetah, seeking, CHEETAH_STEPS),
    )
    # Nothing of this is the paper's: its scale is that of `fast`.
    asked: Profile = "smoke" if profile == "smoke" else "fast"
    found = [at(asked, panel, panel.total_steps) for panel in panels]
    return [_measured(panel) for panel in found] if asked == "smoke" else found


def _measured(panel: Panel) -> Panel:
    """A smoke panel whose evaluations are large enough for a correction."""
    few = (("evaluation_episodes", 5), ("calibration.use", True))
    return replace(
        panel,
        arms=tuple(
            replace(arm, overrides=(*few, *arm.overrides)) for arm in panel.arms
        ),
    )


def returns_table(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Final returns, arm by arm, of what an item's summary.json says."""
    rows: list[tuple[str, ...]] = []
    for title, panel in summary.items():
        better = panel["probability_of_improvement"]
        for label, arm in panel["arms"].items():
            seeds = ", ".join(map(str, arm["seeds"]))
            finals = ", ".join(f"{x:.4g}" for x in arm["final_returns"])
            rows.append(
                (
                    title,
                    label,
                    seeds,
                    finals,
                    _with_interval(arm["iqm"], ".4g"),
                    _with_interval(_turned(better.get(f"U over {label}")), ".2f"),
                )
            )
    return rows


def _turned(chance: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The chance of the opposite, where there is one."""
    if chance is None:
        return None
    ends = ("value", "value"), ("low", "high"), ("high", "low")
    return {to: None if chance[of] is None else 1.0 - chance[of] for to, of in ends}


def _with_interval(found: Mapping[str, Any] | None, digits: str) -> str:
    """An estimate and its interval, where there are seeds enough for one."""
    if found is None:
        return ""
    text = f"{found['value']:{digits}}"
    if found["low"] is None:
        return text
    return f"{text} [{found['low']:{digits}}, {found['high']:{digits}}]"


def doubt_part(summary: Mapping[str, Any]) -> str:
    """The part of the uncertainty page about learning."""
    return f"""## Does calibrated doubt learn better?

![Learning curves]({NAME}/{NAME}.png)

POMBU with U, with F, and with both recalibrated by what held-out episodes show
(`returns.correlation`, `returns.recalibrate`), the same seeds and budget. The doubt is
in the objective; with exploration policies it is in their bonus, too. Returns are means
of a seed's last three evaluations, IQM their interquartile mean with a 95 % bootstrap
interval over seeds; few seeds make short intervals, not sure ones.

{markdown_table(HEADER, returns_table(summary))}"""


def _draw(results: Results) -> Mapping[str, Figure]:
    """Learning curves, and the table of final returns."""
    table = draw_table(HEADER, returns_table(summarise(results)))
    return {"": draw_returns(results, columns=3), "-table": table}


CALIBRATED_DOUBT = Reproduction(
    NAME,
    "POMBU with U, F, and both recalibrated (fast: three seeds; hours)",
    "fast",
    Item(
        doubt_panels,
        _draw,
        metrics=(
            *("return_real", "return_deterministic", "penalty"),
            *("uncertainty_scale", "calibration_scale", "coverage_90"),
        ),
    ),
)
