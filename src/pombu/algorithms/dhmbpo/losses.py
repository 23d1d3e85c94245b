"""DHMBPO's losses, each for whole training rollouts.

A training rollout has H steps: rewards r_0 ... r_{H-1}, log-probabilities of a_0 ...
a_H, and m_0 ... m_H, which are 1 where the rollout was alive before the step.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from pombu.algorithms.soft_actor_critic import value_range


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


def value_bounds(
    rollout: TrainingRollout,
    temperature: Float[Array, ""],
    gamma: float,
    quantile: float,
) -> Float[Array, "2"]:
    """Q's range if every step earned a low, or a high, quantile of soft rewards."""
    soft = rollout.rewards - temperature * rollout.log_probs[:-1]
    return value_range(soft, gamma, quantile)
