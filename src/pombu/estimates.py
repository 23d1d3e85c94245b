"""Chosen Q-values in a learned world, and their uncertainty.

Algorithm 1 along imagined trajectories that begin with a given state and action; the
variances of several trajectories are averaged before the root is taken, which estimates
sqrt(U) without the bias of averaging roots.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from pombu.imagination import Imagined, imagine
from pombu.networks import MLP
from pombu.policies import GaussianPolicy
from pombu.returns import discounted_sum, scaled_reward
from pombu.uncertainty.algorithm1 import (
    local_uncertainty,
    propagate,
    standard_deviation,
)
from pombu.values import predict
from pombu.workers import jit
from pombu.worlds import Rules, World, ends, predict_step


def q_uncertainty(
    policy: GaussianPolicy,
    value: MLP,
    world: World,
    rules: Rules,
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
        value: V_phi.
        world: the learned world.
        rules: its contract, units and horizon.
        observations: states.
        actions: in the environment's own units.
        rollouts: trajectories per pair.
        key: their random draws.
    """
    states = jnp.repeat(observations, rollouts, 0)
    boxed = jnp.repeat(actions, rollouts, 0)
    variance, sound = _variance(policy, value, world, rules, states, boxed, key)
    shape = (len(observations), rollouts)
    kept = jnp.where(sound, variance, 0.0).reshape(shape).sum(1)
    number = sound.reshape(shape).sum(1)
    mean = jnp.where(number > 0, kept / jnp.maximum(number, 1), jnp.inf)
    scale = world.return_std if rules.returns.scale_rewards else 1.0
    return standard_deviation(mean) * scale


def q_returns(
    policy: GaussianPolicy,
    value: MLP,
    world: World,
    rules: Rules,
    observations: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """Discounted returns of an imagined trajectory per pair, and which kept course.

    They are in units of the task's reward; the arguments are those of `q_uncertainty`.
    """
    returns, sound = _returns(policy, value, world, rules, observations, actions, key)
    return returns * (world.return_std if rules.returns.scale_rewards else 1.0), sound


class _Begun(NamedTuple):
    """A first step with the given action, and what was imagined after it."""

    reward: Float[Array, " n"]
    local: Float[Array, " n"]
    """Algorithm 1's local term of the first step."""
    over: Bool[Array, " n"]
    """Whether the first step was the last one."""
    rest: Imagined | None
    """None where one step is all that the rules allow."""

    @property
    def sound(self) -> Bool[Array, " n"]:
        """Whether the trajectory kept its course."""
        first = jnp.isfinite(self.local) & jnp.isfinite(self.reward)
        if self.rest is None:
            return first
        return first & (self.over | (self.rest.weight[0] > 0))

    def then(self, later: Float[Array, " n"]) -> Float[Array, " n"]:
        """What comes later, where anything does."""
        return jnp.where(self.over, 0.0, later)


@jit
def _variance(
    policy: GaussianPolicy,
    value: MLP,
    world: World,
    rules: Rules,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """D of the first step of one trajectory per row, and whether it kept its course."""
    begun = _begin(policy, value, world, rules, states, actions, key)
    whole, gamma = begun.local, rules.returns.gamma
    if begun.rest is not None:
        later = propagate(begun.rest.local, gamma, begun.rest.continues)[0]
        whole = whole + gamma**2 * begun.then(later)
    return whole, begun.sound


@jit
def _returns(
    policy: GaussianPolicy,
    value: MLP,
    world: World,
    rules: Rules,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """The scaled return of one trajectory per row, and whether it kept its course."""
    begun = _begin(policy, value, world, rules, states, actions, key)
    whole, gamma = begun.reward, rules.returns.gamma
    if begun.rest is not None:
        later = discounted_sum(begun.rest.rewards, begun.rest.continues, gamma)[0]
        whole = whole + gamma * begun.then(later)
    return whole, begun.sound


def _begin(
    policy: GaussianPolicy,
    value: MLP,
    world: World,
    rules: Rules,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    key: PRNGKeyArray,
) -> _Begun:
    member_key, rest_key = jax.random.split(key)
    following, raw = predict_step(world, rules, states, actions)
    rewards = scaled_reward(raw, world.return_std, rules.returns)
    ended = ends(world, rules, states, actions, following)
    values = predict(value, world.observation.normalise(following))
    local = local_uncertainty(
        rewards, jnp.where(ended, 0.0, values), rules.returns.gamma
    )
    chosen = jax.random.randint(member_key, (len(states),), 0, world.members)
    rows = jnp.arange(len(states))
    rest = None
    if rules.horizon > 1:
        rest = imagine(
            policy,
            value,
            world,
            replace(rules, horizon=rules.horizon - 1),
            following[chosen, rows],
            jnp.full(world.members, 1.0 / world.members),
            rest_key,
        )
    return _Begun(rewards.mean(0), local, ended[chosen, rows], rest)
