"""Recalibration: correct an uncertainty by errors that were held out.

Three corrections, from the most frugal to the one that assumes least:

- ``"scale"``: one factor, ``c^2 = mean z^2``, the maximum-likelihood scale of Gaussian
  errors. A few episodes are enough.
- ``"isotonic"``: a rising map from sigma to the size of the error, for a sigma that is
  right at one end and wrong at the other.
- ``"conformal"``: quantiles of abs(error)/sigma; its intervals hold whatever the shape
  of the errors, as long as new episodes resemble those it has seen.

Errors inside one episode depend on each other, so the unit of evidence is the episode:
the scale's confidence is bootstrapped over whole episodes, and the conformal quantile
counts episodes, each with total weight 1 (hierarchical conformal prediction).

After every change of model, value or policy the correction is to be fitted again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float64, Int
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.algorithm1 import to_numpy
from pombu.uncertainty.calibration import checked

KINDS = ("scale", "isotonic", "conformal")
LEAST_GROUPS = {"scale": 5, "isotonic": 5, "conformal": 9}
"""Episodes that each kind needs: a bootstrap over fewer than five says nothing, and a
conformal interval of 90 % needs 0.9 / (1 - 0.9)."""
BIN = 20
"""Errors per bin of the isotonic map, at least: the mean square of fewer is noise."""
LEAST_BINS = 3
DRAWS = 1000
"""Bootstrap samples for the scale's confidence."""
ONE_SIGMA = 2 * NormalDist().cdf(1.0) - 1
"""Share of a Gaussian within one standard deviation."""


