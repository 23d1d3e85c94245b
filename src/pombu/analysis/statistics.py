"""Statistics of few runs: what the paper reports, and what few seeds ask for.

Scores are `runs x tasks`. The paper reports means and standard deviations; the
interquartile mean, stratified bootstrap intervals, probability of improvement and
performance profiles follow Agarwal et al. (2021), "Deep Reinforcement Learning at the
Edge of the Statistical Precipice".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

DRAWS = 2000
LEVEL = 0.95

Scores = Float[ndarray, "runs tasks"]


@dataclass(frozen=True)
class Interval:
    """An estimate and its bootstrap interval, None where it has none."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Aligned:
    """Curves of several seeds on common real steps."""

    steps: Float[ndarray, " n"]
    values: Float[ndarray, "seeds n"]

    @property
    def mean(self) -> Float[ndarray, " n"]:
        """Mean over seeds."""
        return np.asarray(self.values.mean(0))

    @property
    def std(self) -> Float[ndarray, " n"]:
        """Empirical standard deviation over seeds, the paper's shaded region."""
        return np.asarray(self.values.std(0))


def mean_std(values: Sequence[float] | ndarray) -> tuple[float, float]:
    """Mean and empirical standard deviation (divided by n, as the paper's)."""
    return float(np.mean(values)), float(np.std(values))


def iqm(scores: Float[ndarray, "..."]) -> float:
    """Interquartile mean: the mean of the middle half of all scores."""
    ordered = np.sort(np.ravel(scores))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def resample(scores: Scores, rng: np.random.Generator) -> Scores:
    """Draw as many runs again, with replacement and task by task (the strata)."""
    runs, tasks = scores.shape
    drawn = rng.integers(runs, size=(runs, tasks))
    return np.asarray(np.take_along_axis(scores, drawn, axis=0))


def interval(
    statistic: Callable[..., float],
    *scores: Float[ndarray, "_ tasks"],
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """A statistic of one or more methods and its stratified percentile bootstrap.

    A single run of a method says nothing about its spread, and gives no interval.
    """
    if any(len(one) < 2 for one in scores):
        return Interval(statistic(*scores), None, None)
    rng = np.random.default_rng(seed)
    found = [statistic(*(resample(one, rng) for one in scores)) for _ in range(draws)]
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(statistic(*scores), float(low), float(high))


def probability_of_improvement(
    first: Float[ndarray, "m tasks"], second: Float[ndarray, "n tasks"]
) -> float:
    """How likely a run of the first method beats one of the second, over tasks.

    A tie counts half.
    """
    difference = first[:, None, :] - second[None, :, :]
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def performance_profile(
    scores: Scores, thresholds: Float[ndarray, " t"]
) -> Float[ndarray, " t"]:
    """The share of runs whose score is above each threshold."""
    return np.asarray((np.ravel(scores)[:, None] > thresholds[None]).mean(0))


def align(curves: Sequence[tuple[ndarray, ndarray]]) -> Aligned | None:
    """Bring curves (steps, values) onto common real steps, by linear interpolation.

    The steps are all that any curve has, as far as every curve has come; None where
    they have none in common. Values that were not measured are left out.
    """
    measured = [(s[np.isfinite(v)], v[np.isfinite(v)]) for s, v in curves]
    if not measured or any(not len(steps) for steps, _ in measured):
        return None
    first = max(steps[0] for steps, _ in measured)
    last = min(steps[-1] for steps, _ in measured)
    steps = np.unique(np.concatenate([steps for steps, _ in measured])).astype(float)
    steps = steps[(steps >= first) & (steps <= last)]
    if not len(steps):
        return None
    values = np.stack([np.interp(steps, *one) for one in measured])
    return Aligned(steps, values)
