"""Meta-learning of a policy: one gradient step away from being good in any model.

A task is a model. The inner step adapts the policy to a task by plain policy gradient;
the outer objective is how well the adapted policies do, as a function of the policy
before adaptation, and its gradient goes through the inner step.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pombu.dynamics.config import PlainReturnConfig
from pombu.nn import GaussianPolicy, fit_linear, kl, predict_linear
from pombu.optim import objectives
from pombu.optim.config import TrustRegionConfig
from pombu.optim.ppo import Batch, likelihood_ratio, prepare
from pombu.optim.trpo import StepReport, trust_region_step
from pombu.parallel import jit
from pombu.rollout.imagine import Imagined
from pombu.rollout.returns import Targets, discounted_sum

Scalar = Float[Array, ""]


class Judged(NamedTuple):
    """A task's virtual trajectories and what can be learned from them."""

    imagined: Imagined
    batch: Batch
    goals: Targets
    baseline_loss: Scalar


def judge(imagined: Imagined, valued: bool, config: PlainReturnConfig) -> Judged:
    """Advantages over V, where the trajectories have it, or over a linear baseline.

    The linear baseline is fitted to the same trajectories.
    """
    if valued:
        batch, goals = prepare(imagined, config)
        return Judged(imagined, batch, goals, _value_loss(imagined, goals.returns))
    values, loss = _baseline(imagined, config.gamma)
    batch, goals = prepare(imagined._replace(values=values), config)
    return Judged(imagined, batch, goals, loss)


@jit
def _value_loss(imagined: Imagined, returns: Float[Array, "H N"]) -> Scalar:
    flat = (imagined.values.ravel(), returns.ravel(), imagined.weight.ravel())
    return objectives.value_loss(*flat)


@partial(jit, static_argnames="gamma")
def _baseline(imagined: Imagined, gamma: float) -> tuple[Float[Array, "H N"], Scalar]:
    """What a linear function says of the returns it was fitted to, and its loss."""
    returns = discounted_sum(imagined.rewards, imagined.continues, gamma)
    baseline = fit_linear(imagined.observations, returns, imagined.weight)
    values = predict_linear(baseline, imagined.observations)
    flat = (values.ravel(), returns.ravel(), imagined.weight.ravel())
    return values, objectives.value_loss(*flat)


def adapt(policy: GaussianPolicy, batch: Batch, rate: float | Scalar) -> GaussianPolicy:
    """The inner step: theta_i = theta + alpha grad E[log pi_theta(a|s) A]."""

    def gain(candidate: GaussianPolicy) -> Scalar:
        chosen = candidate.log_prob(batch.observations, batch.actions)
        return objectives.weighted_mean(chosen * batch.advantages, batch.weight)

    slope = jax.grad(gain)(policy)
    adapted: GaussianPolicy = jax.tree.map(lambda w, g: w + rate * g, policy, slope)
    return adapted


@jit
def adapt_to_all(
    policy: GaussianPolicy, batches: Batch, rate: Scalar
) -> GaussianPolicy:
    """The policy adapted to every task, as a stack."""
    stack: GaussianPolicy = jax.vmap(adapt, (None, 0, None))(policy, batches, rate)
    return stack


def meta_objective(
    policy: GaussianPolicy, before: Batch, after: Batch, rate: float | Scalar
) -> Scalar:
    """Mean over tasks of E[r A] of the adapted policies, given theta.

    Args:
        policy: theta.
        before: samples of theta in every task, stacked, which it adapts with.
        after: samples of the adapted policies in every task.
        rate: alpha.
    """

    def gain(first: Batch, second: Batch) -> Scalar:
        ratio = likelihood_ratio(adapt(policy, first, rate), second)
        return objectives.surrogate(ratio, second.advantages, second.weight)

    return jnp.mean(jax.vmap(gain)(before, after))


def meta_divergence(
    policy: GaussianPolicy,
    adapted: GaussianPolicy,
    before: Batch,
    after: Batch,
    rate: float | Scalar,
) -> Scalar:
    """Mean over tasks of KL(old theta_i || theta_i(theta)).

    Args:
        policy: theta.
        adapted: the old theta_i, stacked.
        before: samples that theta adapts with.
        after: samples of the adapted policies.
        rate: alpha.
    """

    def divergence_of(old: GaussianPolicy, first: Batch, second: Batch) -> Scalar:
        new = adapt(policy, first, rate)
        return objectives.weighted_mean(
            kl(old, new, second.observations), second.weight
        )

    return jnp.mean(jax.vmap(divergence_of)(adapted, before, after))


@partial(jit, static_argnames="config")
def meta_step(
    policy: GaussianPolicy,
    adapted: GaussianPolicy,
    before: Batch,
    after: Batch,
    rate: Scalar,
    config: TrustRegionConfig,
) -> tuple[GaussianPolicy, StepReport]:
    """The outer step: TRPO on the meta-objective."""
    return trust_region_step(
        policy,
        lambda theta: meta_objective(theta, before, after, rate),
        lambda theta: meta_divergence(theta, adapted, before, after, rate),
        config,
    )


def as_one(batches: Batch) -> Batch:
    """The samples of all tasks as one batch."""
    joined: Batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batches)
    return joined


def side_by_side(stack: Imagined) -> Imagined:
    """The trajectories of all tasks as one batch."""

    def join(x: Array) -> Array:
        if x.ndim == 1:
            return jnp.sum(x)
        joined = jnp.moveaxis(x, 0, 1)
        return joined.reshape(joined.shape[0], -1, *joined.shape[3:])

    joined: Imagined = jax.tree.map(join, stack)
    return joined
