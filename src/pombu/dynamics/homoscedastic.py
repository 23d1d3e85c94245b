"""Gaussian members with one noise scale per output: their step, and their fit.

A member gives the mean of the normalised state change (and reward, where it is
learned); its noise is the same everywhere, one scale per output. In a fit the scale
that makes a batch most likely is the root mean square of its errors. Put into the
Gaussian's likelihood it leaves the sum over outputs of log(RMS error), which needs no
parameter for the scale and weighs outputs as the likelihood does. After the fit the
scale is taken from rows that the member held out.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.dynamics.config import HomoscedasticModelConfig, Precision
from pombu.dynamics.ensemble import (
    Form,
    Layers,
    Members,
    init_ensemble,
    materialise,
    predict,
)
from pombu.dynamics.model import network_sizes
from pombu.envs import Task
from pombu.parallel import Workers, jit

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


def likelihood_loss(
    layers: Layers,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    precision: Precision = "float32",
) -> Float[Array, ""]:
    """Sum over outputs of log(RMS error): -log-likelihood per row at its best scale."""
    error = predict(layers, inputs, precision) - targets
    square = jnp.mean(error**2, 0) + _LEAST_ERROR**2
    return 0.5 * jnp.sum(jnp.log(square))


@partial(jit, static_argnames="config")
def _train(
    layers: Layers,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, " n"],
    count: Int[Array, ""],
    key: PRNGKeyArray,
    steps: Int[Array, ""],
    config: HomoscedasticModelConfig,
) -> tuple[Layers, Float[Array, ""]]:
    """Gradient steps of one member on its training rows, by a falling rate."""
    transform = optax.scale_by_adam()

    def step(number: Array, carry: Any) -> Any:
        layers, optimiser, total = carry
        own = jax.random.fold_in(key, number)
        batch = rows[jax.random.randint(own, (config.batch_size,), 0, count)]
        loss, gradient = jax.value_and_grad(likelihood_loss)(
            layers, inputs[batch], targets[batch], config.precision
        )
        direction, optimiser = transform.update(gradient, optimiser)
        start, end = config.learning_rate, config.final_learning_rate
        rate = start + (end - start) * number / steps
        kept = 1.0 - rate * config.weight_decay
        layers = jax.tree.map(lambda w, d: kept * w - rate * d, layers, direction)
        return layers, optimiser, total + loss

    layers, _, total = jax.lax.fori_loop(
        0, steps, step, (layers, transform.init(layers), jnp.zeros(()))
    )
    return layers, total / jnp.maximum(steps, 1)


@partial(jit, static_argnames="precision")
def _residual(
    layers: Layers,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, " v"],
    count: Int[Array, ""],
    precision: Precision,
) -> Float[Array, " y"]:
    """Root mean squared error of every output over the first `count` of the rows."""
    error = predict(layers, inputs[rows], precision) - targets[rows]
    counts = (jnp.arange(len(rows)) < count)[:, None]
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
    key: PRNGKeyArray,
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
        seed: which held-out rows are looked at.
        key: which rows a gradient step learns from.
        workers: threads to share the members between.
    """
    while capacity < len(inputs):
        capacity *= 2
    padding = ((0, capacity - len(inputs)), (0, 0))
    rows_in = jnp.asarray(np.pad(inputs, padding), jnp.float32)
    rows_out = jnp.asarray(np.pad(targets, padding), jnp.float32)
    steps = math.ceil(config.steps_per_new_row * new_rows)
    steps = min(max(steps, config.min_steps), config.max_steps)

    def train(number: int) -> tuple[Layers, Array, Array]:
        learned = np.flatnonzero(~validation[number])
        judges = np.flatnonzero(validation[number])
        # Where episodes are too short to split, a member is judged by what it learns.
        judges = judges if len(judges) else learned
        rng = np.random.default_rng([*seed, number])
        judges = rng.permutation(judges)[: config.validation_rows]
        layers = jax.tree.map(lambda leaf: leaf[number], members.layers)
        layers, loss = _train(
            layers,
            rows_in,
            rows_out,
            _padded(learned, capacity),
            len(learned),
            jax.random.fold_in(key, number),
            steps,
            config,
        )
        std = _residual(
            layers,
            rows_in,
            rows_out,
            _padded(judges, config.validation_rows),
            len(judges),
            config.precision,
        )
        return layers, jnp.maximum(std, _LEAST_ERROR), loss

    trained = workers.map(train, range(members.count))
    layers, std, loss = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trained)
    return HomoscedasticMembers(layers, jnp.log(std)), {
        "model_loss": float(jnp.mean(loss)),
        "model_noise": float(jnp.mean(std)),
        "validation_loss": float(jnp.mean(std**2)),
        "fit_steps": float(steps),
    }


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    return np.pad(rows.astype(np.int32), (0, size - len(rows)))
