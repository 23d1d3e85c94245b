"""A Bayesian network by its last layer: Laplace's approximation, sampled into members.

The last layer of a network trained by squared error is a linear regression on the
features below it. Given those features its posterior is Gaussian in closed form, and K
samples of its weights are K members for `pombu.uncertainty.estimate`. They are samples
of the posterior, so pass ``ddof=1``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.arrays import like, to_numpy
from pombu.uncertainty.ensembles import Member


@dataclass(frozen=True, eq=False)
class LastLayerLaplace:
    """Gaussian posterior of the last layer's weights, independent per output.

    The weights of output i have mean ``mean[:, i]`` and covariance
    ``noise_std[i]**2 * factor @ factor.T``.
    """

    mean: Float64[ndarray, "F O"]
    factor: Float64[ndarray, "F F"]
    noise_std: Float64[ndarray, " O"]

    def sample(self, count: int, seed: int = 0) -> Float64[ndarray, "count F O"]:
        """Draw weights of the last layer."""
        if count < 1:
            raise UsageError(f"count is {count}; it must be 1 or more.")
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(count, *self.mean.shape))
        return np.asarray(self.mean + (self.factor @ noise) * self.noise_std)

    def members(
        self, features: Callable[[Any, Any], Any], count: int, seed: int = 0
    ) -> list[Member]:
        """Members that predict ``state + features(state, action) @ weights``."""
        return [_member(features, weights) for weights in self.sample(count, seed)]


def last_layer_laplace(
    features: Any,
    targets: Any,
    prior_precision: float | int = 1.0,
    noise_std: Any = None,
) -> LastLayerLaplace:
    """The last layer's posterior from its inputs and the state changes to predict.

    Args:
        features: outputs of the layer below on the training data, ``[n, F]``; append a
            column of ones for a bias.
        targets: state changes, ``[n, O]``.
        prior_precision: precision of the zero-mean prior on the weights, in units of
            the noise's precision.
        noise_std: standard deviation of the noise per output; by default that of the
            residuals at the posterior mean.
    """
    X, Y = to_numpy(features).astype(np.float64), to_numpy(targets).astype(np.float64)
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or len(X) == 0:
        raise UsageError(
            f"features has shape {X.shape} and targets {Y.shape}; they must be [n,F] "
            "and [n,O] with the same n."
        )
    for name, array in (("features", X), ("targets", Y)):
        if not np.isfinite(array).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise UsageError(f"{name}{list(index)} is not finite.")
    if not prior_precision > 0:
        raise UsageError(f"prior_precision is {prior_precision}; it must be positive.")
    precision = X.T @ X + prior_precision * np.eye(X.shape[1])
    mean = np.linalg.solve(precision, X.T @ Y)
    if noise_std is None:
        noise_std = np.sqrt(np.mean((Y - X @ mean) ** 2, axis=0))
    noise = np.broadcast_to(np.asarray(noise_std, np.float64), Y.shape[1:]).copy()
    # precision = L L^T, so L^-T L^-1 is its inverse.
    factor = np.linalg.inv(np.linalg.cholesky(precision)).T
    return LastLayerLaplace(mean, factor, noise)


def _member(features: Callable[[Any, Any], Any], weights: ndarray) -> Member:
    def member(states: Any, actions: Any) -> Any:
        changes = to_numpy(features(states, actions)) @ weights
        return states + like(changes, states)

    return member
