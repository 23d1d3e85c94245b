"""Stochastic ensemble value expansion: what STEVE's critics learn from.

A target of horizon i follows the actor for i steps in the learned dynamics and expects
the critics' value from there on. Every combination of a transition network, a reward
network and a critic gives a sample of it. Horizons are mixed by the inverse of their
variance, so that the model counts where it is trusted and the critics where they are.

Models and actor-critic learn in one compiled loop each. Targets come from frozen
copies, so the loops need nothing of one another and may run side by side.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.algorithms.steve.config import (
    ActorCriticConfig,
    ExpansionModelConfig,
    STEVEConfig,
)
from pombu.data import Transitions, moved
from pombu.dynamics.config import Precision
from pombu.dynamics.ensemble import Layers, predict
from pombu.nn import Descent, adam, gradient_step, xavier
from pombu.parallel import jit
from pombu.uncertainty.algorithm1 import local_uncertainty

_TINY = 1e-8
"""Added to variances before they are inverted."""


class ExpansionStep(NamedTuple):
    """What a step leads to, by transition network.

    Unlike `dynamics.model.Step`, rewards and ends have networks of their own: each
    reward network judges each transition, and an end is a probability.
    """

    states: Float[Array, "M b o"]
    rewards: Float[Array, "N M b"]
    goes_on: Float[Array, "M b"]
    """Probability of not ending, the mean over networks."""


class ExpansionModel(eqx.Module):
    """Three ensembles: state changes, rewards and log-odds of termination.

    `step` and `move` are those of `Dynamics`, in the data's own units and with actions
    in policy space.
    """

    transition: Layers
    reward: Layers
    ended: Layers

    def step(
        self,
        states: Float[Array, "b o"],
        actions: Float[Array, "b a"],
        precision: Precision,
    ) -> ExpansionStep:
        """Every transition network's prediction for the same rows."""
        pair = jnp.concatenate([states, actions], -1)
        following = moved(states, everyone(self.transition, pair, precision))
        beside = (following.shape[0], *actions.shape)
        given = (
            jnp.broadcast_to(states, following.shape),
            jnp.broadcast_to(actions, beside),
            following,
        )
        return self._outcome(*given, precision)

    def move(
        self,
        states: Float[Array, "M b o"],
        actions: Float[Array, "M b a"],
        precision: Precision,
    ) -> ExpansionStep:
        """Every transition network's prediction for rows of its own."""
        pair = jnp.concatenate([states, actions], -1)
        change, _ = self.transition.outputs(pair, precision)
        return self._outcome(states, actions, moved(states, change), precision)

    def _outcome(
        self,
        states: Float[Array, "M b o"],
        actions: Float[Array, "M b a"],
        following: Float[Array, "M b o"],
        precision: Precision,
    ) -> ExpansionStep:
        triple = jnp.concatenate([following, states, actions], -1)
        rewards = everyone(self.reward, triple, precision)[..., 0]
        odds = everyone(self.ended, triple, precision)[..., 0]
        goes_on = 1.0 - jnp.mean(jax.nn.sigmoid(odds), 0)
        return ExpansionStep(following, rewards, goes_on)


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
        _init_layers(keys[0], members, (pair, *config.hidden, frame or observations)),
        _init_layers(keys[1], members, inner),
        _init_layers(keys[2], members, inner),
    )


def init_actor_critic(
    key: PRNGKeyArray, observations: int, actions: int, config: ActorCriticConfig
) -> ActorCritic:
    """Untrained networks."""
    first, second = jax.random.split(key)
    actor = _init_layers(first, 1, (observations, *config.actor_hidden, actions))
    sizes = (observations + actions, *config.critic_hidden, 1)
    return ActorCritic(
        jax.tree.map(lambda leaf: leaf[0], actor),
        _init_layers(second, config.members, sizes),
    )


def _init_layers(key: PRNGKeyArray, members: int, sizes: Sequence[int]) -> Layers:
    """Glorot's weights and zero biases, members stacked on the first axis."""
    weights = []
    for number, shape in enumerate(pairwise(sizes)):
        keys = jax.random.split(jax.random.fold_in(key, number), members)
        weights.append(jnp.stack([xavier(one, shape, 1.0) for one in keys]))
    return Layers(
        tuple(weights), tuple(jnp.zeros((members, size)) for size in sizes[1:])
    )


def everyone(
    layers: Layers, x: Float[Array, "*b i"], precision: Precision
) -> Float[Array, "k *b o"]:
    """What every member says of the same rows."""
    rows = x.reshape(-1, x.shape[-1])
    alone = [one.outputs(rows, precision)[0] for one in layers.unstack()]
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
    members, batch = model.transition.count, real.rewards.shape[0]
    states = jnp.broadcast_to(real.following, (members, *real.following.shape))
    shape = (members, model.reward.count, batch)
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
        ahead = model.move(states, act(networks.actor, states), precision)
        earned = earned + discount[:, None] * jnp.swapaxes(ahead.rewards, 0, 1)
        survives, states = survives * ahead.goes_on, ahead.states
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
        following, rewards, goes_on = model.step(
            states, act(networks.actor, states), precision
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


ADAM = adam()


class Frozen(eqx.Module):
    """What targets are computed with."""

    critics: Layers
    model: ExpansionModel


def model_loss(
    model: ExpansionModel, real: Transitions, config: STEVEConfig
) -> Float[Array, ""]:
    """Errors of state change and reward, cross-entropy of ends, and weight decay.

    Every sample trains one member, by its place in the random batch.
    """
    precision = config.model.precision
    states, actions, following, rewards, ended = (
        _shared(x, config.model.members)
        for x in (real.states, real.actions, real.following, real.rewards, real.ended)
    )
    pair = jnp.concatenate([states, actions], -1)
    triple = jnp.concatenate([following, pair], -1)
    change = predict(model.transition, pair, precision)
    change = change - (following - states)[..., : change.shape[-1]]
    surprise = predict(model.reward, triple, precision)[..., 0] - rewards
    odds = predict(model.ended, triple, precision)[..., 0]
    fit = 0.5 * jnp.sum(change**2, -1) + 0.5 * surprise**2
    fit = fit + optax.sigmoid_binary_cross_entropy(odds, ended)
    size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(model))
    return jnp.mean(fit) + 0.5 * config.model.weight_decay * size


