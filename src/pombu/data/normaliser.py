"""Running means and standard deviations over all real data.

Moments are kept in float64 on the host and merged batch by batch (Chan's formula), so
the order of magnitude of the data never hurts the variance. What jitted code sees is
the float32 `Normaliser` made from them.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_FLOOR = 1e-8


class Moments(eqx.Module):
    """Count, mean and sum of squared deviations per dimension."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviation; 1 where nothing was seen or nothing varied."""
        std = np.sqrt(self.squares / np.maximum(self.count, 1.0))
        return np.where(std > _FLOOR, std, 1.0)


def empty_moments(dim: int) -> Moments:
    """Moments of no data: mean 0, std 1."""
    return Moments(np.zeros(()), np.zeros(dim), np.zeros(dim))


def merge(moments: Moments, rows: np.ndarray) -> Moments:
    """Add the rows of `rows [n, dim]`."""
    rows = np.asarray(rows, np.float64)
    count = float(len(rows))
    if count == 0:
        return moments
    total = moments.count + count
    mean = rows.mean(0)
    gap = mean - moments.mean
    return Moments(
        np.asarray(total),
        moments.mean + gap * (count / total),
        moments.squares
        + ((rows - mean) ** 2).sum(0)
        + gap**2 * (moments.count * count / total),
    )


class Normaliser(eqx.Module):
    """Affine map to zero mean and unit standard deviation."""

    mean: Float[Array, " d"]
    std: Float[Array, " d"]

    @staticmethod
    def of(moments: Moments) -> "Normaliser":
        """The float32 map that jitted code uses."""
        return Normaliser(
            jnp.asarray(moments.mean, jnp.float32),
            jnp.asarray(moments.std, jnp.float32),
        )

    def normalise(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """To zero mean and unit standard deviation."""
        return (x - self.mean) / self.std

    def restore(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """Back to the data's own units."""
        return x * self.std + self.mean