@dataclass(frozen=True, eq=False)
class Recalibration:
    """A correction of sigma; made by `fit`, kept as plain arrays.

    Attributes:
        kind: ``"scale"``, ``"isotonic"`` or ``"conformal"``.
        scale: c, the root of mean z^2 of the errors it was fitted to.
        scale_low: lower end of c's 90 % interval, bootstrapped over episodes.
        scale_high: its upper end.
        groups: how many episodes it has seen.
        x: isotonic: sigmas, rising; conformal: sorted abs(error)/sigma; else empty.
        y: isotonic: corrected sigmas at x; conformal: share of a new episode's errors
            that may be counted on to lie at or below x; else empty.
    """

    kind: str
    scale: float
    scale_low: float
    scale_high: float
    groups: int
    x: Float64[ndarray, " m"]
    y: Float64[ndarray, " m"]

    @staticmethod
    def fit(
        errors: Any,
        sigmas: Any,
        groups: Any = None,
        kind: str = "scale",
        seed: int = 0,
    ) -> "Recalibration":
        """Fit a correction to held-out errors.

        Args:
            errors: real return less estimated Q; NumPy, JAX or PyTorch.
            sigmas: the uncertainties that were predicted for them, all positive.
            groups: which episode each error is of, any whole numbers; None takes every
                error for an episode of its own.
            kind: ``"scale"``, ``"isotonic"`` or ``"conformal"``.
            seed: what the bootstrap draws from.

        Raises:
            UsageError: for arrays of different lengths, a sigma that is zero or not
                finite, errors that are all 0, or fewer episodes than the kind needs.
        """
        if kind not in KINDS:
            raise UsageError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}.")
        error, sigma = checked(to_numpy(errors), to_numpy(sigmas))
        group, number = _groups(groups, len(error))
        if number < LEAST_GROUPS[kind]:
            raise UsageError(
                f"There are errors of {number} episodes; kind={kind!r} needs at least "
                f"{LEAST_GROUPS[kind]}: hold out more episodes."
            )
        if not error.any():
            raise UsageError(
                "Every error is 0, which would make every interval empty; give errors "
                "that were held out of the fit."
            )
        z = error / sigma
        low, high = _bootstrap(z, group, number, seed)
        x = y = np.zeros(0)
        if kind == "isotonic":
            x, y = _isotonic_map(error, sigma)
        elif kind == "conformal":
            x, y = _conformal_scores(np.abs(z), group, number)
        scale = math.sqrt(float(np.mean(z**2)))
        return Recalibration(kind, scale, low, high, number, x, y)

    def apply(self, sigmas: Any) -> Float64[ndarray, "..."]:
        """Corrected standard deviations, in the shape of ``sigmas``.

        For ``"conformal"`` it is half the width of the interval that holds 68 %, which
        for a Gaussian is one standard deviation.
        """
        sigma = _positive(sigmas)
        if self.kind == "scale":
            return np.asarray(self.scale * sigma)
        if self.kind == "conformal":
            return np.asarray(self.quantile(ONE_SIGMA) * sigma)
        inside = np.interp(sigma, self.x, self.y)
        # Outside of what was seen the nearest factor goes on, so no map ends flat.
        below = sigma * (self.y[0] / self.x[0])
        above = sigma * (self.y[-1] / self.x[-1])
        known = np.where(sigma < self.x[0], below, inside)
        return np.asarray(np.where(sigma > self.x[-1], above, known))

    def interval(
        self, q: Any, sigmas: Any, level: float = 0.9
    ) -> tuple[Float64[ndarray, "..."], Float64[ndarray, "..."]]:
        """Lower and upper ends of intervals that hold a share ``level`` of the truth.

        Args:
            q: estimated Q.
            sigmas: their uncertainties before correction, one per q.
            level: in (0, 1).
        """
        require_level(level)
        centre = np.asarray(to_numpy(q), np.float64)
        sigma = _positive(sigmas)
        if centre.shape != sigma.shape:
            raise UsageError(
                f"q has shape {centre.shape} and sigmas {sigma.shape}; they must be "
                "the same."
            )
        if self.kind == "conformal":
            half = self.quantile(level) * sigma
        else:
            half = NormalDist().inv_cdf(0.5 + level / 2) * self.apply(sigma)
        return np.asarray(centre - half), np.asarray(centre + half)

    def quantile(self, level: float) -> float:
        """The conformal factor q: Q +- q sigma holds a share ``level``.

        Raises:
            UsageError: if it was not fitted as ``"conformal"``, or if the level asks
                for more episodes than it has seen: level / (1 - level).
        """
        require_level(level)
        if self.kind != "conformal":
            raise UsageError(
                f"This correction is of kind {self.kind!r}; only 'conformal' has "
                "quantiles of its own."
            )
        # Rounding must not ask for one score more.
        enough = np.flatnonzero(self.y >= level - 1e-12)
        if not len(enough):
            most = self.groups / (self.groups + 1)
            raise UsageError(
                f"level is {level}; {self.groups} episodes support levels up to "
                f"{most:.3f}: hold out more episodes."
            )
        return float(self.x[enough[0]])

    def to_arrays(self) -> dict[str, ndarray]:
        """The whole state as arrays, for a checkpoint."""
        numbers = [self.scale, self.scale_low, self.scale_high, self.groups]
        return {
            "kind": np.array(KINDS.index(self.kind)),
            "numbers": np.array(numbers, np.float64),
            "x": self.x,
            "y": self.y,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any]) -> "Recalibration":
        """What `to_arrays` wrote."""
        scale, low, high, groups = (float(n) for n in np.asarray(arrays["numbers"]))
        return Recalibration(
            KINDS[int(arrays["kind"])],
            scale,
            low,
            high,
            int(groups),
            np.asarray(arrays["x"], np.float64),
            np.asarray(arrays["y"], np.float64),
        )


def pool_adjacent_violators(
    y: Float64[ndarray, " n"], weights: Float64[ndarray, " n"]
) -> Float64[ndarray, " n"]:
    """The rising sequence that is nearest to ``y`` in weighted squares.

    Neighbours that fall are pooled into their weighted mean until nothing falls.
    """
    means: list[float] = []
    masses: list[float] = []
    lengths: list[int] = []
    for value, weight in zip(y, weights, strict=True):
        mean, mass, length = float(value), float(weight), 1
        while means and means[-1] >= mean:
            before, mass_before = means.pop(), masses.pop()
            mean = (mean * mass + before * mass_before) / (mass + mass_before)
            mass += mass_before
            length += lengths.pop()
        means.append(mean)
        masses.append(mass)
        lengths.append(length)
    return np.repeat(np.array(means), lengths)


