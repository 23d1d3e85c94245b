"""Noise on observations, in the two forms that the paper has."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

NoiseKind = Literal["gaussian", "uniform"]
"""`gaussian`: normal with the given standard deviation on every observation, the first
included (the paper's text). `uniform`: between plus and minus the given number, and the
first observation of an episode is clean (the published code)."""


@dataclass(frozen=True)
class Noise:
    """How much noise there is on observations, and of which kind."""

    size: float = 0.0
    kind: NoiseKind = "gaussian"

    @property
    def on_first(self) -> bool:
        """Whether the first observation of an episode has it too."""
        return self.size > 0 and self.kind == "gaussian"

    def draw(
        self, rng: np.random.Generator, shape: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """Independent noise of this shape."""
        if self.kind == "uniform":
            return self.size * rng.uniform(-1.0, 1.0, shape)
        return self.size * rng.standard_normal(shape)

    def draw_episode(
        self, rng: np.random.Generator, steps: int, dim: int
    ) -> npt.NDArray[np.float64]:
        """[steps + 1, dim] what an episode's observations have, drawn in their order.

        Equal to drawing them one by one.
        """
        if self.on_first:
            return self.draw(rng, (steps + 1, dim))
        return np.concatenate([np.zeros((1, dim)), self.draw(rng, (steps, dim))])


NO_NOISE = Noise()
"""Clean observations."""
