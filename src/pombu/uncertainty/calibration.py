"""Is an uncertainty as large as the errors it predicts?

Everything is a function of the errors ``Q_true - Q_estimated`` and the uncertainties
sigma, in NumPy float64. Read `mean_z_squared` first: it is 1 when sigma^2 is the
variance of the error. The other scores also judge the shape of the distribution, and so
blame a perfect sigma where the posterior is not Gaussian.

The errors of one ensemble share that ensemble's mistakes, so the states of one dataset
are no independent evidence: `over_datasets` resamples whole datasets.

What to expect depends on K, the number of members, and on the purpose. The variance of
Q over K members can stand for three different things:

- ``"posterior"``: the spread of Q over the MDPs that the data leave possible. An
  agent that explores, or that weighs one MDP against another, asks for this.
- ``"prediction"``: how far the true Q lies from the reported one, the members' mean,
  if truth and members are draws from one posterior. An interval asks for this: the
  mean of K draws is uncertain itself, hence the factor 1 + 1/K.
- ``"mean"``: the standard error of the reported Q where members scatter independently
  around the truth, as networks do that differ by their start and their share of the
  data alone. Averaging K of them removes most of what they disagree about.

Which one holds for an ensemble is an empirical question. Errors on held-out returns
answer it (`pombu.uncertainty.Recalibration`); `variance_factor` and
`expected_z_squared` say what to expect.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.errors import UsageError

LEVELS = 100
_erf = np.frompyfunc(math.erf, 1, 1)
PURPOSES = ("posterior", "prediction", "mean")


@dataclass(frozen=True)
class Calibration:
    """How well sigma describes the errors of one dataset.

    Attributes:
        mean_z_squared: mean of (error/sigma)^2; 1 is right, above 1 is overconfident.
        gaussian_nll: mean negative log-likelihood of the errors under N(0, sigma^2).
        crps: mean continuous ranked probability score of N(0, sigma^2).
        miscalibration_area: area between the coverage curve and the diagonal.
        spearman: rank correlation of abs(error) and sigma; NaN if either is constant.
        ks: largest distance between the distribution of z and the normal one.
        mean_sigma: the size of the uncertainty itself.
    """

    mean_z_squared: float
    gaussian_nll: float
    crps: float
    miscalibration_area: float
    spearman: float
    ks: float
    mean_sigma: float


@dataclass(frozen=True)
class Interval:
    """A mean over datasets with its bootstrap interval."""

    mean: float
    low: float
    high: float


def calibration(error: Any, sigma: Any) -> Calibration:
    """All scores of one dataset's errors and uncertainties."""
    errors, sigmas = checked(error, sigma)
    z = errors / sigmas
    return Calibration(
        mean_z_squared=float(np.mean(z**2)),
        gaussian_nll=float(np.mean(0.5 * z**2 + np.log(sigmas)) + _HALF_LOG_2PI),
        crps=float(np.mean(sigmas * _standard_crps(z))),
        miscalibration_area=_area(*coverage_curve(errors, sigmas)),
        spearman=spearman(np.abs(errors), sigmas),
        ks=_ks(z),
        mean_sigma=float(np.mean(sigmas)),
    )


def z_scores(error: Any, sigma: Any) -> Float64[ndarray, " n"]:
    """error / sigma, flat."""
    errors, sigmas = checked(error, sigma)
    return np.asarray(errors / sigmas)


def coverage_curve(
    error: Any, sigma: Any, levels: int = LEVELS
) -> tuple[Float64[ndarray, " levels"], Float64[ndarray, " levels"]]:
    """Nominal levels in [0, 1] and the share of errors inside each centred interval."""
    z = np.sort(np.abs(z_scores(error, sigma)))
    nominal = np.linspace(0.0, 1.0, levels)
    inner = [NormalDist().inv_cdf(0.5 + level / 2) for level in nominal[:-1]]
    covered = np.searchsorted(z, [*inner, np.inf], side="right") / len(z)
    return nominal, covered


def over_datasets(
    values: Sequence[float], level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Interval:
    """Mean over datasets with a percentile bootstrap interval over datasets."""
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) < 2:
        raise UsageError(
            f"values has shape {scores.shape}; an interval over datasets needs one "
            "number per dataset and at least two datasets."
        )
    if not 0.0 < level < 1.0:
        raise UsageError(f"level is {level}; it must lie in (0, 1).")
    rng = np.random.default_rng(seed)
    means = rng.choice(scores, size=(draws, len(scores))).mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(scores.mean()), float(low), float(high))


def summarise(datasets: Sequence[tuple[Any, Any]]) -> dict[str, Interval]:
    """Every score of `calibration`, averaged over (error, sigma) pairs of datasets."""
    scores = [asdict(calibration(error, sigma)) for error, sigma in datasets]
    return {name: over_datasets([s[name] for s in scores]) for name in scores[0]}


