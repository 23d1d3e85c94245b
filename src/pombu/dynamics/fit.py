"""Fitting members: gradient steps side by side, each member with its own stopping.

One function, `fit_members`, trains members of any kind for any loss of rows. A plan
says what a member learns from, and when it stops: once its loss on held-out rows no
longer falls, with the best weights restored, or after a fixed number of steps.

Members are independent, so each is trained by its own single-threaded program and the
workers take turns at the unfinished ones: a member that has stopped costs nothing more.
Rows are addressed by index into arrays of a fixed size, so nothing recompiles as the
dataset grows.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.data import Experience, Normaliser, build_dataset, regression
from pombu.dynamics.config import ModelConfig
from pombu.dynamics.ensemble import (
    Ensemble,
    Form,
    MemberLoss,
    Samples,
    SquaredError,
    Unroll,
    init_ensemble,
)
from pombu.dynamics.model import network_sizes
from pombu.envs import Episode, Task
from pombu.nn import Descent, adam, gradient_step
from pombu.parallel import Workers, jit
from pombu.rng import Keys

STEPS_PER_CALL = 32
"""Gradient steps compiled into one call; a shorter remainder uses the same program."""

FEWEST_STEPS = 200
"""Gradient steps that a fit may take however few rows are new."""


class FitPlan(NamedTuple):
    """What one member learns from, what it is judged by, and how long it trains."""

    batches: Iterator[np.ndarray]
    """Rows of each gradient step."""
    loss: MemberLoss
    held_out: tuple[MemberLoss, np.ndarray, int] | None
    """A loss, rows, and how many of them count; None keeps the last weights instead of
    the best."""
    interval: int
    """Gradient steps between two looks at the held-out rows."""
    patience: int
    """Gradient steps without gain after which the member stops."""
    longest: int
    """Gradient steps, at most."""


@runtime_checkable
class StepSizes(Protocol):
    """What is read of a config by every fit."""

    @property
    def learning_rate(self) -> float:
        """Adam's step size."""

    @property
    def final_learning_rate(self) -> float | None:
        """Towards which it falls; None keeps it."""


class Fitted(NamedTuple):
    """What became of the members."""

    members: Any
    optimiser: Any
    """Adam's memory at the end, if there was one to begin with."""
    losses: np.ndarray
    """[K] of the weights that were kept: judged, or else reported by the last step."""
    steps: np.ndarray
    """[K] gradient steps, also those after the best."""


class _Member(NamedTuple):
    """One member on its way."""

    number: int
    parameters: Any
    optimiser: Any
    best: Any
    best_loss: float
    best_step: int
    step: int


@partial(jit, static_argnames=("gradient_clip",))
def _train(
    member: Any,
    optimiser: Any,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, "s b"],
    steps: Int[Array, ""],
    rates: Float[Array, " s"],
    loss: MemberLoss,
    gradient_clip: float | None,
) -> tuple[Any, Any, Float[Array, ""]]:
    """Take `steps` gradient steps (at most the rows given); what the last reports."""
    transform = adam(gradient_clip)

    def step(number: Array, carry: tuple[Descent, Array]) -> tuple[Descent, Array]:
        samples = Samples(inputs, targets, rows[number])
        descent, reported, _ = gradient_step(
            loss.objective, transform, carry[0], rates[number], samples
        )
        return descent, reported

    begin = (Descent(member, optimiser), jnp.zeros(()))
    (trained, memory), reported = jax.lax.fori_loop(0, steps, step, begin)
    return trained, memory, reported


@jit
def _validate(
    member: Any,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, " v"],
    count: Int[Array, ""],
    loss: MemberLoss,
) -> Float[Array, ""]:
    """Mean loss over the first `count` of the validation rows."""
    found = loss.of_rows(member, Samples(inputs, targets, rows))
    return jnp.sum(jnp.where(jnp.arange(len(rows)) < count, found, 0.0)) / count


