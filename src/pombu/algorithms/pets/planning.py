"""Planning: the action sequence that scores best, found anew at every real step.

Sequences live in policy space, where [-1, 1] spans the action box. A score is any
function of a whole population of sequences. The controller carries each episode's plan
from step to step.

What a sequence is worth (`appraise`): trajectory sampling moves particles, each by a
member's Gaussian: by the same member all along (TS-infinity) or by another at every
step (TS1). The cheaper alternative moves one particle along the mean of all members.
Either way one scan serves all sequences, particles and members.

The uncertainty of a sequence's return is Algorithm 1's: along the mean trajectory every
member predicts a reward and a next state, the variance over members of r + gamma V is
the local uncertainty, and a backward pass adds it up.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.algorithms.pets.config import PlannerConfig, Propagation
from pombu.dynamics.model import Dynamics
from pombu.envs import ActionBox
from pombu.nn import MLP, predict_value
from pombu.parallel import Workers
from pombu.rollout.returns import discounted_sum
from pombu.uncertainty.algorithm1 import (
    local_uncertainty,
    propagate,
    standard_deviation,
)

Sequences = Float[Array, "p h a"]
Score = Callable[[Sequences, PRNGKeyArray], Float[Array, " p"]]

WORST = -1e6
"""Score of a sequence whose score is not finite."""


class Planned(NamedTuple):
    """What a search ended with."""

    sequence: Float[Array, "h a"]
    """The plan: its first action is the one to take."""
    variance: Float[Array, "h a"]
    """How spread the last distribution of sequences was."""
    iterations: Int[Array, ""]
    """Populations that were scored."""
    broken: Float[Array, ""]
    """Sequences whose score was not finite."""


Search = Callable[[np.ndarray, Float[Array, "h a"], PRNGKeyArray], Planned]
"""From an observation, where to begin, and random draws."""


def plan(
    score: Score,
    start: Float[Array, "h a"],
    key: PRNGKeyArray,
    config: PlannerConfig,
) -> Planned:
    """Search by the method that the config names.

    Args:
        score: what to maximise.
        start: where to begin: the last plan moved on by one, or zeros.
        key: the random draws of this search.
        config: population, iterations and the like.
    """
    search = cross_entropy if config.kind == "cem" else random_shooting
    return search(score, start, key, config)


def move_on(sequence: Float[Array, "h a"]) -> Float[Array, "h a"]:
    """The rest of a plan after its first action, with a zero at its end."""
    return jnp.concatenate([sequence[1:], jnp.zeros_like(sequence[:1])])


def cross_entropy(
    score: Score, start: Float[Array, "h a"], key: PRNGKeyArray, config: PlannerConfig
) -> Planned:
    """The cross-entropy method: fit a Gaussian to the best, draw again, and so on.

    Draws are truncated at two standard deviations, and no deviation is larger than half
    of the way to the nearer bound, so that hardly any draw has to be clipped.
    """

    def goes_on(search: Planned) -> Array:
        wide = jnp.max(search.variance) > config.least_variance
        return wide & (search.iterations < config.iterations)

    def iterate(search: Planned) -> Planned:
        mean, variance, number, broken = search
        draw_key, score_key = jax.random.split(jax.random.fold_in(key, number))
        room = jnp.minimum(1.0 + mean, 1.0 - mean) / 2.0
        std = jnp.sqrt(jnp.minimum(room**2, variance))
        shape = (config.population, *mean.shape)
        noise = jax.random.truncated_normal(draw_key, -2.0, 2.0, shape)
        population = mean + std * noise
        scores, failed = _finite(score(population, score_key))
        _, best = jax.lax.top_k(scores, config.elites)
        elites = population[best]
        keep = config.smoothing
        return Planned(
            keep * mean + (1.0 - keep) * jnp.mean(elites, 0),
            keep * variance + (1.0 - keep) * jnp.var(elites, 0),
            number + 1,
            broken + failed,
        )

    first = Planned(
        start,
        jnp.full_like(start, config.initial_variance),
        jnp.zeros((), jnp.int32),
        jnp.zeros(()),
    )
    found: Planned = jax.lax.while_loop(goes_on, iterate, first)
    return found


def random_shooting(
    score: Score, start: Float[Array, "h a"], key: PRNGKeyArray, config: PlannerConfig
) -> Planned:
    """The best of many uniform sequences and of the one that was there before."""
    draw_key, score_key = jax.random.split(key)
    shape = (config.population, *start.shape)
    population = jax.random.uniform(draw_key, shape, minval=-1.0)
    if config.warm_start:
        population = population.at[0].set(start)
    scores, failed = _finite(score(population, score_key))
    spread = jnp.full_like(start, 1.0 / 3.0)
    best = population[jnp.argmax(scores)]
    return Planned(best, spread, jnp.ones((), jnp.int32), failed)


def _finite(scores: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
    """The worst score where there is none, and how many there are of these."""
    fine = jnp.isfinite(scores)
    return jnp.where(fine, scores, WORST), jnp.sum(~fine).astype(jnp.float32)


class Controller:
    """A policy that plans: it begins each search where its last plan ended.

    Episodes that are played side by side are searched side by side, one core each.
    """

    def __init__(
        self, search: Search, action_dim: int, config: PlannerConfig, workers: Workers
    ) -> None:
        self._search = search
        self._middle = jnp.zeros((config.horizon, action_dim))
        self._config = config
        self._workers = workers
        self._plans: list[Float[Array, "h a"]] = []
        self._searches: list[Planned] = []

    def begin(self) -> "Controller":
        """The same controller as episodes begin: without a plan."""
        dim = self._middle.shape[1]
        return Controller(self._search, dim, self._config, self._workers)

    def __call__(
        self, observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
    ) -> np.ndarray:
        """Policy-space actions; rows are the same episodes as in the last call."""
        number = len(observations)
        if len(self._plans) != number or not self._config.warm_start:
            self._plans = [self._middle] * number
        found = self._workers.map(
            lambda row: self._search(
                observations[row], self._plans[row], jax.random.fold_in(key, row)
            ),
            range(number),
        )
        self._plans = [_move_on(planned.sequence) for planned in found]
        self._searches += [one._replace(sequence=one.sequence[:1]) for one in found]
        return np.stack([np.asarray(planned.sequence[0]) for planned in found])

    def acting(self, key: PRNGKeyArray) -> Callable[[np.ndarray, int], np.ndarray]:
        """As a function of observations and the step's number, for collection."""
        return lambda seen, step: self(seen, True, jax.random.fold_in(key, step))

    def metrics(self) -> dict[str, float]:
        """Of all searches so far.

        Steps of sequences, entropy of the next action's last distribution, iterations,
        and sequences that had no score.
        """
        found = jax.device_get(self._searches)
        populations = sum(int(one.iterations) for one in found)
        variance = np.array([one.variance[0] for one in found])
        entropies = 0.5 * np.log(2 * math.pi * math.e * (variance + 1e-12)).sum(-1)
        width = self._config.population * self._config.horizon
        return {
            "sequence_steps": float(populations * width),
            "entropy": float(entropies.mean()),
            "planner_iterations": populations / len(found),
            "masked_trajectories": float(sum(one.broken for one in found)),
        }


