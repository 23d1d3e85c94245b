"""What a search for options has come to: scores of learning curves, table, best trial.

A trial is one of Optuna's. Its marks say how good each seed was, and why it failed.
"""

import csv
import io
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pombu.agent.runs import config_toml
from pombu.analysis.curves import LAST
from pombu.files import parse_json, write_atomic
from pombu.studies.tuning_file import Objective, Tuning
from pombu.training.config_file import toml_value
from pombu.training.metrics import Row
from pombu.training.run import versions, write_json

TABLE, BEST = "trials.csv", "best.toml"
SUMMARY, IMPORTANCE = "tuning.json", "importance.png"
FAILURE, SCORES = "failure", "scores"
"""What a trial is marked with: why it failed, and each seed's score."""
RUNGS = 20
"""Points of a run's real steps at which trials are compared."""
LEAST_FOR_IMPORTANCE = 4
BEST_HEADER = (
    "# The best of {trials} trials of `pombu tune`: trial {number}, whose {objective} "
    "is {value:.6g}.\n"
    "# It was tuned on the seeds {seeds}, by which its return must not be judged:\n"
    "# `pombu train --config {file} --seed N` with others tells how good it is.\n"
    "# Searched: {searched}.\n\n"
)


def score(rows: Sequence[Row], objective: Objective) -> float | None:
    """How good a learning curve is, higher being better; None without evaluations."""
    measured = [
        (row["real_steps"], row["return_real"]) for row in rows if "return_real" in row
    ]
    if not measured:
        return None
    steps, returns = np.array(measured).T
    if objective == "final":
        return float(returns[-LAST:].mean())
    return float(np.average(returns, weights=np.diff(steps, prepend=0.0)))


def rung_scores(
    rows: Sequence[Row], total_steps: int, objective: Objective
) -> dict[int, float]:
    """The score up to each point of the real steps that a run has reached."""
    found = {}
    reached = rows[-1]["real_steps"] if rows else 0
    for rung in range(1, RUNGS + 1):
        steps = total_steps * rung // RUNGS
        until = [row for row in rows if row["real_steps"] <= steps]
        value = score(until, objective)
        if steps <= reached and value is not None:
            found[steps] = value
    return found


def learning_curve(
    seeds: Sequence[Mapping[int, float]], total_steps: int
) -> dict[int, float]:
    """What a trial tells of itself on the way, by steps over all of its seeds.

    Seeds follow one another, as if a run began where the one before ended, and a point
    of the second is the mean of both there. So trials are compared by the same seeds,
    whether these run side by side or one by one.
    """
    told = {}
    for number in range(len(seeds)):
        for steps in seeds[number]:
            values = [seed.get(steps) for seed in seeds[: number + 1]]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                told[number * total_steps + steps] = float(np.mean(known))
    return told


def best_trial(study: Any) -> Any:
    """The complete trial with the highest value; None if there is none."""
    complete = [
        one for one in study.trials if one.value is not None and _is_complete(one)
    ]
    return max(complete, key=lambda one: one.value, default=None)


def _is_complete(trial: Any) -> bool:
    return bool(trial.state.name == "COMPLETE")


def _state_of(trial: Any) -> str:
    """How a trial of Optuna ended, in our words."""
    if FAILURE in trial.user_attrs:
        return "failed"
    words = {"COMPLETE": "complete", "PRUNED": "given up"}
    return words.get(trial.state.name, "unfinished")


def write_results(study: Any, tuning: Tuning, folder: Path) -> None:
    """Write the table, the best trial as a config file, and the summary."""
    write_atomic(folder / TABLE, _table(study, tuning).encode())
    best = best_trial(study)
    summary: dict[str, Any] = {
        "searched": tuning.definition,
        "tuned_on_seeds": list(tuning.seeds),
        "trials": dict(Counter(map(_state_of, study.trials))),
        "versions": versions(),
    }
    if best is not None:
        values = {one.key: one.suggest(_Fixed(best)) for one in tuning.space}
        seed = max(tuning.seeds) + 1
        spec = tuning.job(values, seed).spec()
        header = BEST_HEADER.format(
            trials=len(study.trials),
            number=best.number,
            objective=tuning.objective,
            value=best.value,
            seeds=", ".join(map(str, tuning.seeds)),
            searched=", ".join(f"{k} = {toml_value(v)}" for k, v in values.items()),
            file=BEST,
        )
        write_atomic(folder / BEST, config_toml(spec, header).encode())
        summary["best"] = {
            "trial": best.number,
            "value": best.value,
            "scores": best.user_attrs[SCORES],
            "values": values,
        }
    write_json(folder / SUMMARY, summary)


class _Fixed:
    """A trial that has all of its values."""

    def __init__(self, trial: Any) -> None:
        self.values: Mapping[str, Any] = trial.params

    def suggest_float(
        self, name: str, low: float, high: float, *, log: bool = False
    ) -> float:
        return float(self.values[name])

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return int(self.values[name])

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self.values[name]


def _table(study: Any, tuning: Tuning) -> str:
    """One line per trial: how it ended, its value, each seed's, and what it tried."""
    text = io.StringIO()
    keys = [one.key for one in tuning.space]
    seeds = [f"seed {seed}" for seed in tuning.seeds]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "value", *seeds, *keys, "steps", "failure"])
    for trial in study.trials:
        scores = trial.user_attrs.get(SCORES) or [None] * len(seeds)
        steps = max(trial.intermediate_values, default=0)
        writer.writerow(
            [
                trial.number,
                _state_of(trial),
                _cell(trial.value),
                *map(_cell, scores),
                *(_cell(trial.params.get(key)) for key in keys),
                steps,
                trial.user_attrs.get(FAILURE, ""),
            ]
        )
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else repr(value) if isinstance(value, float) else value


def short(value: Any) -> str:
    """A value as a line of progress shows it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def importances(study: Any) -> dict[str, float]:
    """How much each option decides whether a trial is among the best; they sum to 1.

    Empty where too few trials are complete to tell.
    """
    import optuna

    complete = [one for one in study.trials if _is_complete(one)]
    if len(complete) < LEAST_FOR_IMPORTANCE:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, float] = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    return found


def write_importance(study: Any, folder: Path) -> None:
    """Draw which options mattered, and keep the numbers in the summary."""
    found = importances(study)
    if not found:
        return
    summary = parse_json((folder / SUMMARY).read_bytes())
    write_json(folder / SUMMARY, {**summary, "importance": found})
    _draw_importance(found, folder / IMPORTANCE)


def _draw_importance(found: Mapping[str, float], path: Path) -> None:
    """A bar for every option, the most important one on top."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = sorted(found, key=lambda name: found[name])
    figure = Figure(figsize=(6.4, 1.2 + 0.4 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bars = axes.barh(names, [found[name] for name in names], color="#3b6ea5")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set_xlabel(
        "share of what decides whether a trial is among the best (PED-ANOVA)"
    )
    axes.set_xlim(0, 1.1)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
