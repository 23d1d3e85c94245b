"""Gaussian members, with a learned variance or one noise scale per output.

`GaussianEnsemble` is that of PETS (Chua et al., 2018). Each member gives the mean and
the variance of the state change (and of the reward, where it is learned). The
log-variance is kept between two learned bounds by soft limits, so that it stays
sensible where there is no data. A member learns from its own bootstrap sample by its
own single-threaded program; members take turns on the cores.

`HomoscedasticMembers` give the mean; their noise is the same everywhere, one scale per
output. In a fit the scale that makes a batch most likely is the root mean square of its
errors. Put into the Gaussian's likelihood it leaves the sum over outputs of log(RMS
error), which needs no parameter for the scale and weighs outputs as the likelihood
does. After the fit the scale is taken from rows that the member held out.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.dynamics.config import (
    GaussianModelConfig,
    HomoscedasticModelConfig,
    Precision,
)
from pombu.dynamics.ensemble import (
    Form,
    Layers,
    MemberLoss,
    Members,
    Samples,
    init_ensemble,
    materialise,
    matmul,
    predict,
)
from pombu.dynamics.fit import FitPlan, fit_members, held_out, row_batches
from pombu.dynamics.model import network_sizes
from pombu.envs import Task
from pombu.nn import adam
from pombu.parallel import Workers, jit

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

    def plan(number: int) -> FitPlan:
        rng = np.random.default_rng([*seed, number])
        sample = rng.integers(0, len(inputs), len(inputs))
        batches = row_batches(rng, sample, config.batch_size)
        return FitPlan(batches, Likelihood(config), None, total, total, total)

    plans = [plan(number) for number in range(ensemble.count)]
    fitted = fit_members(
        ensemble, optimiser, plans, inputs, targets, config, capacity, workers
    )
    return fitted.members, fitted.optimiser, np.asarray(fitted.losses, np.float32)


SMOOTH = Form("silu", "layer")
_LEAST_ERROR = 1e-3
"""Noise scales are at least this, in standard deviations of the output."""


class HomoscedasticMembers(Members):
    """Gaussian members with the same noise everywhere, stacked on the first axis."""

    layers: Layers
    log_std: Float[Array, "*k y"]
    """Of each output, in normalised units."""

    @property
    def count(self) -> int:
        """K, of a stack."""
        return self.log_std.shape[0]

    def outputs(
        self, x: Float[Array, "*k n i"], precision: Precision
    ) -> tuple[Float[Array, "*k n y"], Float[Array, "*k 1 y"]]:
        """Each member's mean and log standard deviation for its own rows."""
        return predict(self.layers, x, precision), self.log_std[..., None, :]

    def unstack(self) -> tuple["HomoscedasticMembers", ...]:
        """Each member of a stack in arrays of its own."""
        return tuple(
            jax.tree.map(lambda leaf, k=k: leaf[k], self) for k in range(self.count)
        )


def fresh_homoscedastic(
    key: PRNGKeyArray, task: Task, config: HomoscedasticModelConfig
) -> HomoscedasticMembers:
    """Untrained members of the task's sizes, as noisy as their outputs are spread."""
    inputs, outputs = network_sizes(task, config.reward)
    layers = materialise(
        init_ensemble(key, config.members, inputs, outputs, config.hidden, SMOOTH)
    )
    return HomoscedasticMembers(layers, jnp.zeros((config.members, outputs)))


class ProfileLikelihood(MemberLoss):
    """Negative log-likelihood with every output's noise at its best for the rows."""

    precision: Precision = eqx.field(static=True)

    def of_rows(self, member: Layers, samples: Samples) -> Float[Array, " b"]:
        """The mean squared error of each row."""
        return jnp.mean(self._errors(member, samples) ** 2, -1)

    def objective(
        self, member: Layers, samples: Samples
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The sum over outputs of log(RMS error), and the mean squared error."""
        square = jnp.mean(self._errors(member, samples) ** 2, 0)
        loss = 0.5 * jnp.sum(jnp.log(square + _LEAST_ERROR**2))
        return loss, jnp.mean(square)

    def _errors(self, member: Layers, samples: Samples) -> Float[Array, "b y"]:
        inputs, targets, rows = samples
        return predict(member, inputs[rows], self.precision) - targets[rows]


@partial(jit, static_argnames="precision")
def _residual(
    layers: Layers,
    inputs: Float[Array, "v i"],
    targets: Float[Array, "v y"],
    count: Int[Array, ""],
    precision: Precision,
) -> Float[Array, " y"]:
    """Root mean squared error of every output over the first `count` of the rows."""
    error = predict(layers, inputs, precision) - targets
    counts = (jnp.arange(len(inputs)) < count)[:, None]
    return jnp.sqrt(jnp.sum(jnp.where(counts, error**2, 0.0), 0) / count)


def fit_homoscedastic(
    members: HomoscedasticMembers,
    inputs: np.ndarray,
    targets: np.ndarray,
    validation: np.ndarray,
    new_rows: int,
    config: HomoscedasticModelConfig,
    capacity: int,
    seed: tuple[int, ...],
    workers: Workers,
) -> tuple[HomoscedasticMembers, dict[str, float]]:
    """Train every member on its rows, then measure its noise on those held out.

    Args:
        members: where to start from.
        inputs: [n, i] normalised states and actions.
        targets: [n, y] normalised state changes (and rewards).
        validation: [K, n] rows that each member holds out.
        new_rows: rows that are new since the last fit, which bound its length.
        config: rates and how long to train.
        capacity: rows to pad the arrays to, so that shapes stay the same.
        seed: what the order of the rows is drawn from.
        workers: threads to share the members between.
    """
    while capacity < len(inputs):
        capacity *= 2
    steps = math.ceil(config.steps_per_new_row * new_rows)
    steps = min(max(steps, config.min_steps), config.max_steps)
    loss = ProfileLikelihood(config.precision)
    generators = [np.random.default_rng([*seed, k]) for k in range(members.count)]
    learned = [np.flatnonzero(~held) for held in validation]

    def plan(number: int) -> FitPlan:
        batches = row_batches(generators[number], learned[number], config.batch_size)
        return FitPlan(batches, loss, None, steps, steps, steps)

    plans = [plan(number) for number in range(members.count)]
    fitted = fit_members(
        members.layers, None, plans, inputs, targets, config, capacity, workers
    )

    def noise(number: int) -> Float[Array, " y"]:
        held = np.flatnonzero(validation[number])
        # Where episodes are too short to split, a member is judged by what it learns.
        judges = held if len(held) else learned[number]
        rows, count = held_out(generators[number], judges, config.validation_rows)
        own = jax.tree.map(lambda leaf: leaf[number], fitted.members)
        data = (jnp.asarray(array[rows], jnp.float32) for array in (inputs, targets))
        found: Array = _residual(own, *data, count, config.precision)
        return found

    std = jnp.maximum(jnp.stack([*map(noise, range(members.count))]), _LEAST_ERROR)
    return HomoscedasticMembers(fitted.members, jnp.log(std)), {
        "model_noise": float(jnp.mean(std)),
        "model_loss": float(fitted.losses.mean()),
        "validation_loss": float(jnp.mean(std**2)),
        "fit_steps": float(steps),
    }
