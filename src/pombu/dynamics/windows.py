"""The error of a member several steps ahead, over windows of consecutive real steps.

From a real state the member follows the real actions through its own predictions. At
each step the predicted state is compared with the real one, in the units in which
changes are learned; the loss is the mean over steps of the squared error. Noise on
observations is in the targets of one step as much as in its input, which pulls a fit of
one step towards the mean; looked at from further away, it is a smaller part.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pombu.data import Normaliser, moved
from pombu.dynamics.config import Precision
from pombu.dynamics.ensemble import Ensemble, materialise, predict


class Windows(eqx.Module):
    """The windows that begin in each row of the data."""

    counts: Bool[Array, "n h"]
    """Which of a window's steps are looked at."""
    observation: Normaliser
    delta: Normaliser
    """Units of the change, by which a prediction is fed back."""


class Unroll(NamedTuple):
    """What windows are made of."""

    left: np.ndarray
    """[n] steps that the row's episode has from it on, its own included."""
    observation: Normaliser
    delta: Normaliser

    def windows(
        self, horizon: int, capacity: int, held_out: np.ndarray | None = None
    ) -> Windows:
        """Windows of `horizon` steps, or of as many as there are.

        Args:
            horizon: steps ahead, at most.
            capacity: rows to pad to, so that shapes stay the same.
            held_out: [n] rows whose steps are not to be learned. A window goes through
                such a step, but the state that it leads to is not looked at.
        """
        number, ahead = len(self.left), np.arange(horizon)
        counts = ahead < self.left[:, None]
        if held_out is not None:
            row = np.minimum(np.arange(number)[:, None] + ahead, number - 1)
            counts &= ~held_out[row]
        counts = np.pad(counts, ((0, max(capacity - number, 0)), (0, 0)))
        return Windows(jnp.asarray(counts), self.observation, self.delta)


def window_loss(
    member: Ensemble,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, " b"],
    windows: Windows,
    precision: Precision,
) -> Float[Array, " b"]:
    """Mean squared error over the steps of the windows that begin in these rows.

    A learned reward counts with the error of each step alone.

    Args:
        member: a single one.
        inputs: normalised states and actions, in the order of the steps.
        targets: normalised changes (and rewards).
        rows: where windows begin.
        windows: which steps count, and units.
        precision: number format of matrix products.
    """
    layers = materialise(member)
    dim, frame = windows.observation.mean.shape[-1], windows.delta.mean.shape[-1]
    ahead = jnp.arange(windows.counts.shape[1])[:, None]
    index = jnp.minimum(rows + ahead, len(inputs) - 1)

    def step(
        carry: tuple[Float[Array, "b o"], Float[Array, "b f"]],
        now: tuple[Float[Array, "b a"], Float[Array, "b y"]],
    ) -> tuple[tuple[Array, Array], Float[Array, " b"]]:
        (state, gap), (action, target) = carry, now
        x = jnp.concatenate([windows.observation.normalise(state), action], -1)
        output = predict(layers, x, precision)
        error = output - target
        # Changes add up, and so do their errors: this is the predicted state's.
        gap = gap + error[:, :frame]
        square = jnp.mean(jnp.concatenate([gap, error[:, frame:]], -1) ** 2, -1)
        change = windows.delta.restore(output[:, :frame])
        return (moved(state, change), gap), square

    first = windows.observation.restore(inputs[rows, :dim])
    begin = (first, jnp.zeros((len(rows), frame)))
    _, squares = jax.lax.scan(step, begin, (inputs[index, dim:], targets[index]))
    counts = windows.counts[rows].T
    return jnp.sum(jnp.where(counts, squares, 0.0), 0) / jnp.sum(counts, 0)
