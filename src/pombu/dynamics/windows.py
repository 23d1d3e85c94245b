"""The error of a member several steps ahead, over windows of consecutive real steps."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pombu.data import Normaliser, moved
from pombu.dynamics.config import ModelConfig, Precision
from pombu.dynamics.ensemble import (
    Ensemble,
    MemberLoss,
    Samples,
    materialise,
    predict,
)


class SeveralSteps(MemberLoss):
    """The error several steps ahead, over windows of consecutive real steps.

    From a real state the member follows the real actions through its own predictions.
    At each step the predicted state is compared with the real one, in the units in
    which changes are learned; the loss is the mean over steps of the squared error.
    Noise on observations is in the targets of one step as much as in its input, which
    pulls a fit of one step towards the mean; looked at from further away, it is a
    smaller part. A learned reward counts with the error of each step alone.
    """

    counts: Bool[Array, "n h"]
    """Which steps of the window that begins in each row are looked at."""
    observation: Normaliser
    delta: Normaliser
    """Units of the change, by which a prediction is fed back."""
    precision: Precision = eqx.field(static=True)

    def of_rows(self, member: Ensemble, samples: Samples) -> Float[Array, " b"]:
        """The loss of the windows that begin in these rows."""
        inputs, targets, rows = samples
        layers = materialise(member)
        dim, frame = self.observation.mean.shape[-1], self.delta.mean.shape[-1]
        ahead = jnp.arange(self.counts.shape[1])[:, None]
        index = jnp.minimum(rows + ahead, len(inputs) - 1)

        def step(
            carry: tuple[Float[Array, "b o"], Float[Array, "b f"]],
            now: tuple[Float[Array, "b a"], Float[Array, "b y"]],
        ) -> tuple[tuple[Array, Array], Float[Array, " b"]]:
            (state, gap), (action, target) = carry, now
            x = jnp.concatenate([self.observation.normalise(state), action], -1)
            output = predict(layers, x, self.precision)
            error = output - target
            # Changes add up, and so do their errors: this is the predicted state's.
            gap = gap + error[:, :frame]
            square = jnp.mean(jnp.concatenate([gap, error[:, frame:]], -1) ** 2, -1)
            change = self.delta.restore(output[:, :frame])
            return (moved(state, change), gap), square

        first = self.observation.restore(inputs[rows, :dim])
        begin = (first, jnp.zeros((len(rows), frame)))
        _, squares = jax.lax.scan(step, begin, (inputs[index, dim:], targets[index]))
        counts = self.counts[rows].T
        return jnp.sum(jnp.where(counts, squares, 0.0), 0) / jnp.sum(counts, 0)

    def objective(
        self, member: Ensemble, samples: Samples
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The mean over rows."""
        mean = jnp.mean(self.of_rows(member, samples))
        return mean, mean


class Unroll(NamedTuple):
    """What windows of several steps are made of."""

    left: np.ndarray
    """[n] steps that the row's episode has from it on, its own included."""
    observation: Normaliser
    delta: Normaliser

    def loss(
        self, config: ModelConfig, capacity: int, held_out: np.ndarray | None = None
    ) -> SeveralSteps:
        """The loss over `config.fit_horizon` steps, or over as many as there are.

        Args:
            config: horizon and precision.
            capacity: rows to pad to, so that shapes stay the same.
            held_out: [n] rows whose steps are not to be learned. A window goes through
                such a step, but the state that it leads to is not looked at.
        """
        number, ahead = len(self.left), np.arange(config.fit_horizon)
        counts = ahead < self.left[:, None]
        if held_out is not None:
            row = np.minimum(np.arange(number)[:, None] + ahead, number - 1)
            counts &= ~held_out[row]
        counts = np.pad(counts, ((0, max(capacity - number, 0)), (0, 0)))
        units = (self.observation, self.delta)
        return SeveralSteps(jnp.asarray(counts), *units, config.precision)