def require_level(level: float) -> None:
    """Refuse a level that is no share."""
    if not 0.0 < level < 1.0:
        raise UsageError(f"level is {level}; it must lie in (0, 1).")


def _groups(groups: Any, count: int) -> tuple[Int[ndarray, " n"], int]:
    """For each error the number of its episode, from 0, and how many there are."""
    if groups is None:
        return np.arange(count), count
    given = to_numpy(groups).reshape(-1)
    if len(given) != count:
        raise UsageError(
            f"groups has {len(given)} entries and errors {count}; give the episode of "
            "every error."
        )
    names, index = np.unique(given, return_inverse=True)
    return index.reshape(-1), len(names)


def _bootstrap(
    z: Float64[ndarray, " n"], group: Int[ndarray, " n"], number: int, seed: int
) -> tuple[float, float]:
    """90 % interval of root mean z^2 over resampled episodes."""
    squares = np.bincount(group, z**2, number)
    counts = np.bincount(group, minlength=number)
    rng = np.random.default_rng(seed)
    # In parts, because the draws of many episodes would not fit into memory at once.
    part = max(1, 2**20 // number)
    means = np.concatenate(
        [
            squares[drawn].sum(1) / counts[drawn].sum(1)
            for begin in range(0, DRAWS, part)
            for drawn in [rng.integers(number, size=(min(part, DRAWS - begin), number))]
        ]
    )
    low, high = np.sqrt(np.quantile(means, [0.05, 0.95]))
    return float(low), float(high)


def _isotonic_map(
    error: Float64[ndarray, " n"], sigma: Float64[ndarray, " n"]
) -> tuple[Float64[ndarray, " m"], Float64[ndarray, " m"]]:
    """Root mean squares of sigma and, rising with it, of the error, bin by bin."""
    bins = len(error) // BIN
    if bins < LEAST_BINS:
        raise UsageError(
            f"There are {len(error)} errors; kind='isotonic' needs at least "
            f"{BIN * LEAST_BINS}: hold out more, or use kind='scale'."
        )
    parts = np.array_split(np.argsort(sigma, kind="stable"), bins)
    x = np.array([np.sqrt(np.mean(sigma[part] ** 2)) for part in parts])
    squares = np.array([np.mean(error[part] ** 2) for part in parts])
    rising = pool_adjacent_violators(squares, np.array([float(len(p)) for p in parts]))
    # Errors of exactly 0 at the low end would give intervals without width there.
    rising = np.maximum(rising, rising[rising > 0][0])
    # Bins of equal sigma, as many as there are, say one thing together.
    x, first = np.unique(x, return_index=True)
    shares = np.diff(np.append(first, bins))
    return x, np.sqrt(np.add.reduceat(rising, first) / shares)


def _conformal_scores(
    scores: Float64[ndarray, " n"], group: Int[ndarray, " n"], number: int
) -> tuple[Float64[ndarray, " n"], Float64[ndarray, " n"]]:
    """Sorted scores and their cumulative weights; the new episode has the rest."""
    order = np.argsort(scores, kind="stable")
    sizes = np.bincount(group, minlength=number)
    weights = 1.0 / (sizes[group[order]] * (number + 1))
    return scores[order], np.cumsum(weights)


def _positive(sigmas: Any) -> Float64[ndarray, "..."]:
    sigma = np.asarray(to_numpy(sigmas), np.float64)
    wrong = np.argwhere(~(np.isfinite(sigma) & (sigma > 0)))
    if len(wrong):
        index = tuple(int(i) for i in wrong[0])
        where = f"[{', '.join(map(str, index))}]" if index else ""
        raise UsageError(
            f"sigmas{where} is {sigma[index]}; it must be positive and finite."
        )
    return sigma
