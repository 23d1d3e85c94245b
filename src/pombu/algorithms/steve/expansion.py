"""Stochastic ensemble value expansion: what STEVE's critics learn from.

A target of horizon i follows the actor for i steps in the learned dynamics and expects
the critics' value from there on. Every combination of a transition network, a reward
network and a critic gives a sample of it. Horizons are mixed by the inverse of their
variance, so that the model counts where it is trusted and the critics where they are.
"""

from collections.abc import Sequence
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.algorithms.steve.config import ActorCriticConfig, ExpansionModelConfig
from pombu.data import Transitions, moved
from pombu.dynamics.config import Precision
from pombu.dynamics.ensemble import Layers, predict
from pombu.nn import xavier
from pombu.uncertainty.algorithm1 import local_uncertainty

_TINY = 1e-8
"""Added to variances before they are inverted."""


class ExpansionModel(eqx.Module):
    """Three ensembles: state changes, rewards and log-odds of termination."""

    transition: Layers
    reward: Layers
    ended: Layers


class ActorCritic(eqx.Module):
    """A deterministic actor and an ensemble of critics."""

    actor: Layers
    critics: Layers


def init_model(
    key: PRNGKeyArray,
    observations: int,
    actions: int,
    config: ExpansionModelConfig,
    frame: int | None = None,
) -> ExpansionModel:
    """Untrained ensembles; the latter two see the next state as well.

    The first gives the change of the `frame` first entries of a state, or of all.
    """
    keys = jax.random.split(key, 3)
    pair, triple = observations + actions, 2 * observations + actions
    inner = (triple, *config.reward_hidden, 1)
    members = config.members
    return ExpansionModel(
        init_layers(keys[0], members, (pair, *config.hidden, frame or observations)),
        init_layers(keys[1], members, inner),
        init_layers(keys[2], members, inner),
    )


def init_actor_critic(
    key: PRNGKeyArray, observations: int, actions: int, config: ActorCriticConfig
) -> ActorCritic:
    """Untrained networks."""
    first, second = jax.random.split(key)
    actor = init_layers(first, 1, (observations, *config.actor_hidden, actions))
    sizes = (observations + actions, *config.critic_hidden, 1)
    return ActorCritic(
        jax.tree.map(lambda leaf: leaf[0], actor),
        init_layers(second, config.members, sizes),
    )


def init_layers(key: PRNGKeyArray, members: int, sizes: Sequence[int]) -> Layers:
    """Glorot's weights and zero biases, members stacked on the first axis."""
    weights = []
    for number, shape in enumerate(pairwise(sizes)):
        keys = jax.random.split(jax.random.fold_in(key, number), members)
        weights.append(jnp.stack([xavier(one, shape, 1.0) for one in keys]))
    return Layers(
        tuple(weights), tuple(jnp.zeros((members, size)) for size in sizes[1:])
    )


def members_of(layers: Layers) -> int:
    """How many networks there are in a stack."""
    return layers.biases[0].shape[0]


def everyone(
    layers: Layers, x: Float[Array, "*b i"], precision: Precision
) -> Float[Array, "k *b o"]:
    """What every member says of the same rows."""
    rows = x.reshape(-1, x.shape[-1])
    alone = [
        predict(jax.tree.map(lambda leaf, k=k: leaf[k], layers), rows, precision)
        for k in range(members_of(layers))
    ]
    return jnp.stack(alone).reshape(len(alone), *x.shape[:-1], -1)


def act(actor: Layers, states: Float[Array, "*b o"]) -> Float[Array, "*b a"]:
    """The actor's action in policy space."""
    return jnp.tanh(before_tanh(actor, states))


def before_tanh(actor: Layers, states: Float[Array, "*b o"]) -> Float[Array, "*b a"]:
    """The actor's output, which tanh brings into the box."""
    rows = predict(actor, states.reshape(-1, states.shape[-1]))
    return rows.reshape(*states.shape[:-1], -1)


def values(
    networks: ActorCritic, states: Float[Array, "*b o"], precision: Precision
) -> Float[Array, "L *b"]:
    """Every critic's Q of a state and the actor's action in it."""
    pair = jnp.concatenate([states, act(networks.actor, states)], -1)
    return everyone(networks.critics, pair, precision)[..., 0]


