"""Errors of Q against their estimated uncertainty, dataset by dataset."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from numpy import ndarray

from pombu.envs import load
from pombu.networks import MLP
from pombu.studies.points import value as value_training
from pombu.studies.points.outcome import FLAT, TIMED, Outcome
from pombu.studies.points.settings import PointSettings
from pombu.studies.points.storage import restore, save
from pombu.studies.points.world import (
    GAMMA,
    PointModel,
    collect_data,
    imagined_returns,
    learn,
    random_policy,
    roll,
)
from pombu.uncertainty.algorithm1 import local_uncertainty, propagate
from pombu.workers import Workers


def run(
    settings: PointSettings,
    folder: Path,
    report: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """All datasets of all environments; those already in the folder are only read."""
    folder.mkdir(parents=True, exist_ok=True)
    workers = Workers()
    outcomes = []
    try:
        for environment in settings.environments:
            for dataset in range(settings.datasets):
                outcome = restore(settings, environment, dataset, folder)
                if outcome is None:
                    report(f"{environment}: dataset {dataset + 1}/{settings.datasets}")
                    outcome = measure(settings, environment, dataset, workers)
                    save(outcome, settings, folder)
                outcomes.append(outcome)
    finally:
        workers.close()
    return outcomes


def measure(
    settings: PointSettings, environment: str, dataset: int, workers: Workers
) -> Outcome:
    """One dataset from its policy to its errors and uncertainties."""
    task = load(environment)
    seed = (settings.seed, task.observation_dim, dataset)
    key = jax.random.key(settings.seed)
    for part in seed[1:]:
        key = jax.random.fold_in(key, part)
    policy_key, model_key, value_key, roll_key = jax.random.split(key, 4)

    policy = random_policy(settings, task, policy_key)
    data = collect_data(settings, task, policy, seed)
    model, fitted = learn(settings, task, policy, data, model_key, seed, workers)
    training = value_training.train(settings, model, value_key)

    starts = jnp.asarray(np.stack([e.observations[0] for e in data.tests]))
    real = np.array([e.rewards.astype(np.float64).sum() for e in data.tests])
    imagined, sigma = _average(model, training, starts, roll_key, settings.rollouts)
    alone = np.stack(
        [
            np.asarray(imagined_returns(model.alone(k), starts, roll_key), np.float64)
            for k in range(settings.members)
        ]
    )
    return Outcome(
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
    training: value_training.Training,
    starts: Float[Array, "N o"],
    key: PRNGKeyArray,
    rollouts: int,
) -> tuple[Float64[ndarray, " N"], dict[str, Float64[ndarray, " N"]]]:
    """Q and sqrt(D^1) from means over imagined trajectories; D before its root."""
    plain = (*training.literal, training.flat)
    values = value_training.stack([stage.value for stage in plain])
    returns, variances = [], []
    for number in range(rollouts):
        q, D = _judge(
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
def _judge(
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

    plain = jax.vmap(
        lambda v: first_variance(value_training.next_values(model, v, following))
    )(values)
    last = first_variance(value_training.timed_next_values(model, timed, following))
    return rolled.rewards.sum(axis=0), jnp.concatenate([plain, last[None]])
