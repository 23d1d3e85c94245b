"""The uncertainty of chosen Q-values in a learned world.

Algorithm 1 along imagined trajectories that begin with a given state and action; the
variances of several trajectories are averaged before the root is taken, which estimates
sqrt(U) without the bias of averaging roots.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from pombu.imagination import imagine
from pombu.networks import MLP
from pombu.policies import GaussianPolicy
from pombu.returns import scaled_reward
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
    member_key, rest_key = jax.random.split(key)
    gamma = rules.returns.gamma
    following, raw = predict_step(world, rules, states, actions)
    rewards = scaled_reward(raw, world.return_std, rules.returns)
    ended = ends(world, rules, states, actions, following)
    values = predict(value, world.observation.normalise(following))
    first = local_uncertainty(rewards, jnp.where(ended, 0.0, values), gamma)
    if rules.horizon == 1:
        return first, jnp.isfinite(first)
    chosen = jax.random.randint(member_key, (len(states),), 0, world.members)
    rows = jnp.arange(len(states))
    next_states = following[chosen, rows]
    everyone = jnp.full(world.members, 1.0 / world.members)
    rest = imagine(
        policy,
        value,
        world,
        replace(rules, horizon=rules.horizon - 1),
        next_states,
        everyone,
        rest_key,
    )
    later = propagate(rest.local, gamma, rest.continues)[0]
    over = ended[chosen, rows]
    whole = first + gamma**2 * jnp.where(over, 0.0, later)
    return whole, jnp.isfinite(first) & (over | (rest.weight[0] > 0))
