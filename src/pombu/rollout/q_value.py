"""Chosen Q-values in learned dynamics, and their uncertainty.

Algorithm 1 along imagined trajectories that begin with a given state and action; the
variances of several trajectories are averaged before the root is taken, which estimates
sqrt(U) without the bias of averaging roots.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from pombu.dynamics.model import Dynamics
from pombu.nn import StochasticPolicy, Value, episode_horizon, predict_value
from pombu.parallel import jit
from pombu.rollout.imagine import ImaginationRules, imagine
from pombu.rollout.returns import discounted_sum, scaled_reward
from pombu.uncertainty.algorithm1 import (
    local_uncertainty,
    propagate,
    propagate_correlated,
    standard_deviation,
)


def q_uncertainty(
    policy: StochasticPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    observations: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    rollouts: int,
    key: PRNGKeyArray,
) -> Float[Array, " n"]:
    """sqrt(U) of every Q(s, a), in units of the task's reward.

    Trajectories that ran away tell nothing and are left out; where all of them did, the
    uncertainty is infinite.

    Args:
        policy: followed after the first action.
        value: V_phi; one that knows the step takes the states for episodes' first.
        dynamics: the learned dynamics.
        rules: units and horizon.
        observations: states.
        actions: in the environment's own units.
        rollouts: trajectories per pair.
        key: their random draws.
    """
    states = jnp.repeat(observations, rollouts, 0)
    boxed = jnp.repeat(actions, rollouts, 0)
    found = _appraise(policy, value, dynamics, rules, states, boxed, key)
    shape = (len(observations), rollouts)
    kept = jnp.where(found.sound, found.variance, 0.0).reshape(shape).sum(1)
    number = found.sound.reshape(shape).sum(1)
    mean = jnp.where(number > 0, kept / jnp.maximum(number, 1), jnp.inf)
    scale = dynamics.return_std if rules.returns.scale_rewards else 1.0
    return standard_deviation(mean) * scale


def q_returns(
    policy: StochasticPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    observations: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """Discounted returns of an imagined trajectory per pair, and which kept course.

    They are in units of the task's reward; the arguments are those of `q_uncertainty`.
    """
    found = _appraise(policy, value, dynamics, rules, observations, actions, key)
    scale = dynamics.return_std if rules.returns.scale_rewards else 1.0
    return found.returns * scale, found.sound


class QEstimate(NamedTuple):
    """Q-values as imagined trajectories tell them, in units of the task's reward."""

    q: Float[Array, " n"]
    """Mean imagined return; NaN where every trajectory ran away."""
    sigma: Float[Array, " n"]
    """Standard deviation of Q over worlds, not recalibrated; infinite there."""
    noise: Float[Array, " n"]
    """Standard deviation of a single imagined return."""


def q_estimate(
    policy: StochasticPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    observations: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    rollouts: int,
    key: PRNGKeyArray,
    rho: Float[Array, ""],
) -> QEstimate:
    """Q-values with their uncertainty, for errors that depend from step to step.

    The arguments are those of `q_uncertainty`; `rho` is the correlation of the errors
    of neighbouring steps.
    """
    states = jnp.repeat(observations, rollouts, 0)
    boxed = jnp.repeat(actions, rollouts, 0)
    found = _appraise(policy, value, dynamics, rules, states, boxed, key, rho)
    shape = (len(observations), rollouts)
    sound = found.sound.reshape(shape)
    number = sound.sum(1)

    def mean(x: Float[Array, " m"]) -> Float[Array, " n"]:
        kept = jnp.where(sound, x.reshape(shape), 0.0).sum(1)
        return jnp.where(number > 0, kept / jnp.maximum(number, 1), jnp.nan)

    q = mean(found.returns)
    variance = jnp.where(number > 0, mean(found.variance), jnp.inf)
    spread = mean((found.returns - jnp.repeat(q, rollouts)) ** 2)
    spread = spread * number / jnp.maximum(number - 1, 1)
    scale = dynamics.return_std if rules.returns.scale_rewards else 1.0
    return QEstimate(
        q * scale,
        standard_deviation(variance) * scale,
        standard_deviation(spread) * scale,
    )


class _Appraised(NamedTuple):
    """One trajectory per row that begins with the given action, in scaled units."""

    returns: Float[Array, " n"]
    variance: Float[Array, " n"]
    """D of the first step."""
    sound: Bool[Array, " n"]
    """Whether the trajectory kept its course."""


@jit
def _appraise(
    policy: StochasticPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    key: PRNGKeyArray,
    rho: Float[Array, ""] | None = None,
) -> _Appraised:
    member_key, rest_key = jax.random.split(key)
    gamma, members = rules.returns.gamma, dynamics.members.count
    following, raw, ended = dynamics.step(states, actions)
    rewards = scaled_reward(raw, dynamics.return_std, rules.returns)
    # To a V that knows the step a given state is an episode's first.
    whole = episode_horizon(value)
    left = None if whole is None else jnp.full(len(states), whole - 1)
    values = predict_value(value, dynamics.observation.normalise(following), left)
    returns = rewards.mean(0)
    variance = local_uncertainty(rewards, jnp.where(ended, 0.0, values), gamma)
    bounded = jnp.all(dynamics.plausible(following, rules.runaway), 0)
    sound = bounded & jnp.isfinite(returns) & jnp.isfinite(variance)
    if rules.horizon == 1:
        return _Appraised(returns, variance, sound)
    chosen = jax.random.randint(member_key, (len(states),), 0, members)
    rows = jnp.arange(len(states))
    rest = imagine(
        policy,
        value,
        dynamics,
        replace(rules, horizon=rules.horizon - 1),
        following[chosen, rows],
        jnp.full(members, 1.0 / members),
        rest_key,
        left,
    )
    over = ended[chosen, rows]
    later = discounted_sum(rest.rewards, rest.continues, gamma)[0]
    if rho is None:
        spread = propagate(rest.local, gamma, rest.continues)[0]
        variance = variance + gamma**2 * jnp.where(over, 0.0, spread)
    else:
        local = jnp.concatenate([variance[None], rest.local])
        continues = jnp.concatenate([1.0 - over[None], rest.continues])
        variance = propagate_correlated(local, gamma, rho, continues)[0]
    return _Appraised(
        returns + gamma * jnp.where(over, 0.0, later),
        variance,
        sound & (over | (rest.weight[0] > 0)),
    )
