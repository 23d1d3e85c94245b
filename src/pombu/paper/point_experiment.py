"""The point experiment of Appendix D.1: errors of Q against estimated uncertainty.

Datasets are independent of one another and kept on disk, so that a long experiment can
stop and go on.
"""

import csv
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from numpy import ndarray

from pombu.analysis import plots
from pombu.envs import load
from pombu.errors import UsageError
from pombu.nn import MLP
from pombu.paper.point_model import (
    GAMMA,
    PointModel,
    PointSettings,
    ValueTraining,
    collect_data,
    fit_model,
    imagined_returns,
    next_values,
    random_policy,
    roll,
    stack_values,
    timed_next_values,
    train_values,
)
from pombu.parallel import Workers
from pombu.uncertainty.algorithm1 import local_uncertainty, propagate

SHARED = ("environments", "datasets")
"""Settings that say which datasets there are, not what one of them is."""
LATER = {"policy_scale": 1.0, "value_pool": 0}
"""Settings that came later: at these values a dataset is what it was before them."""
FLAT = "flat"
"""The stage at which the loss of the paper's V(s) is flat."""
TIMED = "timed"
"""The stage at which the loss of a V(s, h) that knows the step is flat."""


def stage_title(stage: str) -> str:
    """A stage in words."""
    titles = {FLAT: "V(s) until flat", TIMED: "V(s, h) until flat"}
    return titles.get(stage, f"{stage} V epochs (paper)")


@dataclass(frozen=True)
class PointOutcome:
    """One dataset of one environment, in the task's own units.

    Attributes:
        environment: the task.
        dataset: its number.
        error: real minus imagined Q of every start state.
        sigma: estimated uncertainty by stage: "0", "5", ..., "flat" and "timed".
        member_variance: variance over members of Q when each is rolled alone.
        member_error: real Q minus the mean of those.
        epochs: value epochs of the last two stages.
        losses: their (epochs, mean value loss) by window.
        model_loss: validation loss per member, in normalised units.
        model_epochs: epochs each member trained.
    """

    environment: str
    dataset: int
    error: Float64[ndarray, " N"]
    sigma: dict[str, Float64[ndarray, " N"]]
    member_variance: Float64[ndarray, " N"]
    member_error: Float64[ndarray, " N"]
    epochs: dict[str, int]
    losses: dict[str, tuple[tuple[int, float], ...]]
    model_loss: tuple[float, ...]
    model_epochs: tuple[float, ...]


def run_datasets(
    settings: PointSettings,
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
) -> list[PointOutcome]:
    """All datasets of all environments; those already in the folder are only read."""
    folder.mkdir(parents=True, exist_ok=True)
    workers = Workers()
    outcomes = []
    try:
        for environment in settings.environments:
            for dataset in range(settings.datasets):
                outcome = restore_outcome(settings, environment, dataset, folder)
                if outcome is None:
                    say(f"{environment}: dataset {dataset + 1}/{settings.datasets}")
                    outcome = measure_dataset(settings, environment, dataset, workers)
                    _save_outcome(outcome, settings, folder)
                outcomes.append(outcome)
    finally:
        workers.close()
    return outcomes


