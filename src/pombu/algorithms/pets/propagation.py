"""What action sequences are worth in a Gaussian ensemble, and how sure that is.

Trajectory sampling moves particles, each by a member's Gaussian: by the same member all
along (TS-infinity) or by another at every step (TS1). The cheaper alternative moves one
particle along the mean of all members. Either way one scan serves all sequences,
particles and members.

The uncertainty of a sequence's return is Algorithm 1's: along the mean trajectory every
member predicts a reward and a next state, the variance over members of r + gamma V is
the local uncertainty, and a backward pass adds it up.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.algorithms.pets.config import Propagation
from pombu.data import Experience, Normaliser, build_dataset, moved, regression
from pombu.dynamics.config import GaussianModelConfig, Precision
from pombu.dynamics.gaussian import GaussianEnsemble, init_gaussian, predict_gaussian
from pombu.dynamics.model import check_shape, network_sizes
from pombu.envs import ActionBox, Contract, Episode, Task
from pombu.nn import MLP, predict_value
from pombu.rollout.returns import discounted_sum
from pombu.uncertainty.algorithm1 import (
    local_uncertainty,
    propagate,
    standard_deviation,
)


class GaussianDynamics(eqx.Module):
    """A Gaussian ensemble in the data's own units."""

    ensemble: GaussianEnsemble
    observation: Normaliser
    action: Normaliser
    target: Normaliser
    """Units of the state change, and of the reward where it is learned."""
    learned_reward: bool = eqx.field(static=True)


class PropagationRules(eqx.Module):
    """What stays the same from plan to plan; hashable, so static under jit."""

    contract: Contract | None = eqx.field(static=True)
    box: ActionBox = eqx.field(static=True)
    gamma: float = eqx.field(static=True)
    runaway: float = eqx.field(static=True)
    propagation: Propagation = eqx.field(static=True)
    particles: int = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)


class Judge(eqx.Module):
    """V of Algorithm 1, which takes normalised states, and its unit of reward."""

    value: MLP
    unit: Float[Array, ""]


class Appraisal(NamedTuple):
    """Of every sequence."""

    returns: Float[Array, " p"]
    """Mean return; not a number where a state ran away."""
    uncertainty: Float[Array, " p"] | None
    """sqrt(U) in units of reward, where it was asked for."""


def fresh_gaussian(
    key: PRNGKeyArray, task: Task, config: GaussianModelConfig
) -> GaussianEnsemble:
    """An untrained ensemble of the task's sizes."""
    sizes = network_sizes(task, config.reward)
    return init_gaussian(key, config.members, *sizes, config.hidden)


def gaussian_dynamics(
    ensemble: GaussianEnsemble, experience: Experience, config: GaussianModelConfig
) -> GaussianDynamics:
    """Join an ensemble with the units of the data it was trained on."""
    learned = config.reward == "learned"
    target = Normaliser.of(experience.delta)
    if learned:
        reward = Normaliser.of(experience.reward)
        target = jax.tree.map(lambda *x: jnp.concatenate(x), target, reward)
    if not config.normalise_targets:
        target = Normaliser(jnp.zeros_like(target.mean), jnp.ones_like(target.std))
    return GaussianDynamics(
        ensemble,
        Normaliser.of(experience.observation),
        Normaliser.of(experience.action),
        target,
        learned,
    )


