"""Random draws by name.

A key is made from the run's seed, the iteration and the stage that needs it, and is
never carried along. A resumed run therefore draws what the uninterrupted one would have
drawn, and no stage can disturb another's stream.
"""

import zlib
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from pombu.errors import UsageError

SEEDS = 2**32
"""Seeds are smaller than this."""


class Keys:
    """The random keys of one iteration of a run."""

    def __init__(self, seed: int, iteration: int) -> None:
        self._numbers = (seed, iteration)
        self._key = jax.random.fold_in(jax.random.key(seed), iteration)

    def jax(self, stage: str, *numbers: int) -> PRNGKeyArray:
        """A key for a stage, and for a numbered part of it."""
        key = jax.random.fold_in(self._key, _name(stage))
        for number in numbers:
            key = jax.random.fold_in(key, number)
        return key

    def numpy(self, stage: str, *numbers: int) -> tuple[int, ...]:
        """The same as a seed of NumPy's generators."""
        return (*self._numbers, _name(stage), *numbers)

    def episodes(self, stage: str, number: int) -> list[int]:
        """Reset seeds of real episodes."""
        sequence = np.random.SeedSequence(self.numpy(stage))
        return [int(seed) for seed in sequence.generate_state(number) >> 1]


def require_seed(seed: Any) -> None:
    """Refuse what is no seed.

    JAX would silently use the last 32 bits, so that two seeds gave the same run.
    """
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not (whole and 0 <= seed < SEEDS):
        raise UsageError(
            f"seed is {seed!r}: it must be a whole number from 0 to {SEEDS - 1}."
        )


def _name(stage: str) -> int:
    return zlib.crc32(stage.encode()) & 0x7FFFFFFF
