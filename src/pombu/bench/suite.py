"""The benchmark suite: every figure of `pombu bench`, measured in one run.

Here are the run itself and its simplest parts: how an iteration's time grows with
stored data, how fast real episodes are collected, and what the machine reaches at best.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pombu.algorithms.pombu.learner import Learner
from pombu.algorithms.registry import preset
from pombu.bench import algorithms
from pombu.bench.workload import (
    SEED,
    TASK,
    CompileClock,
    Times,
    Work,
    Workload,
    operations,
    paper_workload,
    random_episodes,
    seconds,
    stored_steps,
    take_turns,
    with_experience,
)
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import ReturnConfig
from pombu.envs import Episode, Task, collect, load
from pombu.nn import MLP, GaussianPolicy, kl, predict_value
from pombu.optim import objectives
from pombu.optim.config import PolicyConfig
from pombu.optim.ppo import (
    Batch,
    as_samples,
    descend,
    improve_value,
    likelihood_ratio,
    policy_adam,
    shuffles,
)
from pombu.parallel import Workers, jit
from pombu.rng import Keys
from pombu.rollout.imagine import Imagined, imagine_in_shards
from pombu.rollout.returns import targets
from pombu.training.algorithm import StageTimer
from pombu.training.metrics import peak_memory
from pombu.training.run import provenance

Figures = dict[str, Any]

WITHOUT_PYTORCH = (
    "PyTorch is not installed, so nothing is compared with it: "
    "pip install 'pombu[baselines]'"
)


@dataclass(frozen=True)
class Loop:
    """One piece of work and how much there is in it."""

    name: str
    work: Work
    unit: str
    amount: int
    operations: int
    """Per unit, in matrix products."""


def _loops(work: Workload) -> list[Loop]:
    """Imagination, fit, and the update of policy and value."""
    config, task = work.config, work.learner.task
    count = operations(task, config)
    batch = work.batch
    steps = config.imagination.trajectories * task.horizon
    fitted = config.model.members * work.fit_steps * config.model.batch_size
    samples = config.policy.epochs * len(batch.weight)
    return [
        Loop("imagination", work.imagine, "steps", steps, count.imagined_step),
        Loop("fit", work.fit, "transitions", fitted, count.fitted_row),
        Loop(
            "update",
            lambda: work.improve(batch),
            "samples",
            samples,
            count.updated_sample,
        ),
    ]


def compare(
    work: Workload,
    limits: dict[str, float],
    repeats: int,
    budget: float,
    say: Callable[[str], None],
) -> Figures:
    """Speed, share of the limit and times faster than PyTorch of each loop.

    Args:
        work: sizes and data.
        limits: of the machine; bfloat16 is tried where its limit is the higher one.
        repeats: rounds per loop.
        budget: seconds per loop after which no further round begins.
        say: told what is being measured.
    """
    references = _references(work)
    if references is None:
        say(WITHOUT_PYTORCH)
    figures: Figures = {}
    for loop in _loops(work):
        say(loop.name)
        pieces = {"ours": loop.work}
        if references is not None:
            pieces["pytorch"] = references[loop.name]
        if loop.name == "imagination" and limits["bf16_gflops"] > limits["f32_gflops"]:
            pieces["bfloat16"] = _in_bfloat16(work).imagine
        times = take_turns(pieces, repeats, budget)
        figures[loop.name] = _figures(loop, times, "ours", limits["f32_gflops"])
        if "bfloat16" in pieces:
            figures[loop.name]["bfloat16"] = _figures(
                loop, times, "bfloat16", limits["f32_gflops"]
            )
    return figures


def _figures(loop: Loop, times: Times, piece: str, f32_gflops: float) -> Figures:
    spent = times.median(piece)
    compared = "pytorch" in times.rounds
    return {
        "seconds": spent,
        "per_s": 1.0 / spent,
        f"{loop.unit}_per_s": loop.amount / spent,
        "share_of_limit": loop.amount * loop.operations / spent / 1e9 / f32_gflops,
        "pytorch_seconds": times.median("pytorch") if compared else None,
        "vs_pytorch": times.ratio("pytorch", piece) if compared else None,
    }


def _references(work: Workload) -> dict[str, Work] | None:
    """The same loops in PyTorch, if it is installed."""
    if find_spec("torch") is None:
        return None
    from pombu.bench import pytorch

    return pytorch.pieces(work)


def _in_bfloat16(work: Workload) -> Workload:
    learner = work.learner
    model = replace(work.config.model, precision="bfloat16")
    other = Learner(learner.task, replace(work.config, model=model))
    return replace(work, learner=other)


def _uncertainty_cost(work: Workload, repeats: int, budget: float) -> Figures:
    """A whole update of POMBU beside one of MEPPO, which knows no uncertainty."""
    times = take_turns(
        {"pombu": work.update, "meppo": lambda: _update_without_uncertainty(work)},
        repeats,
        budget,
    )
    ratio = times.ratio("pombu", "meppo")
    return {
        "uncertainty": {
            "with_seconds": times.median("pombu"),
            "without_seconds": times.median("meppo"),
            "overhead": ratio - 1.0,
        },
        "pombu_over_meppo": ratio,
    }


def _update_without_uncertainty(work: Workload) -> object:
    """MEPPO's whole update: imagine, estimate, improve.

    All K members predict at every step here too, because MEPPO's mean reward and its
    choice of members ask for it. What is missing: V of the members' next states, the
    local uncertainty, its propagation along the trajectory, and the penalty.
    """
    state, config = work.state, work.config
    imagined = imagine_in_shards(
        state.policy,
        None,
        work.dynamics,
        work.rules,
        work.starts,
        work.members,
        work.keys.jax("imagine"),
        config.imagination.shards,
        work.learner.workers,
    )
    batch = _prepare(imagined, state.value, config.returns)
    return work.learner.workers.both(
        partial(
            improve_value,
            state.value,
            state.value_optimiser,
            batch,
            work.keys.numpy("value"),
            config.value.learning_rate,
            config.value,
        ),
        partial(
            _improve_policy,
            state.policy,
            state.policy_optimiser,
            batch,
            shuffles(
                work.keys.numpy("policy"), config.policy.epochs, len(batch.weight)
            ),
            config.policy.learning_rate,
            config.policy,
        ),
    )


@partial(jit, static_argnames="config")
def _prepare(imagined: Imagined, value: MLP, config: ReturnConfig) -> Batch:
    """Returns and advantages with V of the visited states alone."""
    goals = targets(
        imagined.rewards,
        predict_value(value, imagined.observations) * imagined.weight,
        imagined.local,
        imagined.continues,
        imagined.weight,
        config,
    )
    # No one asks for the uncertainty then, and the compiler leaves it out.
    return as_samples(imagined, goals)._replace(
        uncertainty=jnp.zeros_like(goals.uncertainty).ravel()
    )


@partial(jit, static_argnames="config")
def _improve_policy(
    policy: GaussianPolicy,
    optimiser: Any,
    batch: Batch,
    orders: Int[Array, "epochs n"],
    learning_rate: Float[Array, ""],
    config: PolicyConfig,
) -> tuple[GaussianPolicy, Any, dict[str, Array]]:
    """Maximise L_clip and report what PPO would: `improvement` without the penalty."""

    def loss(policy: GaussianPolicy, samples: Batch) -> Array:
        return -objectives.clipped_surrogate(
            likelihood_ratio(policy, samples),
            samples.advantages,
            samples.weight,
            config.clip,
        )

    improved, optimiser, norm = descend(
        loss,
        policy_adam(config),
        policy,
        optimiser,
        batch,
        orders,
        config.minibatch,
        learning_rate,
    )
    improved = GaussianPolicy(
        improved.mean, jnp.maximum(improved.log_std, config.minimum_log_std)
    )
    final = likelihood_ratio(improved, batch)
    gain = objectives.surrogate(final, batch.advantages, batch.weight)
    clipped = objectives.clipped_surrogate(
        final, batch.advantages, batch.weight, config.clip
    )
    divergence = kl(policy, improved, batch.observations)
    report = {
        "kl": objectives.weighted_mean(divergence, batch.weight),
        "surrogate": gain,
        "p_improve": clipped,
        "gradient_norm": norm,
    }
    return improved, optimiser, report


Figures = dict[str, Any]
STORED = 20_000
MATRICES = (1024, 2048)
"""Sizes of the matrices whose product shows the machine's limit."""
DATA_SIZES = (20_000, 100_000, 200_000)
"""Stored transitions at which an iteration is timed."""
SHORT_FIT = 200
"""Gradient steps of the fit where no whole iteration is timed."""
COLLECTED = ("Point2D", "Swimmer", "HalfCheetah", "Ant", "Walker2d")
"""Tasks in which real steps are collected."""
EPISODES = 20


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    repeats: int
    budget: float
    """Seconds after which a comparison begins no further round."""
    fit_steps: int
    """Gradient steps per member in a timed fit."""
    collections: int
    """Batches of real episodes per task."""
    whole_iterations: bool
    """See how whole iterations grow with data; else one short fit plus one update."""


