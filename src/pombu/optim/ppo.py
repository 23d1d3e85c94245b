"""Improving V_phi and pi_theta on one imagined batch.

Each function is one compiled loop over epochs and minibatches. An epoch shuffles the
batch once and then reads it in order; samples that do not fill a last minibatch sit out
that epoch. The orders are drawn on the host, where a shuffle is many times cheaper than
the sort it would be on the device.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from pombu.dynamics.config import PlainReturnConfig
from pombu.nn import (
    Descent,
    GaussianPolicy,
    Value,
    VarianceValue,
    adam,
    gradient_steps,
    kl,
    predict_value,
    unscaled_variance,
)
from pombu.optim import objectives
from pombu.optim.config import CriticConfig, PolicyConfig, TailConfig
from pombu.parallel import jit
from pombu.rollout.imagine import Imagined
from pombu.rollout.returns import Correction, Targets, targets

V = TypeVar("V", bound=Value)


class Batch(NamedTuple):
    """Imagined steps as one list of samples."""

    observations: Float[Array, "n o"]
    actions: Float[Array, "n a"]
    log_probs: Float[Array, " n"]
    returns: Float[Array, " n"]
    advantages: Float[Array, " n"]
    uncertainty: Float[Array, " n"]
    weight: Float[Array, " n"]
    left: Int[Array, " n"] | None = None
    """Steps left in the episode; None where neither V nor U_psi knows the step."""


class PolicyReport(NamedTuple):
    """The paper's quantities after a policy update, over the whole batch."""

    kl: Float[Array, ""]
    surrogate: Float[Array, ""]
    """L_exp."""
    p_improve: Float[Array, ""]
    """L_clip."""
    penalty: Float[Array, ""]
    """L_std."""
    gradient_norm: Float[Array, ""]
    """Mean norm before clipping."""


@partial(jit, static_argnames="config")
def prepare(
    imagined: Imagined,
    config: PlainReturnConfig,
    correction: Correction | None = None,
) -> tuple[Batch, Targets]:
    """Returns, advantages and uncertainty of imagined steps, and these as samples."""
    goals = targets(
        imagined.rewards,
        imagined.values,
        imagined.local,
        imagined.continues,
        imagined.weight,
        config,
        imagined.beyond if config.bootstrap else None,
        imagined.variance_beyond if config.bootstrap else None,
        imagined.member_q,
        imagined.cut_local,
        correction,
    )
    return as_samples(imagined, goals), goals


def as_samples(imagined: Imagined, goals: Targets) -> Batch:
    """Forget which trajectory and step a sample is from."""

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    return Batch(
        flat(imagined.observations),
        flat(imagined.actions),
        flat(imagined.log_probs),
        flat(goals.returns),
        flat(goals.advantages),
        flat(goals.uncertainty),
        flat(imagined.weight),
        None if imagined.left is None else flat(imagined.left),
    )


def shuffles(seed: Sequence[int], epochs: int, size: int) -> np.ndarray:
    """An order of the samples for every epoch."""
    rng = np.random.default_rng(list(seed))
    in_order = np.broadcast_to(np.arange(size, dtype=np.int32), (epochs, size))
    return rng.permuted(in_order, axis=1)


def policy_adam(config: PolicyConfig) -> optax.GradientTransformation:
    """Adam as the published code sets it for the policy."""
    return adam(config.gradient_clip, eps=1e-5)


def value_adam(config: CriticConfig) -> optax.GradientTransformation:
    """Adam for the value function."""
    return adam(config.gradient_clip)


def descend(
    loss: Callable[[Any, Any], Array],
    transform: optax.GradientTransformation,
    parameters: Any,
    optimiser: Any,
    batch: Any,
    orders: Int[Array, "epochs n"],
    minibatch: int,
    learning_rate: Float[Array, ""],
) -> tuple[Any, Any, Float[Array, ""]]:
    """Epochs of minibatch gradient descent; returns the mean gradient norm too."""
    count = orders.shape[1] // minibatch

    def epoch(now: Descent, order: Int[Array, " n"]) -> tuple[Descent, Array]:
        used = order[: count * minibatch]
        shuffled = jax.tree.map(
            lambda x: x[used].reshape(count, minibatch, *x.shape[1:]), batch
        )
        later, (_, norms) = gradient_steps(
            lambda *given: (loss(*given), None), transform, now, learning_rate, shuffled
        )
        return later, norms

    done, norms = jax.lax.scan(epoch, Descent(parameters, optimiser), orders)
    return *done, jnp.mean(norms)


def improve_value(
    value: V,
    optimiser: Any,
    batch: Batch,
    seed: Sequence[int],
    learning_rate: float,
    config: CriticConfig,
) -> tuple[V, Any, Float[Array, ""]]:
    """Minimise L_v; returns the loss over the whole batch before the update too."""
    orders = shuffles(seed, config.epochs, len(batch.weight))
    improved: tuple[V, Any, Array] = _improve_value(
        value, optimiser, batch, orders, learning_rate, config
    )
    return improved


