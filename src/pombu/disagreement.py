"""How much the members disagree about a step, and what real data says is usual.

Where they disagree more than they ever do on real data, nothing is known of the world:
an imagined trajectory may be cut off there, with V beyond it as at a time limit.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pombu.envs import Episode
from pombu.workers import jit
from pombu.worlds import Rules, World, predict_step

MOST_ROWS = 20_000
"""Real steps that are looked at, evenly spaced where there are more."""
_ROWS_PER_CALL = 2000
"""Rows of one compiled call, so that nothing recompiles as the data grows."""


def disagreement(world: World, following: Float[Array, "K n o"]) -> Float[Array, " n"]:
    """Root mean square over dimensions of the members' standard deviation.

    Its unit is the standard deviation of real state changes, dimension by dimension.

    Args:
        world: the learned world.
        following: what each member predicts as the next state.
    """
    # Of a stack of frames only the newest is predicted.
    frame = following[..., : world.delta.std.shape[-1]]
    spread = jnp.std(frame, 0) / world.delta.std
    return jnp.sqrt(jnp.mean(spread**2, -1))


def strays(world: World, following: Float[Array, "K n o"]) -> Bool[Array, " n"] | None:
    """Where members disagree more than they may; None where that is not limited."""
    if world.most_disagreement is None:
        return None
    return disagreement(world, following) > world.most_disagreement


def limited(world: World, rules: Rules, episodes: Sequence[Episode]) -> World:
    """The world with the disagreement that the rules allow, a quantile of the real.

    It follows from the episodes and the members alone, so that a resumed run finds the
    same one.
    """
    if rules.disagreement_stop is None:
        return world
    usual = on_real_data(world, rules, episodes)
    most = jnp.asarray(np.quantile(usual, rules.disagreement_stop), jnp.float32)
    bounded: World = eqx.tree_at(
        lambda w: w.most_disagreement, world, most, is_leaf=lambda leaf: leaf is None
    )
    return bounded


def on_real_data(
    world: World, rules: Rules, episodes: Sequence[Episode]
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
        answer = _of_steps(world, rules, states[padded], actions[padded])
        found.append(np.asarray(answer)[: len(part)])
    return np.concatenate(found)


@jit
def _of_steps(
    world: World,
    rules: Rules,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
) -> Float[Array, " n"]:
    return disagreement(world, predict_step(world, rules, states, actions)[0])
