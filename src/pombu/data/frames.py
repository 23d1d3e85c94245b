"""States that are stacks of frames, newest first, as `EnvConfig.history` makes them."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def moved(
    state: Float[Array, "*b o"], change: Float[Array, "*c f"]
) -> Float[Array, "*c o"]:
    """Next states: the newest frame changes, and the older ones shift by one.

    A state that is a single frame just changes.
    """
    frame, dim = change.shape[-1], state.shape[-1]
    if frame == dim:
        return state + change
    newest = state[..., :frame] + change
    older = jnp.broadcast_to(state[..., :-frame], (*newest.shape[:-1], dim - frame))
    return jnp.concatenate([newest, older], -1)