def take_datasets(settings: PointSettings, kept: Path, folder: Path) -> PointSettings:
    """Copy the datasets of an earlier run with the same settings, as many as it has.

    Gives the settings with their number, which is the same for all environments.

    Raises:
        UsageError: It has none.
    """

    def is_whole(dataset: int) -> bool:
        found = (
            restore_outcome(settings, environment, dataset, kept)
            for environment in settings.environments
        )
        return all(outcome is not None for outcome in found)

    number = len(list(takewhile(is_whole, range(settings.datasets))))
    if not number:
        raise UsageError(
            f"{kept} has no dataset 0 with today's settings of every environment: "
            "leave --from out to measure it again."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for environment in settings.environments:
        for dataset in range(number):
            for path in kept.glob(f"{_name(environment, dataset)}.*"):
                if path.resolve() != (folder / path.name).resolve():
                    shutil.copyfile(path, folder / path.name)
    return replace(settings, datasets=number)


def measure_dataset(
    settings: PointSettings, environment: str, dataset: int, workers: Workers
) -> PointOutcome:
    """One dataset from its policy to its errors and uncertainties."""
    task = load(environment)
    seed = (settings.seed, task.observation_dim, dataset)
    key = jax.random.key(settings.seed)
    for part in seed[1:]:
        key = jax.random.fold_in(key, part)
    policy_key, model_key, value_key, roll_key = jax.random.split(key, 4)

    policy = random_policy(settings, task, policy_key)
    data = collect_data(settings, task, policy, seed)
    model, fitted = fit_model(settings, task, policy, data, model_key, seed, workers)
    training = train_values(settings, model, value_key)

    starts = jnp.asarray(np.stack([e.observations[0] for e in data.tests]))
    real = np.array([e.rewards.astype(np.float64).sum() for e in data.tests])
    imagined, sigma = _average(model, training, starts, roll_key, settings.rollouts)
    alone = np.stack(
        [
            np.asarray(imagined_returns(model.alone(k), starts, roll_key), np.float64)
            for k in range(settings.members)
        ]
    )
    return PointOutcome(
        environment=environment,
        dataset=dataset,
        error=real - imagined,
        sigma=sigma,
        member_variance=alone.var(axis=0),
        member_error=real - alone.mean(axis=0),
        epochs={FLAT: training.flat.epochs, TIMED: training.timed.epochs},
        losses={FLAT: training.losses, TIMED: training.timed_losses},
        model_loss=tuple(float(x) for x in fitted.validation_loss),
        model_epochs=tuple(float(x) for x in fitted.epochs),
    )


def _average(
    model: PointModel,
    training: ValueTraining,
    starts: Float[Array, "N o"],
    key: PRNGKeyArray,
    rollouts: int,
) -> tuple[Float64[ndarray, " N"], dict[str, Float64[ndarray, " N"]]]:
    """Q and sqrt(D^1) from means over imagined trajectories; D before its root."""
    plain = (*training.literal, training.flat)
    values = stack_values([stage.value for stage in plain])
    returns, variances = [], []
    for number in range(rollouts):
        q, D = _return_and_variance(
            model,
            values,
            training.timed.value,
            starts,
            jax.random.fold_in(key, number),
        )
        returns.append(np.asarray(q, np.float64))
        variances.append(np.asarray(D, np.float64))
    names = [*(str(stage.epochs) for stage in training.literal), FLAT, TIMED]
    sigmas = np.sqrt(np.mean(variances, axis=0))
    return np.mean(returns, axis=0), dict(zip(names, sigmas, strict=True))


@jax.jit
def _return_and_variance(
    model: PointModel,
    values: MLP,
    timed: MLP,
    starts: Float[Array, "N o"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, " N"], Float[Array, "stages N"]]:
    """Return and D^1 of one trajectory per start, for every stage's value function."""
    rolled = roll(model, starts, key)
    following = rolled.member_next_states

    def first_variance(next_values: Float[Array, "K H N"]) -> Float[Array, " N"]:
        d = local_uncertainty(rolled.member_rewards, next_values, GAMMA)
        return propagate(d, GAMMA)[0]

    plain = jax.vmap(lambda v: first_variance(next_values(model, v, following)))(values)
    last = first_variance(timed_next_values(model, timed, following))
    return rolled.rewards.sum(axis=0), jnp.concatenate([plain, last[None]])


def _save_outcome(outcome: PointOutcome, settings: PointSettings, folder: Path) -> None:
    """Write a table of the start states and a JSON file of everything else."""
    name = _name(outcome.environment, outcome.dataset)
    columns = {
        "error": outcome.error,
        "member_error": outcome.member_error,
        "member_variance": outcome.member_variance,
        **{f"sigma_{stage}": sigma for stage, sigma in outcome.sigma.items()},
    }
    plots.write_csv(
        folder / f"{name}.csv.gz",
        tuple(columns),
        ([f"{x:.8g}" for x in row] for row in np.stack([*columns.values()], axis=1)),
    )
    arrays = {"error", "member_error", "member_variance", "sigma"}
    scalars = {k: v for k, v in vars(outcome).items() if k not in arrays}
    plots.write_json(
        folder / f"{name}.json", {"settings": _identity(settings), **scalars}
    )


def restore_outcome(
    settings: PointSettings, environment: str, dataset: int, folder: Path
) -> PointOutcome | None:
    """The outcome of an earlier run with the same settings, if there is one."""
    name = _name(environment, dataset)
    described, table = folder / f"{name}.json", folder / f"{name}.csv.gz"
    if not (described.exists() and table.exists()):
        return None
    scalars = json.loads(described.read_text())
    if scalars.pop("settings") != _identity(settings):
        return None
    with gzip.open(table, "rt", newline="") as file:
        header, *rows = csv.reader(file)
    columns = dict(zip(header, np.array(rows, dtype=np.float64).T, strict=True))
    return PointOutcome(
        error=columns["error"],
        member_error=columns["member_error"],
        member_variance=columns["member_variance"],
        sigma={
            name.removeprefix("sigma_"): column
            for name, column in columns.items()
            if name.startswith("sigma_")
        },
        **{k: _tuples(v) for k, v in scalars.items()},
    )


def _name(environment: str, dataset: int) -> str:
    return f"{environment}-{dataset}"


def _identity(settings: PointSettings) -> dict[str, Any]:
    """The settings as they come back from JSON, without those that are shared."""
    kept = {
        k: v
        for k, v in asdict(settings).items()
        if k not in SHARED and not (k in LATER and v == LATER[k])
    }
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
