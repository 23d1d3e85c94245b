"""Intervals around Q-values, corrected by what real episodes showed."""

from statistics import NormalDist

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.errors import UsageError
from pombu.rollout.held_out import Calibrated
from pombu.rollout.q_value import QEstimate
from pombu.uncertainty.recalibration import require_level


def interval(
    found: QEstimate,
    calibrated: Calibrated | None,
    rollouts: int,
    level: float = 0.9,
    of_return: bool = False,
) -> tuple[Float64[ndarray, " n"], Float64[ndarray, " n"]]:
    """Lower and upper ends of intervals that hold a share `level` of the truth.

    The variance is that of Q over worlds, corrected, and that of the mean over
    imagined trajectories, of which there are few. Where every trajectory ran away the
    interval is infinite.

    Args:
        found: Q-values for the rho of `calibrated`.
        calibrated: the correction.
        rollouts: imagined trajectories per Q-value.
        level: in (0, 1).
        of_return: whether the interval is to hold single returns, with the noise of
            policy and environment, instead of their mean Q.

    Raises:
        UsageError: The agent never saw a held-out episode, the members agree entirely,
            or the level is no share.
    """
    require_level(level)
    calibrated = require_calibrated(calibrated)
    q, sigma, noise = (np.asarray(x, np.float64) for x in found)
    if (sigma <= 0).any():
        raise UsageError(
            f"All members agree about Q of pair {int(np.argmin(sigma))}, so there is "
            "no uncertainty to make an interval of: train an ensemble of two members "
            "or more."
        )
    share = 1.0 / rollouts + float(of_return)
    variance = (float(calibrated.scale) * sigma) ** 2 + share * np.nan_to_num(
        noise
    ) ** 2
    half = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(variance)
    known = np.isfinite(q)
    centre = np.where(known, q, 0.0)
    half = np.where(known, half, np.inf)
    return np.asarray(centre - half), np.asarray(centre + half)


def require_calibrated(calibrated: Calibrated | None) -> Calibrated:
    """The correction; an agent that no real episode has corrected is refused."""
    if calibrated is None:
        raise UsageError(
            "The agent was trained without calibration, so its intervals would not "
            "hold: train it with calibration.use, as the preset fast does."
        )
    if not int(calibrated.episodes):
        raise UsageError(
            "The agent never saw a held-out episode that its ensemble could be "
            "compared with, so its intervals would not hold: let it learn one "
            "iteration with evaluation_episodes of 5 or more."
        )
    return calibrated
