"""Comparisons: hot loops beside the machine's limit, PyTorch, and no uncertainty."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pombu.algorithms.pombu.learner import Learner
from pombu.bench.timing import Times, Work, take_turns
from pombu.bench.workload import Workload, operations
from pombu.dynamics.config import ReturnConfig
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
from pombu.parallel import jit
from pombu.rollout.imagine import Imagined, imagine_in_shards
from pombu.rollout.returns import targets

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


def loops(work: Workload) -> list[Loop]:
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
    for loop in loops(work):
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
    from pombu.bench import pytorch_workload

    return pytorch_workload.pieces(work)


def _in_bfloat16(work: Workload) -> Workload:
    learner = work.learner
    model = replace(work.config.model, precision="bfloat16")
    other = Learner(learner.task, replace(work.config, model=model))
    return replace(work, learner=other)


def uncertainty_cost(work: Workload, repeats: int, budget: float) -> Figures:
    """A whole update of POMBU beside one of MEPPO, which knows no uncertainty."""
    times = take_turns(
        {"pombu": work.update, "meppo": lambda: update_without_uncertainty(work)},
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


def update_without_uncertainty(work: Workload) -> object:
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