def fit_members(
    members: Any,
    optimiser: Any,
    plans: Sequence[FitPlan],
    inputs: np.ndarray,
    targets: np.ndarray,
    sizes: StepSizes,
    capacity: int,
    workers: Workers,
    gradient_clip: float | None = None,
) -> Fitted:
    """Train every member by its plan.

    Args:
        members: where to start from, stacked on the first axis of every array.
        optimiser: Adam's memory of every member, stacked; None begins without one.
        plans: of every member.
        inputs: [n, i] normalised states and actions.
        targets: [n, y] what is to be predicted.
        sizes: of gradient steps.
        capacity: rows to pad the arrays to, so that shapes stay the same.
        workers: threads to share the members between.
        gradient_clip: largest global norm of a gradient; None does not clip.
    """
    # 1. Arrays of a fixed size, and members of their own.
    padding = ((0, max(capacity - len(inputs), 0)), (0, 0))
    rows_in = jnp.asarray(np.pad(inputs, padding), jnp.float32)
    rows_out = jnp.asarray(np.pad(targets, padding), jnp.float32)
    rates = (sizes.learning_rate, sizes.final_learning_rate)

    def start(number: int) -> _Member:
        own, memory = jax.tree.map(lambda leaf: leaf[number], (members, optimiser))
        if optimiser is None:
            memory = adam(gradient_clip).init(own)
        return _Member(number, own, memory, own, np.inf, 0, 0)

    # 2. A turn: train one interval, then look at the held-out rows.
    def advance(member: _Member) -> _Member:
        plan = plans[member.number]
        interval = min(plan.interval, plan.longest - member.step)
        parameters, memory, loss = member.parameters, member.optimiser, np.inf
        for offset in range(0, interval, STEPS_PER_CALL):
            steps = min(STEPS_PER_CALL, interval - offset)
            batches = [next(plan.batches) for _ in range(steps)]
            batches += [batches[-1]] * (STEPS_PER_CALL - steps)
            parameters, memory, loss = _train(
                parameters,
                memory,
                rows_in,
                rows_out,
                np.stack(batches),
                steps,
                _falling_rates(*rates, member.step + offset, plan.longest),
                plan.loss,
                gradient_clip,
            )
        step = member.step + interval
        member = member._replace(parameters=parameters, optimiser=memory, step=step)
        if plan.held_out is None:
            kept = float(loss)
            return member._replace(best=parameters, best_loss=kept, best_step=step)
        judge, rows, count = plan.held_out
        kept = float(_validate(parameters, rows_in, rows_out, rows, count, judge))
        # A tie counts as gain, as in the published code.
        if kept <= member.best_loss:
            member = member._replace(best=parameters, best_loss=kept, best_step=step)
        return member

    def finished(member: _Member) -> bool:
        plan = plans[member.number]
        waited = member.step - member.best_step
        return waited >= plan.patience or member.step >= plan.longest

    # 3. Members take turns until all have finished, and are stacked again.
    begin = [start(number) for number in range(len(plans))]
    done = _take_turns(begin, advance, finished, workers.count)
    kept = [(m.best, None if optimiser is None else m.optimiser) for m in done]
    trained, memory = jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)
    return Fitted(
        trained,
        memory,
        np.array([m.best_loss for m in done]),
        np.array([m.step for m in done]),
    )


class FitReport(NamedTuple):
    """What happened to each member."""

    validation_loss: np.ndarray
    """[K] loss of the weights that were kept."""
    epochs: np.ndarray
    """[K] epochs trained, also those after the best."""


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
    plain = SquaredError(config.precision)
    judge = plain if unroll is None else unroll.loss(config, capacity)
    epoch_steps = -(-(~validation).sum(1) // config.batch_size)

    def plan(number: int) -> FitPlan:
        held = validation[number]
        rng = np.random.default_rng([*seed, number])
        learned = np.flatnonzero(~held)
        # Where episodes are too short to split, a member is judged by what it learns.
        judges = np.flatnonzero(held) if held.any() else learned
        new = len(inputs) if new_rows is None else new_rows[number]
        return FitPlan(
            row_batches(rng, learned, config.batch_size),
            plain if unroll is None else unroll.loss(config, capacity, held),
            (judge, *held_out(rng, judges, config.validation_rows)),
            *_budget(config, int(epoch_steps[number]), new),
        )

    fitted = fit_members(
        ensemble,
        None,
        [plan(number) for number in range(ensemble.members)],
        inputs,
        targets,
        config,
        capacity,
        workers,
        config.gradient_clip,
    )
    return fitted.members, FitReport(fitted.losses, fitted.steps / epoch_steps)


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


def _falling_rates(
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


def held_out(
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
