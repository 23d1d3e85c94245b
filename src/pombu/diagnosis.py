"""How far the learned world departs from real trajectories, by horizon."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pombu.envs import Episode
from pombu.models import Layers
from pombu.workers import jit
from pombu.worlds import Rules, World, predict_step

_HORIZONS = (1, 5, 20, 50)


def _open_loop(
    world: World,
    rules: Rules,
    starts: Float[Array, "n o"],
    actions: Float[Array, "T n a"],
) -> Float[Array, "T K n o"]:
    """Every member alone, fed its own predictions and the real actions."""

    def step(states: Array, action: Array) -> tuple[Array, Array]:
        def alone(layers: Layers, state: Array) -> Array:
            single = eqx.tree_at(
                lambda w: w.layers, world, jax.tree.map(lambda x: x[None], layers)
            )
            following, _ = predict_step(single, rules, state, action)
            return following[0]

        states = jax.vmap(alone)(world.layers, states)
        return states, states

    first = jnp.broadcast_to(starts, (world.members, *starts.shape))
    return jax.lax.scan(step, first, actions)[1]


_open_loop_jit = jit(_open_loop)


def prediction_error(
    world: World, rules: Rules, episodes: Sequence[Episode]
) -> dict[str, float]:
    """Root mean squared error of open-loop predictions, in standard deviations.

    Segments of real episodes are replayed in the model with their real actions; the
    median over segments and members is reported, because a few diverge.
    """
    length = min(_HORIZONS[-1], min(len(e.rewards) for e in episodes))
    segments = [
        (e.observations[t : t + length + 1], e.actions[t : t + length])
        for e in episodes
        for t in range(0, len(e.rewards) - length + 1, length)
    ]
    states = np.stack([s for s, _ in segments], 1)
    actions = np.stack([a for _, a in segments], 1)
    predicted = np.asarray(_open_loop_jit(world, rules, states[0], actions))
    gap = (predicted - states[1:, None]) / np.asarray(world.observation.std)
    error = np.median(np.sqrt(np.mean(gap**2, -1)), axis=(1, 2))
    return {f"model_error_{h}": float(error[min(h, length) - 1]) for h in _HORIZONS}
