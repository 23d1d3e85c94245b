"""Every algorithm: the same columns, and the same run however it is interrupted."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pombu.agent.runs import algorithm_of, load_state
from pombu.algorithms.config import budget
from pombu.algorithms.registry import ALGORITHMS, config_type, make, options, preset
from pombu.cli.train import parse_train
from pombu.envs import load
from pombu.errors import UsageError
from pombu.training import config_file
from pombu.training.callbacks import Callback, Progress
from pombu.training.loop import learn
from pombu.training.metrics import deterministic, read_rows
from pombu.training.run import Run, RunSpec, create, open_run

HORIZON = 30
ITERATIONS = 3
CORE = {
    "iteration",
    "real_steps",
    "imagined_steps",
    "return_real",
    "return_real_std",
    "return_deterministic",
    "return_deterministic_std",
    "return_collected",
    "entropy",
    "value_loss",
    "collect_seconds",
    "improve_seconds",
    "evaluate_seconds",
    "iteration_seconds",
}
ABSENT = {"steve": {"entropy"}, "pets": {"value_loss"}}
"""Columns of quantities that an algorithm does not have."""
BASELINES = sorted(set(ALGORITHMS) - {"pombu"})


class Copy(Callback):
    """Copies the run folder after an iteration, as a kill right then would leave it."""

    def __init__(self, folder: Path, iteration: int) -> None:
        self.folder = folder
        self.iteration = iteration

    def on_iteration(self, progress: Progress) -> None:
        if progress.iteration == self.iteration:
            assert progress.folder is not None
            shutil.copytree(progress.folder, self.folder)


def of_each_learner() -> list[Any]:
    """The baselines; slow are those whose learner is one that comes before them.

    What is their own is that all they know is in their state, which
    test_stable_baselines.py shows of them, and MEPPO's state is POMBU's.
    """
    packages, found = {ALGORITHMS["pombu"].package}, []
    for name, entry in ALGORITHMS.items():
        if name != "pombu":
            marks = [pytest.mark.slow] if entry.package in packages else []
            found.append(pytest.param(name, marks=marks))
        packages.add(entry.package)
    return found


def tiny(name: str) -> Any:
    """Of the preset's sizes, whose programs other tests run as well."""
    return preset(name, "smoke", "Point2D")


def new_run(folder: Path, name: str) -> Run:
    config = tiny(name)
    steps = ITERATIONS * config.trajectories * HORIZON
    spec = RunSpec(name, "smoke", 3, steps, config_file.to_json(config))
    return create(folder, spec)


def train(run: Run, *callbacks: Callback) -> None:
    """With an algorithm made from nothing but the folder."""
    learn(algorithm_of(run), run.spec.seed, run.spec.total_steps, callbacks, run)


@pytest.mark.parametrize("name", of_each_learner())
def test_an_interrupted_run_equals_an_uninterrupted_one(
    name: str, tmp_path: Path
) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train(new_run(whole, name), Copy(parted, iteration=2))
    train(open_run(parted))

    header, rows = read_rows(whole / "metrics.csv")
    assert CORE - set(header) == ABSENT.get(name, set())
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[-1]["real_steps"] == ITERATIONS * tiny(name).trajectories * HORIZON
    assert all(np.isfinite(list(row.values())).all() for row in rows)
    again = read_rows(parted / "metrics.csv")[1]
    assert [*map(deterministic, rows)] == [*map(deterministic, again)]
    for file in (
        f"checkpoints/{ITERATIONS:06d}/state.safetensors",
        f"episodes/{ITERATIONS - 1:05d}.safetensors",
        "evaluation.json",
    ):
        assert (whole / file).read_bytes() == (parted / file).read_bytes()

    run = open_run(whole)
    algorithm = algorithm_of(run)
    state = load_state(run, algorithm)
    assert int(state.iteration) == ITERATIONS


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_config_survives_its_file(name: str) -> None:
    for which in ("paper", "fast", "smoke"):
        config = preset(name, which, "HalfCheetah")
        read = config_file.from_json(config_type(name), config_file.to_json(config))
        assert read == config


@pytest.mark.parametrize("task", ["Swimmer", "HalfCheetah", "Ant", "Walker2d"])
@pytest.mark.parametrize("horizon", [200, 1000])
@pytest.mark.parametrize("name", sorted({*BASELINES} - {"meppo"}))
def test_presets_plan_two_hundred_thousand_steps(
    name: str, task: str, horizon: int
) -> None:
    for which in ("paper", "fast"):
        config = preset(name, which, task, horizon)
        planned = budget(config, lambda: horizon)
        assert 0.9 * 200_000 <= planned <= 1.1 * 200_000, which


@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if "model.reward" in options(name)]
)
def test_learners_refuse_what_they_cannot_do(name: str) -> None:
    config = preset(name, "smoke", "Pendulum-v1")
    config = replace(config, model=replace(config.model, reward="known"))
    with pytest.raises(ValueError, match=r"model\.reward"):
        make(name, load(config.env), config).init(0)


def test_an_option_of_another_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        parse_train(["--algo", "sac", "--env", "Point2D", "--alpha", "0.5"])
    assert str(caught.value).startswith(
        "sac has no option --alpha; it has --trajectories, --iterations, "
    )
    with pytest.raises(UsageError, match=r"metrpo has no option --noise\.sigma"):
        parse_train(["--algo=metrpo", "--noise.sigma=0.1"])
    parse_train(["--algo", "slbo", "--noise.sigma=0.1"])
    with pytest.raises(UsageError, match=r"steve has no option --kappa; it has --"):
        parse_train(["--algo", "steve", "--kappa", "1"])
    with pytest.raises(UsageError, match=r"mbmpo has no option --planner\.horizon"):
        parse_train(["--algo=mbmpo", "--planner.horizon=5"])
    parse_train(["--algo", "pets", "--kappa", "1", "--planner.kind", "random"])
    parse_train(["--algo", "steve", "--weighting", "bellman", "--horizon", "100"])
    parse_train(["--algo", "mbmpo", "--inner-rate", "0.1"])
