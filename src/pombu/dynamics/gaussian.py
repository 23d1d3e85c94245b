"""An ensemble of Gaussian networks, as in PETS (Chua et al., 2018).

Each member gives the mean and the variance of the state change (and of the reward,
where it is learned). The log-variance is kept between two learned bounds by soft
limits, so that it stays sensible where there is no data. A member learns from its own
bootstrap sample by its own single-threaded program; members take turns on the cores.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.dynamics.config import GaussianModelConfig, Precision
from pombu.dynamics.ensemble import Layers, Members, matmul
from pombu.dynamics.fit import STEPS_PER_CALL, falling_rates, row_batches
from pombu.dynamics.model import network_sizes
from pombu.envs import Task
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


def gaussian_adam(ensemble: GaussianEnsemble) -> Any:
    """Adam's memory for every member, before the first step."""
    return jax.vmap(optax.scale_by_adam().init)(ensemble)


@partial(jit, static_argnames="config")
def _train(
    member: GaussianEnsemble,
    optimiser: Any,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, "s b"],
    rates: Float[Array, " s"],
    steps: Int[Array, ""],
    config: GaussianModelConfig,
) -> tuple[GaussianEnsemble, Any, Float[Array, ""]]:
    """Take `steps` gradient steps (at most the rows given), of these sizes."""
    transform = optax.scale_by_adam()
    gradient_of = jax.grad(gaussian_loss, has_aux=True)

    def step(number: Array, carry: Any) -> Any:
        member, optimiser, _ = carry
        batch = rows[number]
        gradient, loss = gradient_of(member, inputs[batch], targets[batch], config)
        direction, optimiser = transform.update(gradient, optimiser)
        member = jax.tree.map(lambda w, d: w - rates[number] * d, member, direction)
        return member, optimiser, loss

    trained: tuple[GaussianEnsemble, Any, Array] = jax.lax.fori_loop(
        0, steps, step, (member, optimiser, jnp.zeros(()))
    )
    return trained


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
    padding = ((0, capacity - len(inputs)), (0, 0))
    rows_in = jnp.asarray(np.pad(inputs, padding), jnp.float32)
    rows_out = jnp.asarray(np.pad(targets, padding), jnp.float32)
    total = config.epochs * -(-len(inputs) // config.batch_size)
    total = total if config.max_steps is None else min(total, config.max_steps)
    sizes = (config.learning_rate, config.final_learning_rate)

    def train(number: int) -> tuple[GaussianEnsemble, Any, Array]:
        rng = np.random.default_rng([*seed, number])
        stream = row_batches(
            rng, rng.integers(0, len(inputs), len(inputs)), config.batch_size
        )
        member, memory = jax.tree.map(lambda leaf: leaf[number], (ensemble, optimiser))
        loss = jnp.zeros(())
        for done in range(0, total, STEPS_PER_CALL):
            steps = min(STEPS_PER_CALL, total - done)
            rows = [next(stream) for _ in range(steps)]
            rows += [rows[-1]] * (STEPS_PER_CALL - steps)
            batches = (np.stack(rows), falling_rates(*sizes, done, total))
            member, memory, loss = _train(
                member, memory, rows_in, rows_out, *batches, steps, config
            )
        return member, memory, loss

    trained = workers.map(train, range(ensemble.count))
    fitted, memory, losses = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trained)
    return fitted, memory, np.asarray(losses)