FULL = Effort(9, 90.0, fit_steps=80, collections=5, whole_iterations=True)
QUICK = Effort(3, 20.0, fit_steps=10, collections=2, whole_iterations=False)


def run(effort: Effort, say: Callable[[str], None]) -> Figures:
    """Measure everything.

    Args:
        effort: how long to measure.
        say: told what is being measured.
    """
    started = time.perf_counter()
    before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    say("time per iteration as data grows")
    # First of all, so that the peak of memory is the engine's and not PyTorch's.
    with CompileClock() as compiling:
        iteration = iteration_seconds(effort.whole_iterations)
    memory = peak_memory()
    say("collection of real steps")
    collected = _collection_speed(effort.collections)
    say("the machine's limit")
    work = paper_workload(STORED, effort.fit_steps)
    limits = _limits(work)
    compared = compare(work, limits, effort.repeats, effort.budget, say)
    say("the cost of uncertainty")
    uncertain = _uncertainty_cost(work, effort.repeats, effort.budget)
    say("the baselines")
    return {
        "limit": limits,
        **compared,
        **uncertain,
        "baselines": algorithms.measure_trust_region(effort.repeats, effort.budget),
        **algorithms.measure_planners(
            effort.repeats, effort.budget, limits["f32_gflops"]
        ),
        "dhmbpo": algorithms.measure_pathwise(
            effort.repeats, effort.budget, limits["f32_gflops"]
        ),
        "iteration": {
            "measured": "iteration" if effort.whole_iterations else "fit and update",
            "seconds": {str(size): spent for size, spent in iteration.items()},
            "growth_200k_over_20k": iteration[200_000] / iteration[20_000],
        },
        "compile": {"seconds": compiling.seconds},
        "memory": {"peak_mb": memory},
        "collection": collected,
        "machine": {
            **provenance(),
            "usable_cores": work.learner.workers.count,
            "load_before": before,
        },
        "total_seconds": time.perf_counter() - started,
    }


