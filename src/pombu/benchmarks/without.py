"""MEPPO's update without any of POMBU's uncertainty, to see what the latter costs.

All K members predict at every step here too, because MEPPO's mean reward and its choice
of members ask for it. What is missing: V of the members' next states, the local
uncertainty, its propagation along the trajectory, and the penalty.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pombu import objectives
from pombu.benchmarks.workload import Workload
from pombu.config import PolicyConfig, ReturnConfig
from pombu.imagination import Imagined, imagine_in_shards
from pombu.improvement import (
    Batch,
    as_samples,
    descend,
    improve_value,
    likelihood_ratio,
    policy_adam,
    shuffles,
)
from pombu.networks import MLP
from pombu.policies import GaussianPolicy, kl
from pombu.returns import targets
from pombu.values import predict
from pombu.workers import jit


def update(work: Workload) -> object:
    """One whole update: imagine, estimate, improve."""
    state, config = work.state, work.config
    imagined = imagine_in_shards(
        state.policy,
        None,
        work.world,
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
            improve_policy,
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
        predict(value, imagined.observations) * imagined.weight,
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
def improve_policy(
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