_move_on = jax.jit(move_on)


class PlanRules(eqx.Module):
    """What stays the same from plan to plan; hashable, so static under jit."""

    box: ActionBox = eqx.field(static=True)
    gamma: float = eqx.field(static=True)
    runaway: float = eqx.field(static=True)
    propagation: Propagation = eqx.field(static=True)
    particles: int = eqx.field(static=True)


class Appraisal(NamedTuple):
    """Of every sequence."""

    returns: Float[Array, " p"]
    """Mean return; not a number where a state ran away."""
    uncertainty: Float[Array, " p"] | None
    """sqrt(U) in units of reward, where it was asked for."""


def appraise(
    dynamics: Dynamics,
    rules: PlanRules,
    start: Float[Array, " o"],
    sequences: Sequences,
    key: PRNGKeyArray,
    value: MLP | None = None,
) -> Appraisal:
    """Mean return of every sequence, and its uncertainty where there is a V.

    Args:
        dynamics: the learned dynamics.
        rules: action box, discount and propagation.
        start: the present state.
        sequences: actions in policy space.
        key: the particles' draws.
        value: V of Algorithm 1, in units of `dynamics.return_std`; None leaves the
            uncertainty out.
    """
    actions = rules.box.to_box(jnp.swapaxes(sequences, 0, 1))
    first = jnp.broadcast_to(start, (sequences.shape[0], start.shape[-1]))
    if rules.propagation != "mean" and value is None:
        return Appraisal(_by_particles(dynamics, rules, first, actions, key), None)
    returns, uncertainty = _along_the_mean(dynamics, rules, first, actions, value)
    if rules.propagation != "mean":
        returns = _by_particles(dynamics, rules, first, actions, key)
    return Appraisal(returns, uncertainty)