def _limits(work: Workload) -> dict[str, float]:
    workers = work.learner.workers
    return {
        "f32_gflops": _peak_gflops(jnp.float32, MATRICES, workers, 9),
        "bf16_gflops": _peak_gflops(jnp.bfloat16, MATRICES[:1], workers, 3),
    }


def iteration_seconds(whole: bool) -> dict[int, float]:
    """Seconds per iteration of the `fast` preset by stored transitions.

    Args:
        whole: time whole iterations; else one fit, of 200 steps, plus one update of
            policy and value, in which what grows with the data weighs more.
    """
    config = preset("pombu", "fast", TASK)
    config = replace(config, capacity=max(DATA_SIZES) + config.trajectories * 200)
    if not whole:
        config = replace(
            config, updates=1, model=replace(config.model, max_steps=SHORT_FIT)
        )
    learner = Learner(load(TASK), config)
    # Growth is about how many rows there are, so the same ones may come again.
    few = random_episodes(learner.task, DATA_SIZES[0])
    brief = replace(config, updates=1, model=replace(config.model, max_steps=1))
    _iteration(Learner(learner.task, brief), few, whole)()
    return {
        size: seconds(_iteration(learner, few * (size // stored_steps(few)), whole))
        for size in DATA_SIZES
    }


def _iteration(learner: Learner, episodes: list[Episode], whole: bool) -> Work:
    """What is to be timed, with everything known about the episodes beforehand."""
    state = with_experience(learner, episodes)
    store, stage, keys = EpisodeStore(episodes), StageTimer(), Keys(SEED, 1)

    def iterate() -> object:
        if whole:
            return learner.iterate(state, store, stage)
        fitted, _ = learner.fit(state, store, keys)
        return learner.improve(fitted, store, keys, stage)

    return iterate


def _steps_per_second(task: Task, batched: bool, repeats: int) -> float:
    """Real steps per second under a policy that costs nothing (the best of a few)."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (task.horizon, EPISODES, task.action_dim))
    seconds = []
    for repeat in range(repeats):
        seeds = range(repeat * EPISODES, (repeat + 1) * EPISODES)
        start = time.perf_counter()
        collect(task, lambda obs, step: actions[step], seeds, batched)
        seconds.append(time.perf_counter() - start)
    return EPISODES * task.horizon / min(seconds)


def _collection_speed(repeats: int) -> dict[str, dict[str, float]]:
    """Steps per second of each task, one by one and in batches, and their ratio."""
    results = {}
    for name in COLLECTED:
        task = load(name)
        single = _steps_per_second(task, batched=False, repeats=repeats)
        batched = _steps_per_second(task, batched=True, repeats=repeats)
        results[name] = {
            "single_steps_per_s": single,
            "batched_steps_per_s": batched,
            "ratio": batched / single,
        }
    return results


def _peak_gflops(
    dtype: DTypeLike, sizes: Sequence[int], workers: Workers, repeats: int
) -> float:
    """The most operations per nanosecond that any way of multiplying reached.

    One product spread over all cores and one product per core compete. The best and not
    the median counts: a limit that a disturbance lowered would flatter every share.
    """
    return max(
        max(_together(size, dtype, repeats), _separately(size, dtype, workers, repeats))
        for size in sizes
    )


def _multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _together(size: int, dtype: DTypeLike, repeats: int) -> float:
    multiply = jax.jit(_multiply)
    a = jnp.ones((size, size), dtype)
    seconds(lambda: multiply(a, a))
    return 2e-9 * size**3 / min(seconds(lambda: multiply(a, a)) for _ in range(repeats))


def _separately(size: int, dtype: DTypeLike, workers: Workers, repeats: int) -> float:
    multiply = jit(_multiply)
    a = jnp.ones((size, size), dtype)

    def everyone() -> object:
        return workers.map(lambda _: multiply(a, a), range(workers.count))

    seconds(everyone)
    best = min(seconds(everyone) for _ in range(repeats))
    return 2e-9 * workers.count * size**3 / best