def gaussian_regression(
    episodes: Sequence[Episode], experience: Experience, config: GaussianModelConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the ensemble from all real data."""
    dataset = build_dataset(episodes, 1, 0.0, 0, 0)
    learned = config.reward == "learned"
    inputs, targets = regression(dataset, experience, learned)
    if config.normalise_targets:
        return inputs, targets
    changes = dataset.deltas[:, : len(experience.delta.mean)]
    raw = [changes, dataset.rewards[:, None]]
    return inputs, np.concatenate(raw if learned else raw[:1], 1)


def appraise(
    dynamics: GaussianDynamics,
    rules: PropagationRules,
    start: Float[Array, " o"],
    sequences: Float[Array, "p h a"],
    key: PRNGKeyArray,
    judge: Judge | None = None,
) -> Appraisal:
    """Mean return of every sequence, and its uncertainty where there is a judge.

    Args:
        dynamics: the learned dynamics.
        rules: reward function, action box, discount and propagation.
        start: the present state.
        sequences: actions in policy space.
        key: the particles' draws.
        judge: V of Algorithm 1; None leaves the uncertainty out.
    """
    actions = rules.box.to_box(jnp.swapaxes(sequences, 0, 1))
    first = jnp.broadcast_to(start, (sequences.shape[0], start.shape[-1]))
    if rules.propagation != "mean" and judge is None:
        return Appraisal(_by_particles(dynamics, rules, first, actions, key), None)
    returns, uncertainty = _along_the_mean(dynamics, rules, first, actions, judge)
    if rules.propagation != "mean":
        returns = _by_particles(dynamics, rules, first, actions, key)
    return Appraisal(returns, uncertainty)


def predict_means(
    dynamics: GaussianDynamics,
    rules: PropagationRules,
    state: Float[Array, "b o"],
    action: Float[Array, "b a"],
    unstacked: Sequence[GaussianEnsemble] | None = None,
) -> tuple[Float[Array, "K b o"], Float[Array, "K b"]]:
    """All members' mean next states and rewards, for actions in the task's units."""
    members = dynamics.ensemble.unstack() if unstacked is None else unstacked
    x = _inputs(dynamics, state, action)
    means = [predict_gaussian(member, x, rules.precision)[0] for member in members]
    return _step(dynamics, rules, state, action, jnp.stack(means))


def _along_the_mean(
    dynamics: GaussianDynamics,
    rules: PropagationRules,
    first: Float[Array, "p o"],
    actions: Float[Array, "h p a"],
    judge: Judge | None,
) -> tuple[Float[Array, " p"], Float[Array, " p"] | None]:
    unstacked = dynamics.ensemble.unstack()

    def step(
        carry: tuple[Array, Array], action: Float[Array, "p a"]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        state, running = carry
        members, rewards = predict_means(dynamics, rules, state, action, unstacked)
        following = jnp.mean(members, 0)
        reward = _reward(
            dynamics, rules, state, action, following, jnp.mean(rewards, 0)
        )
        proceeds = running * ~_ended(rules, state, action, following)
        local = jnp.zeros_like(reward)
        if judge is not None:
            normal = dynamics.observation.normalise(members)
            values = judge.unit * predict_value(judge.value, normal)
            values = jnp.where(_ended(rules, state, action, members), 0.0, values)
            local = local_uncertainty(rewards, values, rules.gamma)
            local = jnp.where(running > 0, local, 0.0)
        state = _bounded(rules, following)
        earned = jnp.where(running > 0, reward, 0.0)
        return (state, proceeds), (earned, local, proceeds)

    begin = (first, jnp.ones(first.shape[0]))
    _, (rewards, local, continues) = jax.lax.scan(step, begin, actions)
    returns = discounted_sum(rewards, continues, rules.gamma)[0]
    if judge is None:
        return returns, None
    return returns, standard_deviation(propagate(local, rules.gamma, continues)[0])


def _by_particles(
    dynamics: GaussianDynamics,
    rules: PropagationRules,
    first: Float[Array, "p o"],
    actions: Float[Array, "h p a"],
    key: PRNGKeyArray,
) -> Float[Array, " p"]:
    """Mean return of particles that the members move, as many each.

    All sequences meet the same members and the same noise: what differs between their
    returns is then due to the actions alone.
    """
    unstacked = dynamics.ensemble.unstack()
    count, (population, dim) = rules.particles, first.shape
    rows = count // len(unstacked) * population

    def step(
        carry: tuple[Array, Array], now: tuple[Float[Array, "p a"], PRNGKeyArray]
    ) -> tuple[tuple[Array, Array], Float[Array, " p"]]:
        (state, running), (action, key) = carry, now
        noise_key, order_key = jax.random.split(key)
        if rules.propagation == "ts1":
            order = jax.random.permutation(order_key, count)
            state, running = state[order], running[order]
        boxed = jnp.broadcast_to(action, (count, *action.shape))
        x = _inputs(dynamics, state, boxed).reshape(len(unstacked), rows, -1)
        outputs = [
            predict_gaussian(member, own, rules.precision)
            for member, own in zip(unstacked, x, strict=True)
        ]
        mean, log_variance = (jnp.stack(part) for part in zip(*outputs, strict=True))
        noise = jax.random.normal(noise_key, (count, 1, mean.shape[-1]))
        drawn = mean.reshape(count, population, -1) + noise * jnp.exp(
            0.5 * log_variance.reshape(count, population, -1)
        )
        following, reward = _step(dynamics, rules, state, boxed, drawn)
        earned = jnp.mean(jnp.where(running > 0, reward, 0.0), 0)
        running = running * ~_ended(rules, state, boxed, following)
        return (_bounded(rules, following), running), earned

    begin = (
        jnp.broadcast_to(first, (count, population, dim)),
        jnp.ones((count, population)),
    )
    keys = jax.random.split(key, actions.shape[0])
    _, rewards = jax.lax.scan(step, begin, (actions, keys))
    discounts = rules.gamma ** jnp.arange(actions.shape[0])
    return discounts @ rewards


def _inputs(
    dynamics: GaussianDynamics,
    state: Float[Array, "*b o"],
    action: Float[Array, "*b a"],
) -> Float[Array, "*b i"]:
    return jnp.concatenate(
        [dynamics.observation.normalise(state), dynamics.action.normalise(action)], -1
    )


def _step(
    dynamics: GaussianDynamics,
    rules: PropagationRules,
    state: Float[Array, "*b o"],
    action: Float[Array, "*b a"],
    output: Float[Array, "*c y"],
) -> tuple[Float[Array, "*c o"], Float[Array, "*c"]]:
    """Next states and rewards that outputs of the networks stand for."""
    restored = dynamics.target.restore(output)
    frame = restored.shape[-1] - int(dynamics.learned_reward)
    following = moved(state, restored[..., :frame])
    return following, _reward(
        dynamics, rules, state, action, following, restored[..., -1]
    )


def _reward(
    dynamics: GaussianDynamics,
    rules: PropagationRules,
    state: Float[Array, "*b o"],
    action: Float[Array, "*b a"],
    following: Float[Array, "*c o"],
    learned: Float[Array, "*c"],
) -> Float[Array, "*c"]:
    """The task's own reward, where it is known."""
    if dynamics.learned_reward:
        return learned
    assert rules.contract is not None, "fresh_gaussian refuses a task without a reward"
    reward = rules.contract.reward(*_spread(state, action, following))
    return check_shape("reward", reward, following)


def _ended(
    rules: PropagationRules,
    state: Float[Array, "*b o"],
    action: Float[Array, "*b a"],
    following: Float[Array, "*c o"],
) -> Array:
    """Whether the task says that the episode is over."""
    if rules.contract is None:
        return jnp.zeros(following.shape[:-1], bool)
    ended = rules.contract.terminal(*_spread(state, action, following))
    return check_shape("terminal", ended, following).astype(bool)


def _spread(state: Array, action: Array, following: Array) -> tuple[Array, ...]:
    """States and actions beside each of the next states."""
    batch = following.shape[:-1]
    return (
        jnp.broadcast_to(state, following.shape),
        jnp.broadcast_to(action, (*batch, action.shape[-1])),
        following,
    )


def _bounded(
    rules: PropagationRules, state: Float[Array, "*b o"]
) -> Float[Array, "*b o"]:
    """A state that ran away is no number, and neither is any return after it."""
    inside = jnp.all(jnp.abs(state) <= rules.runaway, -1, keepdims=True)
    return jnp.where(inside, state, jnp.nan)
