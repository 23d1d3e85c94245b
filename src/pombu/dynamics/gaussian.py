"""An ensemble of Gaussian networks, as in PETS (Chua et al., 2018).

Each member gives the mean and the variance of the state change (and of the reward,
where it is learned). The log-variance is kept between two learned bounds by soft
limits, so that it stays sensible where there is no data. A member learns from its own
bootstrap sample by its own single-threaded program; members take turns on the cores.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.dynamics.config import GaussianModelConfig, Precision
from pombu.dynamics.ensemble import Layers, MemberLoss, Members, Samples, matmul
from pombu.dynamics.fit import Lesson, fit_members, row_batches
from pombu.dynamics.model import network_sizes
from pombu.envs import Task
from pombu.nn import adam
from pombu.parallel import Workers

_LARGEST_LOG_VARIANCE = 0.5
_LEAST_LOG_VARIANCE = -10.0


class GaussianEnsemble(Members):
    """Gaussian members: parameters, stacked on the first axis."""

    layers: Layers
    largest: Float[Array, "*k y"]
    """Upper bounds of the log-variance."""
    least: Float[Array, "*k y"]
    """Lower bounds."""

    @property
    def count(self) -> int:
        """K, of a stack."""
        return self.largest.shape[0]

    def outputs(
        self, x: Float[Array, "*k n i"], precision: Precision
    ) -> tuple[Float[Array, "*k n y"], Float[Array, "*k n y"]]:
        """Each member's mean and log standard deviation for its own rows."""
        mean, log_variance = predict_gaussian(self, x, precision)
        return mean, 0.5 * log_variance

    def unstack(self) -> tuple["GaussianEnsemble", ...]:
        """Each member of a stack in arrays of its own."""
        return tuple(
            jax.tree.map(lambda leaf, k=k: leaf[k], self) for k in range(self.count)
        )


def init_gaussian(
    key: PRNGKeyArray, members: int, inputs: int, outputs: int, hidden: Sequence[int]
) -> GaussianEnsemble:
    """Truncated normal weights with deviation 1 / (2 sqrt(inputs)), zero biases."""
    sizes = (inputs, *hidden, 2 * outputs)
    weights = []
    for number, (i, o) in enumerate(pairwise(sizes)):
        layer_key = jax.random.fold_in(key, number)
        drawn = jax.random.truncated_normal(layer_key, -2.0, 2.0, (members, i, o))
        weights.append(drawn / (2.0 * math.sqrt(i)))
    biases = tuple(jnp.zeros((members, size)) for size in sizes[1:])
    return GaussianEnsemble(
        Layers(tuple(weights), biases),
        jnp.full((members, outputs), _LARGEST_LOG_VARIANCE),
        jnp.full((members, outputs), _LEAST_LOG_VARIANCE),
    )


def fresh_gaussian(
    key: PRNGKeyArray, task: Task, config: GaussianModelConfig
) -> GaussianEnsemble:
    """An untrained ensemble of the task's sizes."""
    sizes = network_sizes(task, config.reward)
    return init_gaussian(key, config.members, *sizes, config.hidden)


def predict_gaussian(
    ensemble: GaussianEnsemble,
    x: Float[Array, "*k n i"],
    precision: Precision = "float32",
) -> tuple[Float[Array, "*k n y"], Float[Array, "*k n y"]]:
    """Mean and log-variance of every member, or of a single one, for its rows `x`."""
    weights, biases = ensemble.layers.weights, ensemble.layers.biases
    last = len(weights) - 1
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = matmul(x, weight, precision) + bias[..., None, :]
        if number < last:
            x = jax.nn.swish(x)
    mean, free = jnp.split(x, 2, -1)
    largest, least = ensemble.largest[..., None, :], ensemble.least[..., None, :]
    log_variance = largest - jax.nn.softplus(largest - free)
    log_variance = least + jax.nn.softplus(log_variance - least)
    return mean, log_variance


def gaussian_loss(
    member: GaussianEnsemble,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    config: GaussianModelConfig,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What a member minimises, and the negative log-likelihood in it.

    The likelihood lacks its factor 1/2 and its constant, as in the published code.
    """
    mean, log_variance = predict_gaussian(member, inputs, config.precision)
    square = (mean - targets) ** 2
    likelihood = jnp.mean(square * jnp.exp(-log_variance) + log_variance)
    bounds = jnp.sum(member.largest) - jnp.sum(member.least)
    layers = member.layers.weights
    last = len(config.weight_decay) - 1
    decay = sum(
        0.5 * config.weight_decay[min(number, last)] * jnp.sum(weight**2)
        for number, weight in enumerate(layers)
    )
    return likelihood + config.bound_weight * bounds + decay, likelihood


class Likelihood(MemberLoss):
    """Negative log-likelihood with decay of the weights and tight bounds."""

    config: GaussianModelConfig = eqx.field(static=True)

    def of_rows(self, member: GaussianEnsemble, samples: Samples) -> Float[Array, " b"]:
        """The negative log-likelihood of each row."""
        inputs, targets, rows = samples
        mean, log_variance = predict_gaussian(
            member, inputs[rows], self.config.precision
        )
        square = (mean - targets[rows]) ** 2
        return jnp.mean(square * jnp.exp(-log_variance) + log_variance, -1)

    def objective(
        self, member: GaussianEnsemble, samples: Samples
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """What is minimised, and the mean negative log-likelihood in it."""
        inputs, targets, rows = samples
        return gaussian_loss(member, inputs[rows], targets[rows], self.config)


def gaussian_adam(ensemble: GaussianEnsemble) -> Any:
    """Adam's memory for every member, before the first step."""
    return jax.vmap(adam().init)(ensemble)


def fit_gaussian(
    ensemble: GaussianEnsemble,
    optimiser: Any,
    inputs: np.ndarray,
    targets: np.ndarray,
    config: GaussianModelConfig,
    capacity: int,
    seed: tuple[int, ...],
    workers: Workers,
) -> tuple[GaussianEnsemble, Any, np.ndarray]:
    """Train every member on a bootstrap sample of its own.

    Args:
        ensemble: where to start from.
        optimiser: Adam's memory of every member.
        inputs: [n, i] normalised states and actions.
        targets: [n, y] state changes (and rewards).
        config: sizes, rates and how long to train.
        capacity: rows to pad the arrays to, so that shapes stay the same.
        seed: what the samples and their order are drawn from.
        workers: threads to share the members between.

    Returns:
        The ensemble, Adam's memory, and each member's last negative log-likelihood.
    """
    while capacity < len(inputs):
        capacity *= 2
    total = config.epochs * -(-len(inputs) // config.batch_size)
    total = total if config.max_steps is None else min(total, config.max_steps)

    def lesson(number: int) -> Lesson:
        rng = np.random.default_rng([*seed, number])
        sample = rng.integers(0, len(inputs), len(inputs))
        batches = row_batches(rng, sample, config.batch_size)
        return Lesson(batches, Likelihood(config), None, total, total, total)

    lessons = [lesson(number) for number in range(ensemble.count)]
    fitted = fit_members(
        ensemble, optimiser, lessons, inputs, targets, config, capacity, workers
    )
    return fitted.members, fitted.optimiser, np.asarray(fitted.losses, np.float32)
