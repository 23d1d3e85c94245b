"""Calibration by training stage: how far each uncertainty of a run can be trusted.

At checkpoints of stored runs the policy plays fresh real episodes, which nothing was
learned from. Errors of n-step returns along them are held against

- U, F and U_rho (`pombu.uncertainty.n_step`), from one prediction per real step, and
- members rolled alone: in each the policy acts on what the member predicts, with the
  noise that its real actions had, for n steps and with V beyond; the n-step return is
  compared with the real one directly.

Each is scored as it is, and recalibrated: the scale of each n (and rho) come from nine
tenths of the episodes, the scores from the others, in turn.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy import ndarray

from pombu.agent.runs import algorithm_of
from pombu.algorithms.pombu.learner import Learner, State
from pombu.analysis.plots import markdown_table, write_csv
from pombu.envs import Episode, collect, short_name
from pombu.errors import UsageError
from pombu.rng import Keys
from pombu.rollout.held_out import real_steps, rolled_alone
from pombu.rollout.real import act_alone
from pombu.training import checkpoint
from pombu.training.loop import identity
from pombu.training.run import Run, open_run
from pombu.uncertainty.algorithm1 import Correlation
from pombu.uncertainty.calibration import calibration
from pombu.uncertainty.n_step import (
    LEAST_EPISODES,
    LEVEL,
    STEPS,
    RealSteps,
    Windows,
    enough,
    fit,
    folds,
    windows,
)

ESTIMATORS = ("U", "F", "rho", "members alone")
TARGETS = {"coverage_90": (0.85, 0.95), "mean_z_squared": (0.8, 1.25)}
NAMES = {
    "mean_z_squared": "mean z²",
    "nll": "NLL",
    "crps": "CRPS",
    "coverage_90": "in 90 %",
    "spearman": "Spearman",
    "sharpness": "sharpness",
    "scale": "c",
}
NEAR = 1.5
"""A checkpoint stands for a stage if its real steps are within this factor of it."""
FEWEST = 2 * LEAST_EPISODES
"""Episodes that are needed: scores of fewer would be luck."""


class Row(NamedTuple):
    """Scores of one uncertainty for returns of n steps, in units of the reward."""

    task: str = ""
    run: str = ""
    stage: int = 0
    """Real steps that were asked for; 0 is the last checkpoint."""
    real_steps: int = 0
    """Those of the checkpoint."""
    estimator: str = ""
    recalibrated: bool = False
    n: int = 0
    windows: int = 0
    mean_z_squared: float = math.nan
    nll: float = math.nan
    crps: float = math.nan
    coverage_90: float = math.nan
    spearman: float = math.nan
    sharpness: float = math.nan
    """Mean sigma."""
    scale: float = math.nan
    """c_n, the mean over the parts; 1 where it is not recalibrated."""
    rho: float = math.nan
    episodes: int = 0
    """Fresh real episodes, which are not counted as real steps of the run."""
    episode_steps: int = 0
    """Steps that they took."""
    parts: int = 2
    """Parts of the episodes, each judged by what the others say. Tables without this
    column come from an earlier version, with halves and one scale for all n."""


def study(
    folders: Sequence[Path],
    after: Sequence[int],
    episodes: int,
    env: str | None = None,
) -> Iterator[Row]:
    """Rows of every stage of every run.

    Args:
        folders: run folders.
        after: real steps after which a run is judged; none takes the last checkpoint.
        episodes: fresh real ones per stage.
        env: the environment's name, repeated to allow its code.

    Raises:
        UsageError: Too few episodes, or a run without an ensemble and a V.
        RunError: A run has no checkpoint.
    """
    if episodes < FEWEST:
        raise UsageError(
            f"episodes is {episodes}; scales come from some of them and scores from "
            f"the others, so at least {FEWEST} are needed."
        )
    for folder in folders:
        run = open_run(folder)
        algorithm = algorithm_of(run, env)
        if not isinstance(algorithm, Learner) or algorithm.config.model.kind != (
            "ensemble"
        ):
            raise UsageError(
                f"{folder} is a run of {run.spec.algorithm}, which gives no "
                "uncertainty of its Q-values here: only pombu and meppo with a learned "
                "ensemble do."
            )
        for wanted, path in stages_of(run, after):
            for row in _judge(run, algorithm, path, episodes):
                yield row._replace(stage=wanted)


def stages_of(run: Run, after: Sequence[int]) -> list[tuple[int, Path]]:
    """The checkpoint that is nearest to each stage, where one is near enough.

    Raises:
        UsageError: The run has no checkpoint near any stage.
    """
    steps = {
        path: sum(shard.steps for shard in checkpoint.read_manifest(path).shards)
        for path in checkpoint.paths(run.path)
    }
    if not steps:
        raise UsageError(f"{run.path} has no checkpoint yet: train it first.")
    if not after:
        return [(0, max(steps, key=steps.__getitem__))]

    def distance(path: Path, wanted: int) -> float:
        return abs(math.log(max(steps[path], 1) / wanted))

    found = []
    for wanted in after:
        nearest = min(steps, key=lambda path: distance(path, wanted))
        if distance(nearest, wanted) <= math.log(NEAR):
            found.append((wanted, nearest))
    if not found:
        kept = ", ".join(str(number) for number in sorted(steps.values()))
        raise UsageError(
            f"{run.path} has checkpoints after {kept} real steps and none near "
            f"{', '.join(map(str, after))}: train with --keep-checkpoints 1000, or ask "
            "for other stages."
        )
    return found


def _judge(run: Run, learner: Learner, path: Path, episodes: int) -> list[Row]:
    """All rows of one checkpoint."""
    template = learner.init(run.spec.seed)
    state = checkpoint.load(path, template, identity(learner, run)).state
    real, noise = play(learner, state, episodes)
    dynamics, rules = learner.dynamics(state), learner.rules
    predicted = real_steps(state.value, dynamics, rules, real, learner.task.horizon)
    alone = {
        n: rolled_alone(state.policy, state.value, dynamics, rules, real, noise, n)
        for n in STEPS
    }
    unit = float(dynamics.return_std) if rules.returns.scale_rewards else 1.0
    return [
        scored._replace(
            task=short_name(learner.task.config.id),
            run=run.path.name,
            real_steps=int(state.real_steps),
            episodes=len(real),
            episode_steps=sum(map(len, real)),
        )
        for scored in scores(predicted, alone, rules.returns.gamma, unit)
    ]


def play(
    learner: Learner, state: State, episodes: int
) -> tuple[list[Episode], Float[ndarray, "T E a"]]:
    """Fresh real episodes of the policy, and the noise in its actions, step first."""
    keys = Keys(int(state.seed), int(state.iteration))
    normaliser = learner.normaliser(state)
    act = act_alone(state.policy, normaliser, episodes, keys.jax("calibration"))
    noise: list[ndarray] = []

    def act_and_keep(observations: ndarray, step: int) -> ndarray:
        actions = act(observations, step)
        mean = state.policy.mean(normaliser.normalise(jnp.asarray(observations)))
        noise.append(actions - np.asarray(mean))
        return actions

    real = collect(learner.task, act_and_keep, keys.episodes("calibration", episodes))
    return real, np.stack(noise)


def scores(
    real: RealSteps, alone: dict[int, Windows], gamma: float, unit: float = 1.0
) -> Iterator[Row]:
    """Every estimator and n, raw and recalibrated; what it is of is left open.

    Args:
        real: real steps and what members predicted of them.
        alone: windows of members rolled alone, by n.
        gamma: the discount factor.
        unit: what 1 of the errors is in units of the reward.
    """
    parts = folds(len(real.lengths))
    rhos = [fit(_without(real, part), gamma).rho for part in range(parts)]
    found: dict[Correlation, dict[int, Windows]] = {}

    def windows_of(name: str, part: int) -> dict[int, Windows]:
        """All windows of an estimator; its rho has not seen this part."""
        if name == "members alone":
            return alone
        kinds: dict[str, Correlation] = {"U": 0, "F": "full", "rho": rhos[part]}
        kind = kinds[name]
        if kind not in found:
            found[kind] = {n: windows(real, n, gamma, kind) for n in STEPS}
        return found[kind]

    for name in ESTIMATORS:
        by_part = [windows_of(name, part) for part in range(parts)]
        for corrected in (False, True):
            for n in STEPS:
                every = [own[n] for own in by_part]
                if not enough(every[0].episode):
                    continue
                scales = [1.0] * parts
                if corrected:
                    scales = [_scale(w, part, parts) for part, w in enumerate(every)]
                error, sigma = (
                    unit * np.concatenate(values)
                    for values in zip(
                        *(
                            (w.error[own], scale * w.sigma[own])
                            for part, (w, scale) in enumerate(
                                zip(every, scales, strict=True)
                            )
                            for own in [w.episode % parts == part]
                        ),
                        strict=True,
                    )
                )
                score = calibration(error, sigma)
                yield Row(
                    estimator=name,
                    recalibrated=corrected,
                    n=n,
                    windows=len(error),
                    mean_z_squared=score.mean_z_squared,
                    nll=score.gaussian_nll,
                    crps=score.crps,
                    coverage_90=float(np.mean(np.abs(error) <= _REACH * sigma)),
                    spearman=score.spearman,
                    sharpness=score.mean_sigma,
                    scale=float(np.mean(scales)),
                    rho=float(np.mean(rhos)) if name == "rho" else math.nan,
                    parts=parts,
                )


_REACH = NormalDist().inv_cdf(0.5 + LEVEL / 2)


def _without(real: RealSteps, part: int) -> RealSteps:
    """All episodes but those of one part."""
    episodes = np.arange(len(real.lengths))
    others = episodes % folds(len(episodes)) != part
    return RealSteps(
        real.member_q[:, others],
        real.real_q[others],
        real.lengths[others],
        real.terminated[others],
    )


def _scale(found: Windows, part: int, parts: int) -> float:
    """c_n, from all episodes but those of one part."""
    others = found.episode % parts != part
    square = float(np.mean((found.error[others] / found.sigma[others]) ** 2))
    if square == 0:
        raise UsageError(
            "There is nothing to calibrate: the members predict without any error."
        )
    return math.sqrt(square)


def write(rows: Sequence[Row], out: Path) -> list[Path]:
    """Write calibration-study.csv and calibration-study.md."""
    out.mkdir(parents=True, exist_ok=True)
    table = out / "calibration-study.csv"
    write_csv(
        table,
        Row._fields,
        [[f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows],
    )
    page = out / "calibration-study.md"
    page.write_text(text_of(rows) + "\n")
    return [table, page]


def read(table: Path) -> list[Row]:
    """What `write` wrote."""
    with table.open(newline="") as file:
        return [_parsed(row) for row in csv.DictReader(file)]


def _parsed(row: dict[str, str]) -> Row:
    kinds = Row.__annotations__
    found: dict[str, Any] = {
        name: text == "True" if kinds[name] is bool else kinds[name](text)
        for name, text in row.items()
    }
    return Row(**found)


def text_of(rows: Sequence[Row]) -> str:
    """Tables for readers: means over n, one table per task and stage."""
    sections = []
    for task, run, steps in dict.fromkeys((r.task, r.run, r.real_steps) for r in rows):
        mine = [r for r in rows if (r.task, r.run, r.real_steps) == (task, run, steps)]
        one = mine[0]
        sections.append(
            f"### {task} after {steps} real steps\n\n"
            f"{one.episodes} fresh episodes of `{run}` ({one.episode_steps} steps, not "
            f"counted as real ones).\n\n{_table(mine)}"
        )
    return "\n\n".join([_head(rows), *sections, verdict(rows)])


def _head(rows: Sequence[Row]) -> str:
    several = all(row.parts > 2 for row in rows)
    how = (
        "a scale for each n, and ρ,\ncome from nine tenths of the episodes, the scores "
        "from the others, in turn"
        if several
        else "one scale for all n, and ρ,\ncome from one half of the episodes, the "
        "scores from the other, in turn"
    )
    return f"""## Calibration by training stage