@partial(jit, static_argnames="config")
def _improve_value(
    value: V,
    optimiser: Any,
    batch: Batch,
    orders: Int[Array, "epochs n"],
    learning_rate: Float[Array, ""],
    config: CriticConfig,
) -> tuple[V, Any, Float[Array, ""]]:

    def loss(value: V, samples: tuple[Array, Array, Array, Array | None]) -> Array:
        observations, returns, weight, left = samples
        return objectives.value_loss(
            predict_value(value, observations, left), returns, weight
        )

    samples = (batch.observations, batch.returns, batch.weight, batch.left)
    before = loss(value, samples)
    value, optimiser, _ = descend(
        loss,
        value_adam(config),
        value,
        optimiser,
        samples,
        orders,
        config.minibatch,
        learning_rate,
    )
    return value, optimiser, before


def improve_variance(
    value: VarianceValue,
    optimiser: Any,
    batch: Batch,
    variances: Float[Array, "H N"],
    seed: Sequence[int],
    learning_rate: float,
    config: TailConfig,
) -> tuple[VarianceValue, Any]:
    """Train U_psi towards the variances D of the batch's steps."""
    orders = shuffles(seed, config.epochs, len(batch.weight))
    improved: tuple[VarianceValue, Any] = _improve_variance(
        value, optimiser, batch, variances, orders, learning_rate, config
    )
    return improved


_SCALE_RATE = 0.1
"""Share of a batch's mean variance in the running mean."""


@partial(jit, static_argnames="config")
def _improve_variance(
    value: VarianceValue,
    optimiser: Any,
    batch: Batch,
    variances: Float[Array, "H N"],
    orders: Int[Array, "epochs n"],
    learning_rate: Float[Array, ""],
    config: TailConfig,
) -> tuple[VarianceValue, Any]:
    flat = variances.ravel()
    mean = objectives.weighted_mean(flat, batch.weight)
    scale = jnp.where(
        value.scale > 0, value.scale + _SCALE_RATE * (mean - value.scale), mean
    )
    # Variances span orders of magnitude between tasks and over a run; in units of their
    # running mean the network's target is always about 1.
    goals = flat / jnp.maximum(scale, 1e-12)

    def loss(
        network: Value, samples: tuple[Array, Array, Array, Array | None]
    ) -> Array:
        observations, goals, weight, left = samples
        found = unscaled_variance(network, observations, left)
        return objectives.value_loss(found, goals, weight)

    network, optimiser, _ = descend(
        loss,
        value_adam(config),
        value.network,
        optimiser,
        (batch.observations, goals, batch.weight, batch.left),
        orders,
        config.minibatch,
        learning_rate,
    )
    return VarianceValue(network, scale), optimiser


def likelihood_ratio(policy: GaussianPolicy, samples: Batch) -> Float[Array, " n"]:
    """r_theta = pi_theta(a|s) / pi_old(a|s)."""
    now = policy.log_prob(samples.observations, samples.actions)
    # Masked samples carry zeros; their ratio must stay finite to be weighed by 0.
    change = jnp.where(samples.weight > 0, now - samples.log_probs, 0.0)
    return jnp.exp(jnp.clip(change, -20.0, 20.0))


def improve_policy(
    policy: GaussianPolicy,
    optimiser: Any,
    batch: Batch,
    seed: Sequence[int],
    learning_rate: float,
    alpha: float,
    config: PolicyConfig,
) -> tuple[GaussianPolicy, Any, PolicyReport]:
    """Maximise L_pi = L_clip - alpha L_std."""
    orders = shuffles(seed, config.epochs, len(batch.weight))
    improved: tuple[GaussianPolicy, Any, PolicyReport] = _improve_policy(
        policy, optimiser, batch, orders, learning_rate, alpha, config
    )
    return improved


@partial(jit, static_argnames="config")
def _improve_policy(
    policy: GaussianPolicy,
    optimiser: Any,
    batch: Batch,
    orders: Int[Array, "epochs n"],
    learning_rate: Float[Array, ""],
    alpha: Float[Array, ""],
    config: PolicyConfig,
) -> tuple[GaussianPolicy, Any, PolicyReport]:

    def loss(policy: GaussianPolicy, samples: Batch) -> Array:
        return -objectives.conservative_surrogate(
            likelihood_ratio(policy, samples),
            samples.advantages,
            samples.uncertainty,
            samples.weight,
            config.clip,
            alpha,
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
    return (
        improved,
        optimiser,
        PolicyReport(
            objectives.weighted_mean(
                kl(policy, improved, batch.observations), batch.weight
            ),
            objectives.surrogate(final, batch.advantages, batch.weight),
            objectives.clipped_surrogate(
                final, batch.advantages, batch.weight, config.clip
            ),
            objectives.uncertainty_penalty(final, batch.uncertainty, batch.weight),
            norm,
        ),
    )
