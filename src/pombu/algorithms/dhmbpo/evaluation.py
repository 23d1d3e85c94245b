"""What the critics say of real steps: how far off Q is, and which action to explore."""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.losses import sqrt_u
from pombu.algorithms.dhmbpo.networks import Networks
from pombu.algorithms.dhmbpo.training import Imagination
from pombu.data import Normaliser
from pombu.envs import ActionBox, Episode
from pombu.parallel import jit
from pombu.uncertainty.algorithm1 import local_uncertainty


def q_bias(
    networks: Networks,
    normaliser: Normaliser,
    box: ActionBox,
    episodes: Sequence[Episode],
    horizon: int,
    gamma: float,
    key: PRNGKeyArray,
) -> float:
    """Mean over real episodes of Q(s_0, a_0) minus the soft return that followed.

    The soft return counts entropies as Q does, and where a time limit cut an episode
    off, Q goes on from its last state: what is left is the critics' error.
    """
    number, first = len(episodes), episodes[0]
    states = np.zeros((number, horizon + 1, first.observations.shape[1]), np.float32)
    rewards = np.zeros((number, horizon), np.float32)
    for row, episode in enumerate(episodes):
        states[row, : len(episode) + 1] = episode.observations
        rewards[row, : len(episode)] = episode.rewards
    actions = np.stack([episode.actions[0] for episode in episodes])
    actions = ((actions - box.middle) / box.unit).astype(np.float32)
    lengths = np.array([len(episode) for episode in episodes])
    terminated = np.array([episode.terminated for episode in episodes])
    gap = _gaps(
        networks,
        normaliser.normalise(jnp.asarray(states)),
        actions,
        rewards,
        lengths,
        terminated,
        gamma,
        key,
    )
    return float(jnp.mean(gap))


@partial(jit, static_argnames="gamma")
def _gaps(
    networks: Networks,
    normal: Float[Array, "e T o"],
    actions: Float[Array, "e a"],
    rewards: Float[Array, "e h"],
    lengths: Array,
    terminated: Array,
    gamma: float,
    key: PRNGKeyArray,
) -> Float[Array, " e"]:
    """Q of each episode's first step minus its soft return."""
    temperature = jnp.exp(networks.log_temperature)
    later, log_probs = networks.policy.sample(normal, key)
    steps = jnp.arange(rewards.shape[1])
    discounts = gamma**steps
    entropy = -temperature * log_probs[:, :-1] * (steps > 0)
    counts = steps < lengths[:, None]
    soft = jnp.sum(jnp.where(counts, discounts * (rewards + entropy), 0.0), 1)
    last = jnp.take_along_axis(normal, lengths[:, None, None], 1)[:, 0]
    last_action = jnp.take_along_axis(later, lengths[:, None, None], 1)[:, 0]
    last_log_prob = jnp.take_along_axis(log_probs, lengths[:, None], 1)[:, 0]
    values = networks.critics.values(last, last_action, networks.bounds)
    beyond = jnp.mean(values, 0) - temperature * last_log_prob
    soft = soft + jnp.where(terminated, 0.0, gamma**lengths * beyond)
    claimed = networks.critics.values(normal[:, 0], actions, networks.bounds)
    return jnp.mean(claimed, 0) - soft


@partial(jit, static_argnames="config")
def explore(
    networks: Networks,
    world: Imagination,
    observations: Float[Array, "n o"],
    key: PRNGKeyArray,
    config: DHMBPOConfig,
) -> Float[Array, "n a"]:
    """Of several actions that the policy draws, the one of highest Q + bonus sqrt(U).

    U of an action is Algorithm 1's over one step: the members' disagreement about it,
    and the critics' variance where it leads on average.
    """
    count, (number, dim) = config.candidates, observations.shape
    states = jnp.broadcast_to(observations, (count, number, dim)).reshape(-1, dim)
    normal = world.normal(states)
    actions, _ = networks.policy.sample(normal, key)
    values = networks.critics.values(normal, actions, networks.bounds)
    uncertainty = one_step_uncertainty(networks, world, states, actions, config.gamma)
    score = jnp.mean(values, 0) + config.bonus * uncertainty
    best = jnp.argmax(score.reshape(count, number), 0)
    return actions.reshape(count, number, -1)[best, jnp.arange(number)]


def one_step_uncertainty(
    networks: Networks,
    world: Imagination,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    gamma: float,
) -> Float[Array, " n"]:
    """sqrt(U) of actions in policy space, by one step of every member."""

    def critic_values(normal: Array) -> Array:
        greedy = networks.policy.mode(normal)
        return networks.critics.values(normal, greedy, networks.bounds)

    predicted = world.dynamics.step(states, world.box.to_box(actions))
    values = jnp.mean(critic_values(world.normal(predicted.states)), 0)
    values = jnp.where(predicted.ends, 0.0, values)
    local = local_uncertainty(predicted.rewards, values, gamma)
    beyond = critic_values(world.normal(jnp.mean(predicted.states, 0)))
    goes_on = 1.0 - jnp.mean(predicted.ends, 0)
    alive = jnp.stack([jnp.ones_like(goes_on), goes_on])
    return sqrt_u(local[None], alive, beyond, gamma)
