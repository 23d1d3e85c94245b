"""What soft actor-critics in learned dynamics share: networks, losses, judgement.

A tanh-Gaussian actor, an ensemble of critics with slow copies, and a temperature that
keeps the actor's entropy near an aim. Equal blocks of a batch are moved by different
members of the learned dynamics.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.algorithms.config import ActorCriticConfig
from pombu.data import Normaliser
from pombu.dynamics.ensemble import Form, Layers, init_ensemble, materialise, predict
from pombu.dynamics.model import Dynamics
from pombu.envs import ActionBox, Episode
from pombu.nn import (
    SquashedPolicy,
    VarianceValue,
    init_variance,
    predict_variance,
)
from pombu.parallel import jit
from pombu.uncertainty.algorithm1 import (
    local_uncertainty,
    propagate,
    standard_deviation,
)

Net = TypeVar("Net", bound=eqx.Module)

_LEAST_RANGE = 1e-3
"""Rewards that are all alike still give Q a range."""

NORMALISED = Form("silu", "layer")
"""Critics whose hidden layers are normalised."""
PLAIN = Form("silu")
"""Critics of plain layers."""


class Critics(eqx.Module):
    """An ensemble of Q-functions whose outputs are in units of a range.

    Q = centre + half * network, where the range of Q follows that of rewards. Inputs
    are normalised observations and actions in policy space.
    """

    layers: Layers

    @property
    def members(self) -> int:
        """How many there are."""
        return self.layers.biases[0].shape[0]

    def values(
        self,
        observation: Float[Array, "*n o"],
        action: Float[Array, "*n a"],
        bounds: Float[Array, "2"],
    ) -> Float[Array, "c *n"]:
        """Q of every critic."""
        x = jnp.concatenate([observation, action], -1)
        rows = x.reshape(-1, x.shape[-1])
        spread = jnp.broadcast_to(rows, (self.members, *rows.shape))
        output = predict(self.layers, spread)[..., 0]
        centre, half = (bounds[1] + bounds[0]) / 2, (bounds[1] - bounds[0]) / 2
        return (centre + half * output).reshape(self.members, *x.shape[:-1])

    def some(self, which: Int[Array, " s"]) -> "Critics":
        """Only these critics."""
        chosen: Critics = jax.tree.map(lambda leaf: leaf[which], self)
        return chosen


class Tail(eqx.Module):
    """U_psi, which continues U past the end of a rollout, and its slow copy."""

    value: VarianceValue
    slow: VarianceValue


class Networks(eqx.Module):
    """All that an update changes."""

    policy: SquashedPolicy
    """The actor."""
    average: SquashedPolicy
    """Its weights, averaged over the latest updates: what acts."""
    critics: Critics
    targets: Critics
    """Slow copies of the critics."""
    log_temperature: Float[Array, ""]
    bounds: Float[Array, "2"]
    """Range of Q."""
    tail: Tail | None = None
    """None: the critics' variance stands for what lies past a rollout."""


def init_critics(
    key: PRNGKeyArray,
    observations: int,
    actions: int,
    config: ActorCriticConfig,
    form: Form = NORMALISED,
) -> Critics:
    """Untrained critics, which all give the middle of the range."""
    sizes = (observations + actions, 1, config.hidden)
    layers = materialise(init_ensemble(key, config.critics, *sizes, form))
    last = jnp.zeros_like(layers.weights[-1])
    return Critics(Layers((*layers.weights[:-1], last), layers.biases, form))


def init_tail(key: PRNGKeyArray, observations: int, config: ActorCriticConfig) -> Tail:
    """An untrained U_psi, which is 0 everywhere."""
    value = init_variance(key, observations, config.hidden)
    return Tail(value, value)


def follow(slow: Net, quick: Net, tau: float) -> Net:
    """The slow one a share of the way closer to the quick one (Polyak averaging)."""
    if tau == 1.0:
        return quick
    closer: Net = jax.tree.map(lambda s, q: s + tau * (q - s), slow, quick)
    return closer


class Optimisers(eqx.Module):
    """Adam's memory of each network."""

    policy: Any
    critics: Any
    temperature: Any
    tail: Any = None


def fresh_optimisers(networks: Networks, learning_rate: float) -> Optimisers:
    """Adam before its first step."""
    transform = optax.adam(learning_rate)
    return Optimisers(
        transform.init(networks.policy),
        transform.init(networks.critics),
        transform.init(networks.log_temperature),
        None if networks.tail is None else transform.init(networks.tail.value.network),
    )