_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def checked(
    error: Any, sigma: Any
) -> tuple[Float64[ndarray, " n"], Float64[ndarray, " n"]]:
    """Errors and uncertainties, flat and in float64; refused if they cannot be used."""
    errors = np.asarray(error, dtype=np.float64)
    sigmas = np.asarray(sigma, dtype=np.float64)
    if errors.shape != sigmas.shape or errors.size == 0:
        raise UsageError(
            f"error has shape {errors.shape} and sigma {sigmas.shape}; they must be "
            "the same and not empty."
        )
    errors, sigmas = errors.reshape(-1), sigmas.reshape(-1)
    for name, array, wrong, rule in (
        ("error", errors, ~np.isfinite(errors), "it must be finite"),
        ("sigma", sigmas, ~(np.isfinite(sigmas) & (sigmas > 0)), "it must be positive"),
    ):
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise UsageError(f"{name}[{i}] is {array[i]}; {rule}.")
    return errors, sigmas


def _normal_cdf(z: Float64[ndarray, " n"]) -> Float64[ndarray, " n"]:
    return 0.5 * (1 + np.asarray(_erf(z / math.sqrt(2)), dtype=np.float64))


def _standard_crps(z: Float64[ndarray, " n"]) -> Float64[ndarray, " n"]:
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.asarray(
        z * (2 * _normal_cdf(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
    )


def _area(nominal: Float64[ndarray, " n"], covered: Float64[ndarray, " n"]) -> float:
    """Area between the two broken lines, exact also where they cross."""
    gap = covered - nominal
    left, right = np.abs(gap[:-1]), np.abs(gap[1:])
    total = left + right
    crosses = gap[:-1] * gap[1:] < 0
    heights = np.where(
        crosses, (left**2 + right**2) / np.where(total > 0, total, 1.0), total
    )
    return float(np.sum(0.5 * heights * np.diff(nominal)))


def spearman(x: Float64[ndarray, " n"], y: Float64[ndarray, " n"]) -> float:
    """Rank correlation, ties sharing their mean rank; NaN where one does not vary."""
    x_ranks, y_ranks = _ranks(x), _ranks(y)
    spread = x_ranks.std() * y_ranks.std()
    if spread == 0:
        return math.nan
    centred = (x_ranks - x_ranks.mean()) * (y_ranks - y_ranks.mean())
    return float(centred.mean() / spread)


def _ranks(x: Float64[ndarray, " n"]) -> Float64[ndarray, " n"]:
    """Ranks from 1, ties sharing their mean rank."""
    _, kind, count = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[kind])


def _ks(z: Float64[ndarray, " n"]) -> float:
    normal = _normal_cdf(np.sort(z))
    steps = np.arange(len(z) + 1) / len(z)
    return float(max(np.max(steps[1:] - normal), np.max(normal - steps[:-1])))


def variance_factor(members: int, purpose: str = "posterior", ddof: int = 0) -> float:
    """What to multiply a members' variance by so that it fits its purpose on average.

    Args:
        members: K, 2 or more.
        purpose: ``"posterior"``, ``"prediction"`` or ``"mean"``; the module says which
            is which.
        ddof: how the variance was taken: 0 divided by K, 1 by K - 1.

    Returns:
        For ddof 1: 1, 1 + 1/K and 1/K; for ddof 0 each times K/(K - 1).
    """
    _require_members(members, ddof)
    if purpose not in PURPOSES:
        raise UsageError(
            f"purpose is {purpose!r}; it must be one of {', '.join(PURPOSES)}."
        )
    own = {"posterior": 1.0, "prediction": 1 + 1 / members, "mean": 1 / members}
    return own[purpose] * (members / (members - 1) if ddof == 0 else 1.0)


def expected_z_squared(members: int, steps: float = 1, ddof: int = 0) -> float:
    """Mean of ((truth - mean of members) / sigma)^2 for a perfect ensemble.

    Truth and members are draws from one Gaussian posterior; sigma^2 is the members'
    variance, which is itself a noisy estimate, and a small sigma weighs heavily in the
    mean of z^2. So 1 is not what to expect of few members.

    Args:
        members: K, 2 or more.
        steps: over how many independent steps of equal size sigma^2 is a sum. 1 is the
            variance of one step, or of a whole sum (F, members rolled alone); infinity
            is the limit of Algorithm 1 over a long trajectory.
        ddof: how the variance was taken: 0 divided by K, 1 by K - 1.

    Returns:
        With n = steps (K - 1) degrees of freedom, (1 + 1/K) n / (n - 2) for ddof 1 and
        K/(K - 1) times that for ddof 0; infinite for n of 2 or less. For K = 5 and ddof
        0: 3 for one step, 1.5 for many.
    """
    _require_members(members, ddof)
    if not steps >= 1:
        raise UsageError(f"steps is {steps}; it must be 1 or more, or infinite.")
    freedom = steps * (members - 1)
    if freedom <= 2:
        return math.inf
    noise = 1.0 if math.isinf(freedom) else freedom / (freedom - 2)
    return variance_factor(members, "prediction", ddof) * noise


def _require_members(members: Any, ddof: Any) -> None:
    if members < 2:
        raise UsageError(
            f"members is {members}; a spread needs 2 members or more to be judged."
        )
    if ddof not in (0, 1):
        raise UsageError(f"ddof is {ddof}; it must be 0 (1/K) or 1 (1/(K-1)).")
