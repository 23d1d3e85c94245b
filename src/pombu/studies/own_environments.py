"""The page about environments that are not pombu's: one section for each.

What a run leaves is kept under its environment's name beside the page, which can be
written again from these copies alone.
"""

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pombu.studies.artifacts import save_figure
from pombu.studies.curves import Curve, draw_returns, read_curves
from pombu.studies.results_page import KEPT
from pombu.training.run import CONFIG, VERSIONS, write_json


@dataclass(frozen=True)
class Goal:
    """A return to reach, and within how many real steps."""

    target: float
    steps: int
    published: str = ""
    """What others report of SAC."""


GOALS = {
    "Pendulum-v1": Goal(
        -250,
        20_000,
        "SAC by Stable-Baselines3 has -157 ± 89 after 20,000 real steps (one run, RL "
        "Baselines3 Zoo's benchmark.md).",
    ),
    "InvertedPendulum-v5": Goal(900, 20_000),
    "Reacher-v5": Goal(-6, 50_000),
}


def keep(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Copy what runs leave for others to check; give all kept runs of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for curve in read_curves(runs):
        spec = curve.run.spec
        name = f"{spec.algorithm}-{spec.preset}-{_reward(curve)}seed{spec.seed}"
        kept = folder / _safe(curve.task) / name
        kept.mkdir(parents=True, exist_ok=True)
        for file in KEPT:
            if (curve.run.path / file).exists():
                shutil.copyfile(curve.run.path / file, kept / file)
        write_json(kept / VERSIONS, _versions(curve))
    return sorted(path.parent for path in folder.glob(f"*/*/{CONFIG}"))


def write_page(folder: Path, title: str, command: str) -> Path:
    """Draw the kept runs, environment by environment, and write the page beside."""
    curves = read_curves(sorted(p.parent for p in folder.glob(f"*/*/{CONFIG}")))
    tasks = sorted({curve.task for curve in curves})
    lines = [
        f"# {title}",
        "",
        f"Written by `{command}` from the files in [{folder.name}/]({folder.name}/).",
        "",
        "Returns are means over the evaluation episodes of the stochastic policy after "
        'each iteration; "needed" is the number of real steps before the first '
        "evaluation that reached the target, and the final return is the mean of the "
        "last three evaluations.",
    ]
    for task in tasks:
        own = [curve for curve in curves if curve.task == task]
        lines += ["", *_section(folder, task, own)]
    versions = _versions(curves[0])[-1]
    versions.pop("command", None)
    lines += ["", f"Versions and machine of the first run: `{json.dumps(versions)}`"]
    page = folder.with_suffix(".md")
    page.write_text("\n".join(lines) + "\n")
    return page


def needed(curve: Curve, target: float) -> int | None:
    """Real steps before the first evaluation that reached the target."""
    reached = np.flatnonzero(curve.column("return_real") >= target)
    return int(curve.column("real_steps")[reached[0]]) if len(reached) else None


def _section(folder: Path, task: str, curves: Sequence[Curve]) -> list[str]:
    goal = GOALS.get(task)
    reference = ("target", goal.target) if goal else None
    own = folder / _safe(task)
    save_figure(draw_returns(curves, reference), own, "returns")
    lines = [f"## {task}", ""]
    if goal:
        lines += [
            f"Target: {goal.target:g} within {goal.steps:,} real steps. "
            f"{goal.published}".rstrip(),
            "",
        ]
    lines += [
        f"![Learning curves]({folder.name}/{_safe(task)}/returns.png)",
        "",
        "| run | reward | seed | real steps | needed | final return | best | hours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return [*lines, *(_row(curve, goal) for curve in curves), "", *_commands(curves)]


def _row(curve: Curve, goal: Goal | None) -> str:
    reached = needed(curve, goal.target) if goal else None
    steps = "" if goal is None else "not reached" if reached is None else f"{reached:,}"
    done = "" if curve.finished else " (unfinished)"
    hours = float(np.nansum(curve.column("iteration_seconds"))) / 3600
    return (
        f"| {curve.label} | {_reward(curve).rstrip('-') or 'not modelled'} "
        f"| {curve.run.spec.seed} | {curve.rows[-1]['real_steps']:,.0f}{done} "
        f"| {steps} | {curve.final():.4g} | {np.max(curve.column('return_real')):.4g} "
        f"| {hours:.2f} |"
    )


def _commands(curves: Sequence[Curve]) -> list[str]:
    return ["```", *map(_command, curves), "```"]


def _command(curve: Curve) -> str:
    """The run's own command without its folder, or one that asks for the same."""
    given = _versions(curve)[0]["command"][1:]
    if given[:1] == ["train"]:
        if "--out" in given:
            at = given.index("--out")
            given = [*given[:at], *given[at + 2 :]]
        return shlex.join(["pombu", *given])
    spec = curve.run.spec
    return (
        f"pombu train --env {curve.task} --algo {spec.algorithm} --preset "
        f"{spec.preset} --seed {spec.seed} --total-steps {spec.total_steps}"
    )


def _versions(curve: Curve) -> list[dict[str, Any]]:
    """Versions of a run's starts; which folders the user has is nobody's business."""
    path = curve.run.path / VERSIONS
    starts: list[dict[str, Any]] = json.loads(path.read_bytes())
    for start in starts:
        start["command"] = [
            Path(word).name if Path(word).is_absolute() else word
            for word in start["command"]
        ]
    return starts


def _reward(curve: Curve) -> str:
    """`known-`, `learned-`, or nothing where a run has no model of the reward."""
    model = curve.run.spec.config.get("model", {})
    return f"{model['reward']}-" if "reward" in model else ""


def _safe(task: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in task)
