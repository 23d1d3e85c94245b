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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.dynamics.config import HomoscedasticModelConfig, Precision
from pombu.dynamics.ensemble import (
    Form,
    Layers,
    MemberLoss,
    Members,
    Samples,
    init_ensemble,
    materialise,
    predict,
)
from pombu.dynamics.fit import Lesson, fit_members, held_out, row_batches
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

    def lesson(number: int) -> Lesson:
        batches = row_batches(generators[number], learned[number], config.batch_size)
        return Lesson(batches, loss, None, steps, steps, steps)

    lessons = [lesson(number) for number in range(members.count)]
    fitted = fit_members(
        members.layers, None, lessons, inputs, targets, config, capacity, workers
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
