"""A results page that is written by a command from the files of runs.

What a run leaves for others to check (config, versions, metrics, evaluation) is copied
beside the page; the page can be written again from those copies alone.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pombu.studies.artifacts import save_figure
from pombu.studies.curves import Curve, by_label, draw_returns, read_curves
from pombu.studies.published import TABLE_1, Published
from pombu.training.run import CONFIG, EVALUATION, METRICS, VERSIONS

KEPT = (CONFIG, VERSIONS, METRICS, EVALUATION)


def keep(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Copy what a run leaves for others to check; give all kept runs of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for curve in read_curves(runs):
        spec = curve.run.spec
        kept = folder / f"{spec.algorithm}-{spec.preset}-seed{spec.seed}"
        kept.mkdir(exist_ok=True)
        for name in KEPT:
            if (curve.run.path / name).exists():
                shutil.copyfile(curve.run.path / name, kept / name)
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))


def write_page(folder: Path, title: str, command: str) -> Path:
    """Draw the kept runs of a folder and write the page beside it."""
    curves = read_curves(sorted(path.parent for path in folder.glob(f"*/{CONFIG}")))
    paper = _published(curves)
    reference = None
    if "pombu" in paper:
        reference = ("the paper's POMBU at 200k", paper["pombu"].mean)
    save_figure(draw_returns(curves, reference), folder, "returns")
    lines = [
        f"# {title}",
        "",
        f"Written by `{command}` from the files in [{folder.name}/]({folder.name}/).",
        "",
        f"![Learning curves]({folder.name}/returns.png)",
        "",
        *_table(curves, paper),
        "",
        "The final return is the mean of the last three evaluations of 20 stochastic "
        "episodes each; the deterministic policy's is beside it. Hours are wall-clock.",
        "",
        *_commands(curves),
    ]
    page = folder.with_suffix(".md")
    page.write_text("\n".join(lines) + "\n")
    return page


def _published(curves: Sequence[Curve]) -> dict[str, Published]:
    """The paper's Table 1, where it speaks of these runs."""
    for curve in curves:
        env = curve.run.spec.config["env"]
        if curve.task != "HalfCheetah" or env["horizon"] not in (None, 200):
            return {}
        if env["observation_noise"]:
            return {}
    return TABLE_1


def _table(curves: Sequence[Curve], paper: dict[str, Published]) -> list[str]:
    lines = [
        "| run | seed | real steps | imagined steps | return | deterministic | "
        "best | hours | the paper at 200k |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for label, group in by_label(curves).items():
        for curve in sorted(group, key=lambda c: c.run.spec.seed):
            last = curve.rows[-1]
            done = "" if curve.finished else " (unfinished)"
            published = paper.get(curve.run.spec.algorithm)
            theirs = f"{published.mean:g} ± {published.std:g}" if published else ""
            lines.append(
                f"| {label} | {curve.run.spec.seed} | {last['real_steps']:,.0f}{done} "
                f"| {last['imagined_steps']:.2g} | {curve.final():.0f} "
                f"| {curve.final('return_deterministic'):.0f} "
                f"| {np.max(curve.column('return_real')):.0f} "
                f"| {_hours(curve):.2f} | {theirs} |"
            )
    return lines


def _hours(curve: Curve) -> float:
    return float(np.nansum(curve.column("iteration_seconds"))) / 3600


def _commands(curves: Sequence[Curve]) -> list[str]:
    lines = ["Each run again:", "", "```"]
    for curve in curves:
        spec = curve.run.spec
        lines.append(
            f"pombu train --env {curve.task} --algo {spec.algorithm} --preset "
            f"{spec.preset} --seed {spec.seed} --total-steps {spec.total_steps}"
        )
    lines.append("```")
    versions = json.loads((curves[0].run.path / VERSIONS).read_bytes())[-1]
    lines += ["", f"Versions and machine of the first run: `{json.dumps(versions)}`"]
    return lines