def actor_critic_loss(
    networks: ActorCritic,
    real: Transitions,
    targets: Float[Array, " b"],
    config: STEVEConfig,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Critics towards their targets, and the actor to where they are highest.

    Neither part moves the other's parameters, so one gradient serves both.
    """
    precision = config.model.precision
    pair = _shared(
        jnp.concatenate([real.states, real.actions], -1), config.actor_critic.members
    )
    gap = predict(networks.critics, pair, precision)[..., 0]
    critic = 0.5 * jnp.mean((gap - _shared(targets, config.actor_critic.members)) ** 2)
    held = ActorCritic(networks.actor, jax.lax.stop_gradient(networks.critics))
    free = before_tanh(networks.actor, real.states)
    actor = -jnp.mean(values(held, real.states, precision))
    actor = actor + config.actor_critic.saturation_weight * jnp.mean(free**2)
    return critic + actor, {"value_loss": critic, "actor_loss": actor}


def expanded_targets(
    frozen: Frozen, actor: Layers, real: Transitions, config: STEVEConfig
) -> tuple[Float[Array, " b"], Float[Array, "h b"]]:
    """What critics are to say of real steps, and how horizons were weighted."""
    old = ActorCritic(actor, frozen.critics)
    setting = (frozen.model, old, real, config.gamma, config.expansion)
    precision = config.model.precision
    samples = target_samples(*setting, precision)
    variances = jnp.var(samples, (1, 2, 3))
    if config.weighting == "bellman":
        variances = bellman_variances(*setting, precision)
    return mix(jnp.mean(samples, (1, 2, 3)), variances)


@partial(jit, static_argnames="config")
def train_model(
    model: ExpansionModel,
    optimiser: Any,
    data: Transitions,
    filled: Int[Array, ""],
    key: PRNGKeyArray,
    steps: Int[Array, ""],
    config: STEVEConfig,
) -> tuple[ExpansionModel, Any, Float[Array, ""]]:
    """Gradient steps of the models; their mean loss too."""

    def loss(model: ExpansionModel, real: Transitions) -> tuple[Array, Array]:
        error = model_loss(model, real, config)
        return error, error

    def step(number: Array, carry: tuple[Descent, Array]) -> tuple[Descent, Array]:
        now, total = carry
        real = _drawn(data, filled, jax.random.fold_in(key, number), config)
        rate = config.model.learning_rate
        later, error, _ = gradient_step(loss, ADAM, now, rate, real)
        return later, total + error

    begin = (Descent(model, optimiser), jnp.zeros(()))
    (model, optimiser), total = jax.lax.fori_loop(0, steps, step, begin)
    return model, optimiser, total / jnp.maximum(steps, 1)


@partial(jit, static_argnames="config")
def train_networks(
    networks: ActorCritic,
    optimiser: Any,
    frozen: Frozen,
    data: Transitions,
    filled: Int[Array, ""],
    key: PRNGKeyArray,
    steps: Int[Array, ""],
    config: STEVEConfig,
) -> tuple[ActorCritic, Any, dict[str, Array]]:
    """Gradient steps of actor and critics; means of their losses and weights too."""
    names = ["value_loss", "actor_loss"]
    names += [f"horizon_weight_{i}" for i in range(config.expansion + 1)]

    def step(number: Array, carry: tuple[Descent, Array]) -> tuple[Descent, Array]:
        now, totals = carry
        real = _drawn(data, filled, jax.random.fold_in(key, number), config)
        actor = now.parameters.actor
        targets, weights = expanded_targets(frozen, actor, real, config)
        later, losses, _ = gradient_step(
            actor_critic_loss,
            ADAM,
            now,
            config.actor_critic.learning_rate,
            real,
            targets,
            config,
        )
        seen = [losses["value_loss"], losses["actor_loss"], *jnp.mean(weights, 1)]
        return later, totals + jnp.stack(seen)

    begin = (Descent(networks, optimiser), jnp.zeros(len(names)))
    (networks, optimiser), totals = jax.lax.fori_loop(0, steps, step, begin)
    means = totals / jnp.maximum(steps, 1)
    return networks, optimiser, dict(zip(names, means, strict=True))


def _drawn(
    data: Transitions, filled: Int[Array, ""], key: PRNGKeyArray, config: STEVEConfig
) -> Transitions:
    """A batch of random real steps."""
    rows = jax.random.randint(key, (config.batch_size,), 0, filled)
    batch: Transitions = jax.tree.map(lambda x: x[rows], data)
    return batch


def _shared(rows: Float[Array, "b *d"], members: int) -> Float[Array, "k n *d"]:
    """Rows dealt out evenly."""
    return rows.reshape(members, -1, *rows.shape[1:])
