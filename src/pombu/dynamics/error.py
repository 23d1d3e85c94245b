"""How far to trust the learned dynamics: its error by horizon, and disagreement.

Where members disagree about a step more than they ever do on real data, nothing is
known: an imagined trajectory may be cut off there, with V beyond it as at a time limit.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pombu.dynamics.model import Dynamics
from pombu.envs import Episode
from pombu.parallel import jit

HORIZONS = (1, 5, 20, 50)
LARGEST = 1e6
"""Errors count up to here: a prediction that diverges is bad, but stops no run."""
MOST_ROWS = 20_000
"""Real steps that are looked at, evenly spaced where there are more."""
_ROWS_PER_CALL = 2000
"""Rows of one compiled call, so that nothing recompiles as the data grows."""


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


def disagreement(
    dynamics: Dynamics, following: Float[Array, "K n o"]
) -> Float[Array, " n"]:
    """Root mean square over dimensions of the members' standard deviation.

    Its unit is the standard deviation of real state changes, dimension by dimension.

    Args:
        dynamics: the learned dynamics.
        following: what each member predicts as the next state.
    """
    # Of a stack of frames only the newest is predicted.
    frame = following[..., : dynamics.delta.std.shape[-1]]
    spread = jnp.std(frame, 0) / dynamics.delta.std
    return jnp.sqrt(jnp.mean(spread**2, -1))


def strays(
    dynamics: Dynamics, following: Float[Array, "K n o"]
) -> Bool[Array, " n"] | None:
    """Where members disagree more than they may; None where that is not limited."""
    if dynamics.most_disagreement is None:
        return None
    return disagreement(dynamics, following) > dynamics.most_disagreement


def limited(
    dynamics: Dynamics, quantile: float | None, episodes: Sequence[Episode]
) -> Dynamics:
    """The dynamics with the disagreement that is allowed: a quantile of the real.

    None does not limit it. It follows from the episodes and the members alone, so that
    a resumed run finds the same one.
    """
    if quantile is None:
        return dynamics
    usual = on_real_data(dynamics, episodes)
    most = jnp.asarray(np.quantile(usual, quantile), jnp.float32)
    bounded: Dynamics = eqx.tree_at(
        lambda w: w.most_disagreement, dynamics, most, is_leaf=lambda leaf: leaf is None
    )
    return bounded


def on_real_data(
    dynamics: Dynamics, episodes: Sequence[Episode]
) -> Float[np.ndarray, " n"]:
    """The members' disagreement about real steps, or about as many as are looked at."""
    return about_steps(
        dynamics,
        np.concatenate([episode.observations[:-1] for episode in episodes]),
        np.concatenate([episode.actions for episode in episodes]),
    )


def about_steps(
    dynamics: Dynamics,
    states: Float[np.ndarray, "m o"],
    actions: Float[np.ndarray, "m a"],
) -> Float[np.ndarray, " n"]:
    """The members' disagreement about steps, or as many of them as are looked at."""
    number = min(len(states), MOST_ROWS)
    rows = np.linspace(0, len(states) - 1, number).round().astype(int)
    found = []
    for first in range(0, number, _ROWS_PER_CALL):
        part = rows[first : first + _ROWS_PER_CALL]
        padded = np.pad(part, (0, _ROWS_PER_CALL - len(part)), mode="edge")
        answer = _of_steps(dynamics, states[padded], actions[padded])
        found.append(np.asarray(answer)[: len(part)])
    return np.concatenate(found)


@jit
def _of_steps(
    dynamics: Dynamics,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
) -> Float[Array, " n"]:
    return disagreement(dynamics, dynamics.step(states, actions).states)
