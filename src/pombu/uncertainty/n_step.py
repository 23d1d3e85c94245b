"""Calibration by n-step returns: real episodes against what the members predicted.

At every real state and action the members predict ``q_k = r_k + gamma V(s'_k)``. What
came instead, ``r + gamma V(s')``, less the members' mean is the one-step error. By the
simulation lemma the error of an n-step return is, to first order, the discounted sum of
n one-step errors, and its predicted variance follows from the members' deviations along
the same steps (U, rho or F; see `pombu.uncertainty.algorithm1`). So a single prediction
per real step, on episodes that were not learned from, tells

- rho: errors of different steps depend just so that z is of the same size for all n;
- c: the scale, with c^2 the mean z^2 over all n;
- c_n: the scale of returns of n steps alone. No rho makes z equally large for every n:
  an error that all members share grows with n faster than any disagreement does, and
  the few numbers behind a single step's sigma give z heavy tails that a sum of many
  steps has not. c is then too large for some n and too small for others; c_n is right
  for each, and an interval takes that of its own length.

Plain NumPy; windows of n steps overlap, so episodes are the unit of evidence.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.algorithm1 import Correlation
from pombu.uncertainty.calibration import spearman
from pombu.uncertainty.recalibration import LEAST_GROUPS

STEPS = (1, 5, 20, 80)
"""n, the lengths of the returns that are compared."""
OVERLAP = 5
"""Windows of n steps begin n / OVERLAP steps apart: nearer ones tell little more."""
RHOS: tuple[float, ...] = (
    *(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85),
    *(0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0),
)
"""Correlations that are tried; they lie closer where the sum depends on them more."""
LEAST_EPISODES = LEAST_GROUPS["scale"]
"""Real episodes that a fit needs."""
LEVEL = 0.9
"""The interval whose coverage is reported."""
FOLDS = 10
"""Parts of the episodes, at most, each of which is judged by what the others say."""


class RealSteps(NamedTuple):
    """E real episodes of at most T steps, and what K members predicted of each step.

    Entries past an episode's end are not read.
    """

    member_q: Float[ndarray, "K E T"]
    """Each member's ``r_k + gamma V(s'_k)``, with V = 0 where the member says that the
    episode ends."""
    real_q: Float[ndarray, "E T"]
    """``r + gamma V(s')`` as it came, with V = 0 where the episode ended for good."""
    lengths: Int[ndarray, " E"]
    """Steps of each episode."""
    terminated: Bool[ndarray, " E"]
    """Whether it ended for good; a time limit cuts an episode off instead."""


class Windows(NamedTuple):
    """Errors of n-step returns, what was predicted of them, and whose they are."""

    error: Float64[ndarray, " w"]
    sigma: Float64[ndarray, " w"]
    episode: Int[ndarray, " w"]


class Fitted(NamedTuple):
    """What real episodes say about the uncertainty."""

    rho: float
    """Correlation of the errors of neighbouring steps."""
    scale: float
    """c, by which sigma is to be multiplied whatever n is."""
    scales: dict[int, float]
    """c_n, by which sigma of a return of n steps is to be multiplied; without an n that
    fewer than `LEAST_EPISODES` episodes reach."""
    coverage: float
    """Share of held-out errors inside the 90 % interval corrected by c_n, the mean over
    n: rho and c_n come from nine tenths of the episodes, the errors from the others, in
    turn (from all but one, where there are fewer than ten)."""
    spearman: float
    """Rank correlation of abs(error) and sigma for the longest returns; NaN where one
    of the two does not vary."""
    episodes: int
    """How many there were."""


def windows(
    real: RealSteps, n: int, gamma: float, correlation: Correlation = 0, ddof: int = 0
) -> Windows:
    """Errors of n-step returns and their predicted standard deviations.

    A return that a time limit cuts off before n steps is left out; one that ended for
    good is whole. Windows whose prediction is not finite, or in which the members agree
    entirely, are left out as well: they have no z.

    Args:
        real: real episodes and the members' predictions.
        n: steps, 1 or more.
        gamma: the discount factor.
        correlation: 0 for U, a number rho, or ``"full"`` for F.
        ddof: as in `q_uncertainty`.
    """
    cut = _cut(*_one_step(real), real, n, gamma)
    freedom = max(len(cut.deviations) - ddof, 1)
    if correlation == "full":
        sums = np.zeros((len(cut.deviations), len(cut.error)))
        for i, step in enumerate(cut.steps):
            sums += gamma**i * cut.deviations[(slice(None), *step)]
        variance = (sums**2).sum(0) / freedom
    else:
        local = (cut.deviations**2).sum(0) / freedom
        variance = _correlated(local, cut.steps, gamma, float(correlation))
    sound = _sound(cut.error, variance)
    return Windows(cut.error[sound], np.sqrt(variance[sound]), cut.episode[sound])


def mean_z_squared(
    real: RealSteps,
    gamma: float,
    correlation: Correlation = 0,
    ddof: int = 0,
    steps: Sequence[int] = STEPS,
) -> dict[int, float]:
    """Mean z^2 of the n-step returns for every n that some episode reaches."""
    found = {n: windows(real, n, gamma, correlation, ddof) for n in steps}
    return {
        n: float(np.mean((w.error / w.sigma) ** 2))
        for n, w in found.items()
        if len(w.error)
    }


def fit(
    real: RealSteps, gamma: float, ddof: int = 0, steps: Sequence[int] = STEPS
) -> Fitted:
    """Fit rho and the scales to real episodes, and judge them by parts of these.

    Raises:
        UsageError: There are fewer than `LEAST_EPISODES`, or nothing to compare: the
            members agree everywhere, or no prediction is finite.
    """
    episodes = _require_episodes(real)
    # 1. Every return's error and its sigma for every rho.
    errors, deviations = _one_step(real)
    by_n = {
        n: _for_every_rho(_cut(errors, deviations, real, n, gamma), gamma, ddof)
        for n in steps
    }
    by_n = {n: found for n, found in by_n.items() if len(found.error)}
    # 2. rho and the scales from all episodes.
    rho, scale = _rho_and_scale([found.z**2 for found in by_n.values()])
    scales = {
        n: math.sqrt(float(np.mean(found.z[rho] ** 2)))
        for n, found in by_n.items()
        if enough(found.episode)
    }
    longest = by_n[max(by_n)]
    return Fitted(
        RHOS[rho],
        scale,
        scales,
        _coverage(list(by_n.values()), episodes),
        spearman(np.abs(longest.error), longest.sigma[rho]),
        episodes,
    )


def folds(episodes: int) -> int:
    """Into how many parts so many episodes are divided; number e is in e % parts.

    Every so manieth episode makes a part, so that no trend falls into one of them.
    """
    return min(FOLDS, episodes)


def enough(episode: Int[ndarray, " w"]) -> bool:
    """Whether windows come from as many episodes as a scale needs."""
    return len(np.unique(episode)) >= LEAST_EPISODES


def scale_for(n: int, scales: Mapping[int, float]) -> float:
    """c_n for any n: between two known ones by log n, beyond them the nearest.

    Args:
        n: steps of a return, 1 or more.
        scales: c_n by n, at least one.
    """
    known = sorted(scales)
    logs = [math.log(scales[one]) for one in known]
    return math.exp(np.interp(math.log(n), [math.log(one) for one in known], logs))


def scale_beside_noise(
    errors: Float64[ndarray, " n"], sigmas: Float64[ndarray, " n"], noise: float
) -> float:
    """c with which mean ``error^2 / (c^2 sigma^2 + noise)`` is 1; 0 if noise is enough.

    Args:
        errors: held out.
        sigmas: what was predicted of them, all positive.
        noise: variance that errors have whatever sigma is.
    """
    if noise <= 0:
        return math.sqrt(float(np.mean((errors / sigmas) ** 2)))

    def excess(scale: float) -> float:
        return float(np.mean(errors**2 / ((scale * sigmas) ** 2 + noise))) - 1

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, math.sqrt(float(np.mean((errors / sigmas) ** 2)))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def scale_of(
    real: RealSteps,
    gamma: float,
    correlation: Correlation = 0,
    ddof: int = 0,
    steps: Sequence[int] = STEPS,
) -> float:
    """c, by which a given kind of sigma is to be multiplied: the root of mean z^2.

    Every n has the same say, as in `fit`, which also chooses rho.

    Raises:
        UsageError: There are fewer than `LEAST_EPISODES`, or nothing to compare.
    """
    _require_episodes(real)
    squares = mean_z_squared(real, gamma, correlation, ddof, steps)
    return _rho_and_scale([np.array([[square]]) for square in squares.values()])[1]


class _Cut(NamedTuple):
    """Windows of n steps: where they are, and the errors of their returns."""

    error: Float64[ndarray, " w"]
    episode: Int[ndarray, " w"]
    steps: list[tuple[ndarray, ndarray]]
    """Rows and columns of each window's first, second, ... step."""
    deviations: Float64[ndarray, "K E _"]
    """Of the members, with zeros past the episodes' ends."""


class _ForEveryRho(NamedTuple):
    """The windows of one n with a sigma for each of `RHOS`."""

    error: Float64[ndarray, " w"]
    sigma: Float64[ndarray, "R w"]
    episode: Int[ndarray, " w"]

    @property
    def z(self) -> Float64[ndarray, "R w"]:
        """error / sigma."""
        return np.asarray(self.error / self.sigma)


def _require_episodes(real: RealSteps) -> int:
    """How many there are; refused if they are too few."""
    episodes = len(real.lengths)
    if episodes < LEAST_EPISODES:
        raise UsageError(
            f"There are {episodes} real episodes; a calibration needs at least "
            f"{LEAST_EPISODES}: evaluate more of them."
        )
    return episodes


def _one_step(
    real: RealSteps,
) -> tuple[Float64[ndarray, "E T"], Float64[ndarray, "K E T"]]:
    """One-step errors and the members' deviations, 0 past the episodes' ends."""
    E, T = real.member_q.shape[1:]
    if (
        real.real_q.shape != (E, T)
        or not len(real.lengths) == len(real.terminated) == E
    ):
        raise UsageError(
            f"member_q has shape {real.member_q.shape}, real_q {real.real_q.shape}, "
            f"lengths {real.lengths.shape} and terminated {real.terminated.shape}; "
            "they must be [K,E,T], [E,T], [E] and [E]."
        )
    inside = np.arange(T) < real.lengths[:, None]
    finite = np.isfinite(real.member_q).all(0) & np.isfinite(real.real_q)
    # NaN marks steps without a prediction: every window over one is left out later.
    unknown = np.where(finite, 0.0, np.nan)
    members = np.where(finite, real.member_q, 0.0).astype(np.float64) + unknown
    members = np.where(inside, members, 0.0)
    mean = members.mean(0)
    came = np.where(inside & finite, real.real_q, 0.0)
    return came - mean, members - mean


def _cut(
    error: Float64[ndarray, "E T"],
    deviations: Float64[ndarray, "K E T"],
    real: RealSteps,
    n: int,
    gamma: float,
) -> _Cut:
    """Every few steps a window of n, where it is whole."""
    if n < 1:
        raise UsageError(f"n is {n}; it must be 1 or more.")
    starts = np.arange(0, error.shape[1], max(1, n // OVERLAP))
    last = np.where(real.terminated, real.lengths - 1, real.lengths - n)
    episode, column = np.nonzero(starts[None] <= last[:, None])
    # Steps past the end of an episode that ended for good add nothing.
    padded = np.pad(error, [(0, 0), (0, n)])
    steps = [(episode, starts[column] + i) for i in range(n)]
    total = np.zeros(len(episode))
    for i, step in enumerate(steps):
        total += gamma**i * padded[step]
    return _Cut(total, episode, steps, np.pad(deviations, [(0, 0), (0, 0), (0, n)]))


def _for_every_rho(cut: _Cut, gamma: float, ddof: int) -> _ForEveryRho:
    local = (cut.deviations**2).sum(0) / max(len(cut.deviations) - ddof, 1)
    variance = np.stack([_correlated(local, cut.steps, gamma, rho) for rho in RHOS])
    sound = _sound(cut.error, variance[-1])
    sigma = np.sqrt(variance[:, sound])
    return _ForEveryRho(cut.error[sound], sigma, cut.episode[sound])


def _sound(
    error: Float64[ndarray, " w"], variance: Float64[ndarray, " w"]
) -> Bool[ndarray, " w"]:
    """Windows that have a z."""
    return np.asarray(np.isfinite(error) & np.isfinite(variance) & (variance > 0))


def _correlated(
    local: Float64[ndarray, "E T"],
    steps: Sequence[tuple[ndarray, ndarray]],
    gamma: float,
    rho: float,
) -> Float64[ndarray, " w"]:
    """`propagate_correlated` of every window at once."""
    std = np.sqrt(local)
    variance = shared = np.zeros(len(steps[0][0]))
    for step in reversed(steps):
        own, both = std[step], gamma * rho * shared
        variance = local[step] + 2 * own * both + gamma**2 * variance
        shared = own + both
    return np.asarray(variance)


def _coverage(by_n: Sequence[_ForEveryRho], episodes: int) -> float:
    """Mean over n of the share of errors in the corrected interval, part by part."""
    parts = folds(episodes)
    reach = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    inside: list[list[ndarray]] = [[] for _ in by_n]
    for part in range(parts):
        seen = [found.z[:, found.episode % parts != part] ** 2 for found in by_n]
        rho, scale = _rho_and_scale([z for z in seen if z.size])
        for found, z, covered in zip(by_n, seen, inside, strict=True):
            # A length that no other episode has is judged by what all lengths say.
            factor = math.sqrt(float(np.mean(z[rho]))) if z.size else scale
            own = found.episode % parts == part
            covered.append(np.abs(found.z[rho, own]) <= reach * factor)
    return float(np.mean([np.mean(np.concatenate(covered)) for covered in inside]))


def _rho_and_scale(z_squared: Sequence[Float64[ndarray, "R _"]]) -> tuple[int, float]:
    """Which rho makes z most alike over n, and the root of the level of mean z^2.

    Alike is least variance of the log of the median of z^2. The mean would prefer too
    small a rho where members are few: sigma^2 of a single step is then an estimate from
    few numbers, which alone raises mean z^2 of n = 1 to twice that of many steps
    (`expected_z_squared`), and a rho that is too small raises the others to meet it. A
    few wild windows do not move the median, either. Where only one n can be compared
    nothing speaks for any dependence, and rho is 0.

    Args:
        z_squared: for every n, z^2 of its windows for each of `RHOS`.
    """
    means = np.array([z.mean(1) for z in z_squared])
    if not means.size or means.min() == 0:
        raise UsageError(
            "There is nothing to calibrate: the members agree everywhere, predict "
            "without any error, or no prediction is finite."
        )
    # Where most errors are exactly 0 their median has no logarithm.
    tiny = np.finfo(np.float64).tiny
    sizes = np.log(np.maximum([np.median(z, axis=1) for z in z_squared], tiny))
    best = int(np.argmin(np.var(sizes, axis=0)))
    return best, math.sqrt(float(means[:, best].mean()))
