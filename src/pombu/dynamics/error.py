"""How far the learned dynamics departs from real trajectories, by horizon."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pombu.dynamics.model import Dynamics
from pombu.envs import Episode
from pombu.parallel import jit

HORIZONS = (1, 5, 20, 50)
LARGEST = 1e6
"""Errors count up to here: a prediction that diverges is bad, but stops no run."""


@jit
def open_loop(
    dynamics: Dynamics,
    starts: Float[Array, "n o"],
    actions: Float[Array, "T n a"],
) -> Float[Array, "T K n o"]:
    """Every member alone, fed its own predictions and the real actions."""
    members = dynamics.members.count

    def step(states: Array, action: Array) -> tuple[Array, Array]:
        shared = jnp.broadcast_to(action, (members, *action.shape))
        states = dynamics.move(states, shared).states
        return states, states

    first = jnp.broadcast_to(starts, (members, *starts.shape))
    return jax.lax.scan(step, first, actions)[1]


def replay(
    dynamics: Dynamics,
    episodes: Sequence[Episode],
    horizon: int,
    length: int,
) -> tuple[Float[np.ndarray, "T K n o"], Int[np.ndarray, " n"]]:
    """Errors along segments of real episodes, and how many steps each of them has.

    A segment is replayed in every member with its real actions; errors are in standard
    deviations of the state. Shorter segments are padded, so that shapes stay the same
    however episodes end.

    Args:
        dynamics: the learned one.
        episodes: real ones.
        horizon: their steps, at most.
        length: steps of a segment, at most.
    """
    segments = [
        (e.observations[t : t + length + 1], e.actions[t : t + length])
        for e in episodes
        for t in range(0, horizon - length + 1, length)
    ]
    states = _padded([observed for observed, _ in segments], length + 1)
    actions = _padded([taken for _, taken in segments], length)
    predicted = np.asarray(open_loop(dynamics, states[0], actions))
    # Of a stack of frames only the newest is predicted; the others repeat it later.
    frame = dynamics.delta.std.shape[-1]
    states, predicted = states[..., :frame], predicted[..., :frame]
    unit = np.asarray(dynamics.observation.std)[:frame]
    with np.errstate(over="ignore", invalid="ignore"):
        gap = (predicted - states[1:, None]) / unit
    return gap, np.array([len(taken) for _, taken in segments])


def prediction_error(
    dynamics: Dynamics, episodes: Sequence[Episode], horizon: int
) -> dict[str, float]:
    """Root mean squared error of open-loop predictions, in standard deviations.

    Segments of real episodes are replayed in the model with their real actions; the
    median over segments and members is reported, because a few diverge. Horizons that
    no segment reaches are left out.

    Args:
        dynamics: the learned one.
        episodes: real ones.
        horizon: their steps, at most.
    """
    length = min(HORIZONS[-1], horizon)
    gap, lengths = replay(dynamics, episodes, horizon, length)
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.fmin(np.sqrt(np.mean(gap**2, -1)), LARGEST)
    return {
        f"model_error_{h}": float(np.median(error[h - 1][:, lengths >= h]))
        for h in HORIZONS
        if h <= lengths.max()
    }


def _padded(rows: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Stacked on the second axis, with zeros after the end of short ones."""
    stack = np.zeros((length, len(rows), rows[0].shape[-1]), np.float32)
    for number, row in enumerate(rows):
        stack[: len(row), number] = row
    return stack
