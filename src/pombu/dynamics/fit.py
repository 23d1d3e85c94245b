"""Fitting the ensemble: Adam, individual early stopping, best weights restored.

Members are independent, so each is trained by its own single-threaded program and the
workers take turns at the unfinished ones: a member that has stopped costs nothing more.
Rows are addressed by index into arrays of a fixed size, so nothing recompiles as the
dataset grows.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.data import Experience, Normaliser, build_dataset, regression
from pombu.dynamics.config import ModelConfig, Precision
from pombu.dynamics.ensemble import Ensemble, Form, init_ensemble, materialise, predict
from pombu.dynamics.model import network_sizes
from pombu.dynamics.windows import Unroll, Windows, window_loss
from pombu.envs import Episode, Task
from pombu.parallel import Workers, jit
from pombu.rng import Keys

STEPS_PER_CALL = 32
"""Gradient steps compiled into one call; a shorter remainder uses the same program."""

FEWEST_STEPS = 200
"""Gradient steps that a fit may take however few rows are new."""


class FitReport(NamedTuple):
    """What happened to each member."""

    validation_loss: np.ndarray
    """[K] loss of the weights that were kept."""
    epochs: np.ndarray
    """[K] epochs trained, also those after the best."""


class _Member(NamedTuple):
    """One member on its way."""

    number: int
    parameters: Ensemble
    optimiser: Any
    best: Ensemble
    best_loss: float
    best_step: int
    step: int


def _optimiser(gradient_clip: float) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(gradient_clip), optax.scale_by_adam(eps=1e-8)
    )


def _loss(
    member: Ensemble,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n o"],
    precision: Precision,
) -> Float[Array, " n"]:
    """Squared error per row, in normalised units."""
    error = predict(materialise(member), inputs, precision) - targets
    return jnp.mean(error**2, -1)


def _losses(
    member: Ensemble,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n o"],
    rows: Int[Array, " b"],
    windows: Windows | None,
    precision: Precision,
) -> Float[Array, " b"]:
    """Loss per row: of its step alone, or of the window that begins there."""
    if windows is None:
        return _loss(member, inputs[rows], targets[rows], precision)
    return window_loss(member, inputs, targets, rows, windows, precision)


@partial(jit, static_argnames=("gradient_clip", "precision"))
def _train(
    member: Ensemble,
    optimiser: Any,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n o"],
    rows: Int[Array, "s b"],
    steps: Int[Array, ""],
    rates: Float[Array, " s"],
    gradient_clip: float,
    precision: Precision,
    windows: Windows | None = None,
) -> tuple[Ensemble, Any]:
    """Take `steps` gradient steps (at most the rows given)."""
    transform = _optimiser(gradient_clip)

    def step(number: Array, carry: tuple[Ensemble, Any]) -> tuple[Ensemble, Any]:
        member, optimiser = carry
        batch = rows[number]
        gradient = jax.grad(
            lambda m: jnp.mean(_losses(m, inputs, targets, batch, windows, precision))
        )(member)
        direction, optimiser = transform.update(gradient, optimiser)
        member = jax.tree.map(lambda w, d: w - rates[number] * d, member, direction)
        return member, optimiser

    trained: tuple[Ensemble, Any] = jax.lax.fori_loop(
        0, steps, step, (member, optimiser)
    )
    return trained


@partial(jit, static_argnames=("precision",))
def _validate(
    member: Ensemble,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n o"],
    rows: Int[Array, " v"],
    count: Int[Array, ""],
    precision: Precision,
    windows: Windows | None = None,
) -> Float[Array, ""]:
    """Mean loss over the first `count` of the validation rows."""
    loss = _losses(member, inputs, targets, rows, windows, precision)
    return jnp.sum(jnp.where(jnp.arange(len(rows)) < count, loss, 0.0)) / count


def fit(
    ensemble: Ensemble,
    inputs: np.ndarray,
    targets: np.ndarray,
    validation: np.ndarray,
    config: ModelConfig,
    capacity: int,
    seed: tuple[int, ...],
    workers: Workers,
    new_rows: Sequence[int] | None = None,
    unroll: Unroll | None = None,
) -> tuple[Ensemble, FitReport]:
    """Train every member until its validation loss stops falling.

    Args:
        ensemble: where to start from.
        inputs: [n, i] normalised states and actions.
        targets: [n, o] normalised state changes (and rewards).
        validation: [K, n] rows that each member holds out.
        config: sizes, rates and the stopping rule.
        capacity: rows to pad the arrays to, so that shapes stay the same.
        seed: what the order of the rows is drawn from.
        workers: threads to share the members between.
        new_rows: [K] rows that no earlier fit of the member has seen; None counts all.
        unroll: what the loss of `config.fit_horizon` steps needs; None looks one step
            ahead.
    """
    padding = ((0, max(capacity - len(inputs), 0)), (0, 0))
    rows_in = jnp.asarray(np.pad(inputs, padding), jnp.float32)
    rows_out = jnp.asarray(np.pad(targets, padding), jnp.float32)
    transform = _optimiser(config.gradient_clip)

    def start(number: int) -> _Member:
        parameters = jax.tree.map(lambda leaf: leaf[number], ensemble)
        optimiser = transform.init(parameters)
        return _Member(number, parameters, optimiser, parameters, np.inf, 0, 0)

    streams = []
    held_out = []
    epoch_steps = []
    budgets = []
    judged = unroll and unroll.windows(config.fit_horizon, capacity)
    trained_on = [
        unroll and unroll.windows(config.fit_horizon, capacity, held)
        for held in validation
    ]
    for number in range(ensemble.members):
        rng = np.random.default_rng([*seed, number])
        training_rows = np.flatnonzero(~validation[number])
        streams.append(row_batches(rng, training_rows, config.batch_size))
        # Where episodes are too short to split, a member is judged by what it learns.
        judges = np.flatnonzero(validation[number])
        judges = judges if len(judges) else training_rows
        held_out.append(_held_out(rng, judges, config.validation_rows))
        epoch_steps.append(-(-len(training_rows) // config.batch_size))
        new = len(inputs) if new_rows is None else new_rows[number]
        budgets.append(_budget(config, epoch_steps[number], new))

    def advance(member: _Member) -> _Member:
        """Train one validation interval and look at the held-out rows."""
        interval, _, longest = budgets[member.number]
        interval = min(interval, longest - member.step)
        parameters, optimiser = member.parameters, member.optimiser
        sizes = (config.learning_rate, config.final_learning_rate)
        for offset in range(0, interval, STEPS_PER_CALL):
            steps = min(STEPS_PER_CALL, interval - offset)
            batches = [next(streams[member.number]) for _ in range(steps)]
            batches += [batches[-1]] * (STEPS_PER_CALL - steps)
            first = member.step + offset
            parameters, optimiser = _train(
                parameters,
                optimiser,
                rows_in,
                rows_out,
                np.stack(batches),
                steps,
                falling_rates(*sizes, first, longest),
                config.gradient_clip,
                config.precision,
                trained_on[member.number],
            )
        rows, count = held_out[member.number]
        data = (rows_in, rows_out, rows, count)
        loss = float(_validate(parameters, *data, config.precision, judged))
        step = member.step + interval
        member = member._replace(parameters=parameters, optimiser=optimiser, step=step)
        # A tie counts as gain, as in the published code.
        if loss <= member.best_loss:
            member = member._replace(best=parameters, best_loss=loss, best_step=step)
        return member

    def finished(member: _Member) -> bool:
        _, patience, longest = budgets[member.number]
        waited = member.step - member.best_step
        return waited >= patience or member.step >= longest

    done = _take_turns(
        [start(number) for number in range(ensemble.members)],
        advance,
        finished,
        workers.count,
    )
    trained = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[m.best for m in done])
    return trained, FitReport(
        np.array([m.best_loss for m in done]),
        np.array([m.step / epoch_steps[m.number] for m in done]),
    )


def _budget(
    config: ModelConfig, epoch_steps: int, new_rows: int
) -> tuple[int, int, int]:
    """Gradient steps between validations, without gain before stopping, and in all."""
    interval = config.validate_every * epoch_steps
    patience = config.patience * epoch_steps
    longest = config.max_epochs * epoch_steps
    if config.validate_every_steps is not None:
        interval = min(interval, config.validate_every_steps)
    if config.steps_per_new_row is not None:
        due = math.ceil(config.steps_per_new_row * new_rows)
        longest = min(longest, max(due, FEWEST_STEPS))
    if config.max_steps is not None:
        longest = min(longest, config.max_steps)
    return max(interval, 1), patience, longest


def falling_rates(
    start: float, end: float | None, first: int, longest: int
) -> np.ndarray:
    """Step sizes of one call that begins with gradient step `first` of a fit.

    They fall linearly from `start` to `end` at step `longest`; None keeps `start`.
    """
    done = (first + np.arange(STEPS_PER_CALL)) / longest
    rates = start + ((start if end is None else end) - start) * np.minimum(done, 1.0)
    return rates.astype(np.float32)


def row_batches(
    rng: np.random.Generator, rows: np.ndarray, size: int
) -> Iterator[np.ndarray]:
    """Endless batches of `size` rows: one shuffled epoch after the other."""
    waiting = rng.permutation(rows)
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(rows)])
        yield waiting[:size].astype(np.int32)
        waiting = waiting[size:]


def _held_out(
    rng: np.random.Generator, rows: np.ndarray, most: int
) -> tuple[np.ndarray, int]:
    """At most `most` validation rows, padded to that size, and how many count."""
    chosen = rng.permutation(rows)[:most].astype(np.int32)
    return np.pad(chosen, (0, most - len(chosen))), len(chosen)


def _take_turns(
    members: list[_Member], advance: Any, finished: Any, count: int
) -> list[_Member]:
    """Let `count` threads advance unfinished members in turn until none is left."""
    done: dict[int, _Member] = {}
    with ThreadPoolExecutor(count) as pool:
        running: set[Future[_Member]] = {pool.submit(advance, m) for m in members}
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for member in (future.result() for future in ended):
                if finished(member):
                    done[member.number] = member
                else:
                    running.add(pool.submit(advance, member))
    return [done[number] for number in range(len(members))]


def fresh_ensemble(key: PRNGKeyArray, task: Task, config: ModelConfig) -> Ensemble:
    """An untrained ensemble of the task's sizes."""
    sizes = network_sizes(task, config.reward)
    form = Form(config.activation, config.normalisation)
    return init_ensemble(key, config.members, *sizes, config.hidden, form)


def fit_dynamics(
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
    There is nothing to report where the simulator stands in for the learned dynamics.
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
    return fit_dynamics(
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
