"""DHMBPO's losses, each for whole training rollouts.

A training rollout has H steps: rewards r_0 ... r_{H-1}, log-probabilities of a_0 ...
a_H, and m_0 ... m_H, which are 1 where the rollout was alive before the step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pombu.algorithms.dhmbpo.networks import Critics
from pombu.uncertainty.algorithm1 import propagate, standard_deviation

_LEAST_RANGE = 1e-3
"""Rewards that are all alike still give Q a range."""


class TrainingRollout(NamedTuple):
    """Differentiable steps in the learned dynamics, time first."""

    states: Float[Array, "T b o"]
    """H + 1 states in the task's units."""
    actions: Float[Array, "T b a"]
    """H + 1 actions in policy space."""
    log_probs: Float[Array, "T b"]
    rewards: Float[Array, "H b"]
    alive: Float[Array, "T b"]
    """m: 1 before the first end, then 0; no gradient."""


def expanded_target(
    rollout: TrainingRollout,
    tail: Float[Array, " b"],
    temperature: Float[Array, ""],
    gamma: float,
) -> Float[Array, " b"]:
    """y = sum gamma^t m_t r_t - alpha sum_{t>0} gamma^t m_t log pi_t + gamma^H m_H Q-.

    Args:
        rollout: from the states and actions whose Q is learned.
        tail: Q- of the last state and action.
        temperature: alpha.
        gamma: the discount factor.
    """
    discounts = gamma ** jnp.arange(len(rollout.alive), dtype=jnp.float32)
    weights = discounts[:, None] * rollout.alive
    entropy = -temperature * jnp.sum((weights * rollout.log_probs)[1:], 0)
    return jnp.sum(weights[:-1] * rollout.rewards, 0) + entropy + weights[-1] * tail


def soft_value(
    rollout: TrainingRollout,
    tail: Float[Array, " b"],
    temperature: Float[Array, ""],
    gamma: float,
) -> Float[Array, " b"]:
    """What the actor maximises: the expanded value with the entropy of every step."""
    target = expanded_target(rollout, tail, temperature, gamma)
    return target - temperature * rollout.log_probs[0]


def critic_loss(
    critics: Critics,
    observations: Float[Array, "b o"],
    actions: Float[Array, "b a"],
    targets: Float[Array, " b"],
    bounds: Float[Array, "2"],
) -> Float[Array, ""]:
    """Mean squared error of each critic, summed over critics, in units of the range."""
    error = critics.values(observations, actions, bounds) - targets
    unit = (bounds[1] - bounds[0]) / 2
    return jnp.sum(jnp.mean((error / unit) ** 2, -1))


def temperature_loss(
    log_temperature: Float[Array, ""],
    entropy: Float[Array, ""],
    target_entropy: float,
) -> Float[Array, ""]:
    """alpha (entropy - target): rises while the policy is less random than aimed at."""
    gap = jax.lax.stop_gradient(entropy - target_entropy)
    return jnp.exp(log_temperature) * gap


def value_bounds(
    rollout: TrainingRollout,
    temperature: Float[Array, ""],
    gamma: float,
    quantile: float,
) -> Float[Array, "2"]:
    """Q's range if every step earned a low, or a high, quantile of soft rewards."""
    soft = rollout.rewards - temperature * rollout.log_probs[:-1]
    low, high = jnp.quantile(soft, jnp.array([quantile, 1.0 - quantile]))
    high = jnp.maximum(high, low + _LEAST_RANGE)
    return jnp.stack([low, high]) / (1.0 - gamma)


def sqrt_u(
    local: Float[Array, "H n"],
    alive: Float[Array, "T n"],
    critic_values: Float[Array, "c n"],
    gamma: float,
) -> Float[Array, " n"]:
    """sqrt(U) of the first step: Algorithm 1 with the critics' variance at the end.

    Args:
        local: variance over members of r + gamma V(s') at every step.
        alive: m_0 ... m_H.
        critic_values: every critic's Q of the last state and action.
        gamma: the discount factor.
    """
    beyond = jnp.var(critic_values, 0)
    return standard_deviation(propagate(local, gamma, alive[1:], beyond)[0])