def _along_the_mean(
    dynamics: Dynamics,
    rules: PlanRules,
    first: Float[Array, "p o"],
    actions: Float[Array, "h p a"],
    value: MLP | None,
) -> tuple[Float[Array, " p"], Float[Array, " p"] | None]:
    together = dynamics.unstack()

    def step(
        carry: tuple[Array, Array], action: Float[Array, "p a"]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        # 1. All members predict from the mean state, and their mean is the next one.
        state, running = carry
        members = together.step(state, action)
        learned = None if dynamics.reward is None else jnp.mean(members.rewards, 0)
        mean = dynamics.outcome(state, action, jnp.mean(members.states, 0), learned)
        proceeds = running * ~mean.ends
        # 2. Where members differ in r + gamma V, the return is uncertain.
        local = jnp.zeros_like(mean.rewards)
        if value is not None:
            normal = dynamics.observation.normalise(members.states)
            values = dynamics.return_std * predict_value(value, normal)
            values = jnp.where(members.ends, 0.0, values)
            local = local_uncertainty(members.rewards, values, rules.gamma)
            local = jnp.where(running > 0, local, 0.0)
        # 3. Nothing is earned after an end.
        earned = jnp.where(running > 0, mean.rewards, 0.0)
        return (_bounded(dynamics, rules, mean.states), proceeds), (
            earned,
            local,
            proceeds,
        )

    begin = (first, jnp.ones(first.shape[0]))
    _, (rewards, local, continues) = jax.lax.scan(step, begin, actions)
    returns = discounted_sum(rewards, continues, rules.gamma)[0]
    if value is None:
        return returns, None
    return returns, standard_deviation(propagate(local, rules.gamma, continues)[0])


def _by_particles(
    dynamics: Dynamics,
    rules: PlanRules,
    first: Float[Array, "p o"],
    actions: Float[Array, "h p a"],
    key: PRNGKeyArray,
) -> Float[Array, " p"]:
    """Mean return of particles that the members move, as many each.

    All sequences meet the same members and the same noise: what differs between their
    returns is then due to the actions alone.
    """
    together = dynamics.unstack()
    count, (population, dim) = rules.particles, first.shape
    outputs = dynamics.output_dim

    def by_member(rows: Float[Array, "c p d"]) -> Float[Array, "K m d"]:
        """Particles and sequences, dealt out to the members in their order."""
        return rows.reshape(dynamics.members.count, -1, rows.shape[-1])

    def step(
        carry: tuple[Array, Array], now: tuple[Float[Array, "p a"], PRNGKeyArray]
    ) -> tuple[tuple[Array, Array], Float[Array, " p"]]:
        # 1. TS1 gives every particle another member.
        (state, running), (action, key) = carry, now
        noise_key, order_key = jax.random.split(key)
        if rules.propagation == "ts1":
            order = jax.random.permutation(order_key, count)
            state, running = state[order], running[order]
        # 2. Each member moves its particles by one draw per particle.
        boxed = jnp.broadcast_to(action, (count, *action.shape))
        noise = jax.random.normal(noise_key, (count, 1, outputs))
        noise = jnp.broadcast_to(noise, (count, population, outputs))
        ahead = together.move(by_member(state), by_member(boxed), by_member(noise))
        # 3. Nothing is earned after an end.
        reward, ends = (x.reshape(count, population) for x in ahead[1:])
        earned = jnp.mean(jnp.where(running > 0, reward, 0.0), 0)
        following = ahead.states.reshape(count, population, dim)
        return (_bounded(dynamics, rules, following), running * ~ends), earned

    begin = (
        jnp.broadcast_to(first, (count, population, dim)),
        jnp.ones((count, population)),
    )
    keys = jax.random.split(key, actions.shape[0])
    _, rewards = jax.lax.scan(step, begin, (actions, keys))
    discounts = rules.gamma ** jnp.arange(actions.shape[0])
    return discounts @ rewards


def _bounded(
    dynamics: Dynamics, rules: PlanRules, state: Float[Array, "*b o"]
) -> Float[Array, "*b o"]:
    """A state that ran away is no number, and neither is any return after it."""
    inside = dynamics.plausible(state, rules.runaway)
    return jnp.where(inside[..., None], state, jnp.nan)
