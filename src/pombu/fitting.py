"""An iteration's fit: from where the members were or, when it is their turn, afresh."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pombu.config import ModelConfig
from pombu.data import Experience, Normaliser, build_dataset, regression
from pombu.envs import Episode, Task
from pombu.models import Ensemble, FitReport, Form, Unroll, fit, init_ensemble
from pombu.randomness import Keys
from pombu.workers import Workers
from pombu.worlds import network_sizes


def fresh_ensemble(key: PRNGKeyArray, task: Task, config: ModelConfig) -> Ensemble:
    """An untrained ensemble of the task's sizes."""
    sizes = network_sizes(task, config.reward)
    form = Form(config.activation, config.normalisation)
    return init_ensemble(key, config.members, *sizes, config.hidden, form)


def fit_world(
    ensemble: Ensemble,
    episodes: Sequence[Episode],
    experience: Experience,
    config: ModelConfig,
    capacity: int,
    seed: tuple[int, ...],
    generation: int,
    workers: Workers,
    new_rows: Sequence[int] | None = None,
) -> tuple[Ensemble, FitReport]:
    """Train the ensemble on all real data.

    Args:
        ensemble: where to start from.
        episodes: all real data.
        experience: its moments.
        config: the fit's sizes, rates and stopping rule.
        capacity: rows to make room for; doubled while they do not suffice.
        seed: of this fit; its first number is the run's, from which splits are drawn.
        generation: number of the split; a new one deals the rows out anew.
        workers: threads to share the members between.
        new_rows: [K] rows that no earlier fit of the member has seen; None counts all.
    """
    dataset = build_dataset(
        episodes, config.members, config.validation_fraction, seed[0], generation
    )
    while capacity < len(dataset):
        capacity *= 2
    inputs, targets = regression(dataset, experience, config.reward == "learned")
    unroll = None if config.fit_horizon == 1 else _unroll(episodes, experience)
    return fit(
        ensemble,
        inputs,
        targets,
        dataset.validation,
        config,
        capacity,
        seed,
        workers,
        unroll=unroll,
        new_rows=new_rows,
    )


def _unroll(episodes: Sequence[Episode], experience: Experience) -> Unroll:
    """What a fit several steps ahead knows of the order of the rows."""
    return Unroll(
        np.concatenate([np.arange(len(episode), 0, -1) for episode in episodes]),
        Normaliser.of(experience.observation),
        Normaliser.of(experience.delta),
    )


def refit(
    ensemble: Ensemble,
    task: Task,
    episodes: Sequence[Episode],
    experience: Experience,
    config: ModelConfig,
    capacity: int,
    keys: Keys,
    iteration: int,
    workers: Workers,
    collected: int | None = None,
) -> tuple[Ensemble, FitReport | None]:
    """An iteration's fit: from where the ensemble was, unless it is to start afresh.

    The last `collected` rows are new to members that do not; None counts all as new.
    There is nothing to report where the simulator stands in for the learned world.
    """
    if config.kind == "simulator":
        return ensemble, None
    afresh = begin_afresh(config, iteration)
    if afresh.any():
        fresh = fresh_ensemble(keys.jax("ensemble"), task, config)
        ensemble = _chosen(afresh, fresh, ensemble)
    rows = sum(map(len, episodes))
    new = rows if collected is None else collected
    together = config.reinitialise_every and not config.reinitialise_in_turn
    return fit_world(
        ensemble,
        episodes,
        experience,
        config,
        capacity,
        keys.numpy("fit"),
        iteration // config.reinitialise_every if together else 0,
        workers,
        np.where(afresh, rows, new).tolist(),
    )


def begin_afresh(config: ModelConfig, iteration: int) -> np.ndarray:
    """[K] which members start afresh in an iteration."""
    every, members = config.reinitialise_every, np.arange(config.members)
    if not every or not iteration:
        return np.zeros(config.members, bool)
    turn = members * every // config.members if config.reinitialise_in_turn else 0
    return np.broadcast_to((iteration + turn) % every == 0, members.shape)


def _chosen(where: np.ndarray, fresh: Ensemble, old: Ensemble) -> Ensemble:
    """The fresh members where they are chosen, elsewhere the old ones.

    Chosen on the host, where nothing is compiled.
    """

    def choose(new: Array, kept: Array) -> np.ndarray:
        return np.where(where.reshape(-1, *[1] * (new.ndim - 1)), new, kept)

    chosen: Ensemble = jax.device_put(jax.tree.map(choose, fresh, old))
    return chosen
