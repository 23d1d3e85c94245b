"""Random draws by name.

A key is made from the run's seed, the iteration and the stage that needs it, and is
never carried along. A resumed run therefore draws what the uninterrupted one would have
drawn, and no stage can disturb another's stream.
"""

import zlib

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


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


def _name(stage: str) -> int:
    return zlib.crc32(stage.encode()) & 0x7FFFFFFF
