"""Means over seeds with their bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.studies.curves import Curve
from pombu.studies.statistics import align

LEVEL = 0.95
_DRAWS = 2000


@dataclass(frozen=True)
class Band:
    """A curve and the interval around it."""

    steps: Float64[ndarray, " n"]
    middle: Float64[ndarray, " n"]
    low: Float64[ndarray, " n"]
    high: Float64[ndarray, " n"]


def finite(
    curve: Curve, name: str
) -> tuple[Float64[ndarray, " n"], Float64[ndarray, " n"]]:
    """Real steps and values of a metric, where it was measured."""
    steps = curve.column("real_steps").astype(np.float64)
    values = curve.column(name).astype(np.float64)
    measured = np.isfinite(values)
    return steps[measured], values[measured]


def over_seeds(curves: Sequence[Curve]) -> Band | None:
    """The mean over runs, as far as all have come, and its percentile bootstrap.

    None where the runs have no real steps in common.
    """
    aligned = align([finite(curve, "return_real") for curve in curves])
    if aligned is None:
        return None
    steps, runs = aligned.steps, aligned.values
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(runs), size=(_DRAWS, len(runs)))
    # A mean of drawn runs is a weighted mean of all of them: no large copies.
    weights = np.stack([(drawn == run).mean(1) for run in range(len(runs))], 1)
    low, high = np.quantile(weights @ runs, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Band(steps, runs.mean(0), low, high)


def over_episodes(curve: Curve) -> Band | None:
    """One run's return, plus or minus one standard deviation over its episodes."""
    steps, returns = finite(curve, "return_real")
    spread_steps, spread = finite(curve, "return_real_std")
    if not len(steps) or not np.array_equal(steps, spread_steps):
        return None
    return Band(steps, returns, returns - spread, returns + spread)