def critic_loss(
    critics: Critics,
    observations: Float[Array, "b o"],
    actions: Float[Array, "b a"],
    targets: Float[Array, " b"],
    bounds: Float[Array, "2"],
    weight: Float[Array, " b"] | None = None,
) -> Float[Array, ""]:
    """Mean squared error of each critic, summed over critics, in units of the range.

    Rows count by their weight; None counts all alike.
    """
    error = critics.values(observations, actions, bounds) - targets
    unit = (bounds[1] - bounds[0]) / 2
    square = (error / unit) ** 2
    if weight is None:
        return jnp.sum(jnp.mean(square, -1))
    return jnp.sum(square * weight) / jnp.maximum(jnp.sum(weight), 1.0)


def temperature_loss(
    log_temperature: Float[Array, ""],
    entropy: Float[Array, ""],
    target_entropy: float,
) -> Float[Array, ""]:
    """alpha (entropy - target): rises while the policy is less random than aimed at."""
    gap = jax.lax.stop_gradient(entropy - target_entropy)
    return jnp.exp(log_temperature) * gap


def value_range(
    soft_rewards: Float[Array, "..."], gamma: float, quantile: float
) -> Float[Array, "2"]:
    """Q's range if every step earned a low, or a high, quantile of soft rewards."""
    low, high = jnp.quantile(soft_rewards, jnp.array([quantile, 1.0 - quantile]))
    high = jnp.maximum(high, low + _LEAST_RANGE)
    return jnp.stack([low, high]) / (1.0 - gamma)


def sqrt_u(
    local: Float[Array, "H n"],
    alive: Float[Array, "T n"],
    beyond: Float[Array, " n"],
    gamma: float,
) -> Float[Array, " n"]:
    """sqrt(U) of the first step by Algorithm 1.

    Args:
        local: variance over members of r + gamma V(s') at every step.
        alive: m_0 ... m_H.
        beyond: U of what lies past the last step.
        gamma: the discount factor.
    """
    return standard_deviation(propagate(local, gamma, alive[1:], beyond)[0])


class Imagination(eqx.Module):
    """Where rollouts happen: the learned dynamics with what it needs of the task."""

    dynamics: Dynamics
    box: ActionBox = eqx.field(static=True)

    def normal(self, states: Float[Array, "*b o"]) -> Float[Array, "*b o"]:
        """States as networks see them."""
        return self.dynamics.observation.normalise(states)


def move_blocks(
    imagination: Imagination,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    members: int,
    key: PRNGKeyArray,
    order_key: PRNGKeyArray,
    draw: str,
) -> tuple[Float[Array, "n o"], Float[Array, " n"], Bool[Array, " n"]]:
    """One step: equal blocks of the rows, each moved by another member.

    Rows are drawn at random, so a fixed assignment is a random one; with `step` blocks
    are dealt out anew at every step.
    """
    boxed = imagination.box.to_box(actions)

    def blocks(x: Array) -> Array:
        return x.reshape(members, -1, x.shape[-1])

    states, boxed = blocks(states), blocks(boxed)
    if draw == "step":
        order = jax.random.permutation(order_key, members)
        states, boxed = states[order], boxed[order]
    frame = imagination.dynamics.delta.mean.shape[-1]
    noise = jax.random.normal(key, (*states.shape[:-1], frame))
    if imagination.dynamics.reward is not None:
        # A learned reward is its mean.
        noise = jnp.concatenate([noise, jnp.zeros((*states.shape[:-1], 1))], -1)
    following, rewards, ends = imagination.dynamics.move(states, boxed, noise)
    if draw == "step":
        back = jnp.argsort(order)
        following, rewards, ends = following[back], rewards[back], ends[back]
    return following.reshape(-1, following.shape[-1]), rewards.ravel(), ends.ravel()


def one_step_uncertainty(
    networks: Networks,
    imagination: Imagination,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    gamma: float,
) -> Float[Array, " n"]:
    """sqrt(U) of actions in policy space, by one step of every member."""

    def critic_values(normal: Array) -> Array:
        greedy = networks.policy.mode(normal)
        return networks.critics.values(normal, greedy, networks.bounds)

    predicted = imagination.dynamics.step(states, imagination.box.to_box(actions))
    values = jnp.mean(critic_values(imagination.normal(predicted.states)), 0)
    values = jnp.where(predicted.ends, 0.0, values)
    local = local_uncertainty(predicted.rewards, values, gamma)
    after = imagination.normal(jnp.mean(predicted.states, 0))
    if networks.tail is None:
        beyond = jnp.var(critic_values(after), 0)
    else:
        beyond = predict_variance(networks.tail.value, after)
    goes_on = 1.0 - jnp.mean(predicted.ends, 0)
    alive = jnp.stack([jnp.ones_like(goes_on), goes_on])
    return sqrt_u(local[None], alive, beyond, gamma)


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
