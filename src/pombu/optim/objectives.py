"""The paper's objectives as functions of a minibatch.

Every function takes per-sample arrays and `weight`, which is 0 for samples of masked
trajectories and 1 for all others; means are weighted. The paper sums over a
trajectory's steps, here and in the published code the mean over samples is taken, which
differs by the factor H.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

Samples = Float[Array, " n"]

_RATIO_TOLERANCE = 1e-5
"""Ratios this close to 1 are 1: float32 cannot tell them from those at theta_old."""


def weighted_mean(values: Samples, weight: Samples) -> Float[Array, ""]:
    """Mean over the samples that count; 0 when none does."""
    return jnp.sum(values * weight) / jnp.maximum(jnp.sum(weight), 1.0)


def value_loss(predicted: Samples, returns: Samples, weight: Samples) -> Array:
    """L_v(phi), equation (2) and its discounted form in Appendix B."""
    return weighted_mean((predicted - returns) ** 2, weight)


def surrogate(ratio: Samples, advantage: Samples, weight: Samples) -> Array:
    """L_exp(theta), equation (4): E[r_theta A_old].

    Written with r_theta - 1, which changes only the constant E[A_old] and is 0 at
    theta_old, the value of J(pi_theta) - J(pi_old) there (Theorem 4).
    """
    return weighted_mean((ratio - 1.0) * advantage, weight)


def clipped_surrogate(
    ratio: Samples, advantage: Samples, weight: Samples, clip: float
) -> Array:
    """L_clip(theta), equation (6): the ratio stops paying beyond 1 +- epsilon."""
    limited = jnp.where(
        advantage > 0,
        jnp.minimum(1.0 + clip, ratio),
        jnp.maximum(1.0 - clip, ratio),
    )
    return weighted_mean((limited - 1.0) * advantage, weight)


def uncertainty_penalty(ratio: Samples, uncertainty: Samples, weight: Samples) -> Array:
    """L_std(theta), equation (5): E[|r_theta - 1| sqrt(D)], 0 at theta_old.

    The gradient at theta_old is 0 too, by taking the middle one of |.|'s subgradients;
    without the tolerance rounding errors would choose one of the others.
    """
    change = jnp.abs(ratio - 1.0)
    change = jnp.where(change > _RATIO_TOLERANCE, change, 0.0)
    return weighted_mean(change * uncertainty, weight)


def conservative_surrogate(
    ratio: Samples,
    advantage: Samples,
    uncertainty: Samples,
    weight: Samples,
    clip: float,
    alpha: float | Float[Array, ""],
) -> Array:
    """L_pi(theta) = L_clip(theta) - alpha L_std(theta), Section 4.2."""
    gain = clipped_surrogate(ratio, advantage, weight, clip)
    return gain - alpha * uncertainty_penalty(ratio, uncertainty, weight)


def exploration_advantage(
    advantage: Samples, uncertainty: Samples, beta: float
) -> Samples:
    """A_old + beta sqrt(D), Section 5: what an exploration policy takes for A."""
    return advantage + beta * uncertainty


def centred(
    uncertainty: Float[Array, "H N"], weight: Float[Array, "H N"]
) -> Float[Array, "H N"]:
    """sqrt(D) less its mean over the trajectories that still run at each step.

    What all actions share moves a clipped objective nowhere useful: with a bonus of
    eight standard deviations on every advantage, nearly all of them are positive.
    """
    count = jnp.maximum(jnp.sum(weight, 1, keepdims=True), 1.0)
    return uncertainty - jnp.sum(uncertainty * weight, 1, keepdims=True) / count
