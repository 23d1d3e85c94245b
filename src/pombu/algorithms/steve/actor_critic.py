"""Training STEVE's networks: losses, and one compiled loop each for two groups of them.

Targets come from frozen copies, so the models' loop and the actor-critic's need nothing
of one another and may run side by side.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.algorithms.steve.config import STEVEConfig
from pombu.algorithms.steve.expansion import (
    ActorCritic,
    ExpansionModel,
    before_tanh,
    bellman_variances,
    mix,
    target_samples,
    values,
)
from pombu.data import Transitions
from pombu.dynamics.ensemble import Layers, predict
from pombu.nn import Descent, adam, gradient_step
from pombu.parallel import jit

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
