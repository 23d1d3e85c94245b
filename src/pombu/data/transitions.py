"""All real steps end to end, in arrays of a fixed size for compiled loops."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pombu.envs import Episode


class Transitions(NamedTuple):
    """Real steps in the order in which they were taken, padded to a fixed size."""

    states: Float[Array, "*n o"]
    actions: Float[Array, "*n a"]
    following: Float[Array, "*n o"]
    rewards: Float[Array, "*n"]
    goes_on: Float[Array, "*n"]
    """0 where the next row belongs to another episode."""
    ended: Float[Array, "*n"]
    """1 where the episode was over for good; a time limit does not count."""


def transitions(episodes: Sequence[Episode], capacity: int) -> Transitions:
    """All real steps end to end, padded to `capacity` or its next fitting double."""
    steps = sum(map(len, episodes))
    while capacity < steps:
        capacity *= 2

    def stack(rows: Sequence[np.ndarray]) -> Array:
        joined = np.concatenate(rows)
        padding = [(0, capacity - steps), *((0, 0) for _ in joined.shape[1:])]
        return jnp.asarray(np.pad(joined, padding), jnp.float32)

    return Transitions(
        stack([e.observations[:-1] for e in episodes]),
        stack([e.actions for e in episodes]),
        stack([e.observations[1:] for e in episodes]),
        stack([e.rewards for e in episodes]),
        stack([np.arange(len(e)) < len(e) - 1 for e in episodes]),
        stack([np.arange(1, len(e) + 1) == len(e) * e.terminated for e in episodes]),
    )


def most_recent(episodes: Sequence[Episode], steps: int) -> list[Episode]:
    """The last episodes that have at most so many steps together; at least one."""
    lengths = np.cumsum([len(episode) for episode in reversed(episodes)])
    number = max(int(np.searchsorted(lengths, steps, side="right")), 1)
    return list(episodes[-number:])