Errors of n-step returns along fresh real episodes, in units of the task's reward; means
over n = {", ".join(map(str, STEPS))}, as far as episodes go. U is Algorithm 1's, F the
variance over members of the sum of their deviations, U_ρ lies between; "members alone"
is the policy in each member by itself. Recalibrated (c): {how}.
Sharpness is the mean σ."""


def _table(rows: Sequence[Row]) -> str:
    lines = []
    for estimator in ESTIMATORS:
        for corrected in (False, True):
            mine = [
                r
                for r in rows
                if r.estimator == estimator and r.recalibrated == corrected
            ]
            if mine:
                shown = "U_ρ" if estimator == "rho" else estimator
                lines.append(
                    [
                        shown + (", recalibrated" if corrected else ""),
                        *(f"{_mean(mine, name):.3g}" for name in NAMES),
                    ]
                )
    return markdown_table(["", *NAMES.values()], lines)


def _mean(rows: Sequence[Row], name: str) -> float:
    """Over n; where a rank correlation has no value it is left out."""
    every = np.array([getattr(row, name) for row in rows], float)
    known = every[np.isfinite(every)]
    return float(known.mean()) if len(known) else math.nan


def verdict(rows: Sequence[Row]) -> str:
    """How often the recalibrated uncertainties meet the targets, and where they do not.

    A stage is met where the mean over n lies within them, a pair where its n does.
    """
    lines = []
    outside: dict[str, list[str]] = {}
    for estimator in ESTIMATORS:
        mine = [r for r in rows if r.estimator == estimator and r.recalibrated]
        shown = "U_ρ" if estimator == "rho" else estimator
        cells = [shown]
        for name, (low, high) in TARGETS.items():
            stages: dict[tuple[Any, ...], list[Row]] = {}
            for row in mine:
                stages.setdefault((row.task, row.run, row.real_steps), []).append(row)
            means = [_mean(stage, name) for stage in stages.values()]
            single = [getattr(row, name) for row in mine]
            for values in (means, single):
                met = sum(low <= value <= high for value in values)
                cells.append(f"{met} of {len(values)}")
            for row in mine:
                value = getattr(row, name)
                if not low <= value <= high:
                    place = f"{shown}, {row.task} after {row.real_steps}"
                    said = f"{NAMES[name]} {value:.3g} for n = {row.n}"
                    outside.setdefault(place, []).append(said)
        lines.append(cells)
    titles = [
        f"{NAMES[name]}, {low} to {high}: {what}"
        for name, (low, high) in TARGETS.items()
        for what in ("stages", "single n")
    ]
    table = markdown_table(["recalibrated", *titles], lines)
    parts = [
        "How many stages (means over n), and how many pairs of a stage and an n, lie "
        f"within the targets:\n\n{table}"
    ]
    if outside:
        where = (f"- {place}: {', '.join(said)}" for place, said in outside.items())
        parts.append("Outside:\n\n" + "\n".join(where))
    return "\n\n".join(parts)
