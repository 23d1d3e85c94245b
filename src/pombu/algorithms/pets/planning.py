"""Planning: the action sequence that scores best, found anew at every real step.

Sequences live in policy space, where [-1, 1] spans the action box. A score is any
function of a whole population of sequences, so what an action sequence is worth is
decided elsewhere. The controller carries each episode's plan from step to step.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.algorithms.pets.config import PlannerConfig
from pombu.parallel import Workers

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
