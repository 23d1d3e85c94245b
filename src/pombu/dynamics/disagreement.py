"""How much the members disagree about a step, and what real data says is usual.

Where they disagree more than they ever do on real data, nothing is known:
an imagined trajectory may be cut off there, with V beyond it as at a time limit.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pombu.dynamics.model import Dynamics
from pombu.envs import Episode
from pombu.parallel import jit

MOST_ROWS = 20_000
"""Real steps that are looked at, evenly spaced where there are more."""
_ROWS_PER_CALL = 2000
"""Rows of one compiled call, so that nothing recompiles as the data grows."""


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
    states = np.concatenate([episode.observations[:-1] for episode in episodes])
    actions = np.concatenate([episode.actions for episode in episodes])
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