def outcomes(
    model: ExpansionModel,
    states: Float[Array, "*b o"],
    actions: Float[Array, "*b a"],
    following: Float[Array, "*b o"],
    precision: Precision,
) -> tuple[Float[Array, "N *b"], Float[Array, "*b"]]:
    """Every reward network's reward, and the mean probability of not ending."""
    triple = jnp.concatenate([following, states, actions], -1)
    rewards = everyone(model.reward, triple, precision)[..., 0]
    odds = everyone(model.ended, triple, precision)[..., 0]
    return rewards, 1.0 - jnp.mean(jax.nn.sigmoid(odds), 0)


def target_samples(
    model: ExpansionModel,
    networks: ActorCritic,
    real: Transitions,
    gamma: float,
    horizon: int,
    precision: Precision = "float32",
) -> Float[Array, "h M N L b"]:
    """T_i for i = 0 ... H, by transition network, reward network and critic.

    T_i = sum over t <= i of gamma^t r_t + gamma^(i+1) Q(s_(i+1), pi), where r_0 and s_1
    are real and everything after an end counts for nothing.
    """
    members, batch = members_of(model.transition), real.rewards.shape[0]
    states = jnp.broadcast_to(real.following, (members, *real.following.shape))
    shape = (members, members_of(model.reward), batch)
    earned = jnp.broadcast_to(real.rewards, shape)
    survives = jnp.broadcast_to(1.0 - real.ended, (members, batch))
    samples = []
    for i in range(horizon + 1):
        discount = gamma ** (i + 1) * survives
        tail = discount[:, None] * jnp.swapaxes(
            values(networks, states, precision), 0, 1
        )
        samples.append(earned[:, :, None] + tail[:, None])
        if i == horizon:
            break
        actions = act(networks.actor, states)
        pair = jnp.concatenate([states, actions], -1)
        following = moved(states, predict(model.transition, pair, precision))
        rewards, goes_on = outcomes(model, states, actions, following, precision)
        earned = earned + discount[:, None] * jnp.swapaxes(rewards, 0, 1)
        survives, states = survives * goes_on, following
    return jnp.stack(samples)


def bellman_variances(
    model: ExpansionModel,
    networks: ActorCritic,
    real: Transitions,
    gamma: float,
    horizon: int,
    precision: Precision = "float32",
) -> Float[Array, "h b"]:
    """Var[T_i] = sum_{1<=k<=i} gamma^2k d_k + gamma^2(i+1) Var_ens Q(s_(i+1), pi).

    d_k is Algorithm 1's local uncertainty: the variance over members of r + gamma V,
    with V the critics' mean, in the k-th state of the models' mean trajectory. The
    first reward is real, and the tail is the critics' own variance.
    """
    states, survives = real.following, 1.0 - real.ended
    so_far = jnp.zeros_like(real.rewards)
    variances = []
    for i in range(horizon + 1):
        weight = (gamma ** (i + 1) * survives) ** 2
        spread = jnp.var(values(networks, states, precision), 0)
        variances.append(so_far + weight * spread)
        if i == horizon:
            break
        actions = act(networks.actor, states)
        pair = jnp.concatenate([states, actions], -1)
        following = moved(states, everyone(model.transition, pair, precision))
        beside = (following.shape[0], *actions.shape)
        rewards, goes_on = outcomes(
            model,
            jnp.broadcast_to(states, following.shape),
            jnp.broadcast_to(actions, beside),
            following,
            precision,
        )
        ahead = goes_on * jnp.mean(values(networks, following, precision), 0)
        batch = rewards.shape[-1]
        ahead = jnp.broadcast_to(ahead, rewards.shape).reshape(-1, batch)
        local = local_uncertainty(rewards.reshape(-1, batch), ahead, gamma)
        so_far = so_far + weight * local
        survives = survives * jnp.mean(goes_on, 0)
        states = jnp.mean(following, 0)
    return jnp.stack(variances)


def mix(
    means: Float[Array, "h b"], variances: Float[Array, "h b"]
) -> tuple[Float[Array, " b"], Float[Array, "h b"]]:
    """Targets of all horizons weighted by their inverse variance, and the weights."""
    inverse = 1.0 / (variances + _TINY)
    weights = inverse / jnp.sum(inverse, 0)
    return jnp.sum(weights * means, 0), weights
