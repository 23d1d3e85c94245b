"""The one place where policy actions become environment actions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class ActionBox:
    """The environment's finite action bounds; a policy's [-1, 1] spans them."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...] | None = None
    """Of the environment's own box; None is a flat one."""
    dtype: str = "float32"

    @property
    def dim(self) -> int:
        """Number of action entries."""
        return len(self.low)

    def to_box(self, action: Float[Any, "*batch act"]) -> Float[Any, "*batch act"]:
        """Clip a policy's action to [-1, 1] and map it to the environment's units.

        Works on numpy and JAX arrays and keeps their precision.
        """
        low = np.asarray(self.low, dtype=action.dtype)
        high = np.asarray(self.high, dtype=action.dtype)
        mapped = (high + low) / 2 + action.clip(-1, 1) * ((high - low) / 2)
        # Rounding may lead past a bound.
        return self.clip(mapped)

    def clip(self, boxed: Float[Any, "*batch act"]) -> Float[Any, "*batch act"]:
        """Actions in the environment's units, no further than its bounds."""
        low = np.asarray(self.low, dtype=boxed.dtype)
        return boxed.clip(low, np.asarray(self.high, dtype=boxed.dtype))

    @property
    def middle(self) -> np.ndarray:
        """What a policy's 0 means, in the environment's units."""
        middle: np.ndarray = (np.asarray(self.high) + np.asarray(self.low)) / 2
        return middle

    @property
    def unit(self) -> np.ndarray:
        """What a policy's step from 0 to 1 means, in the environment's units.

        1 where the box leaves no choice: such an entry is always 0 to a policy.
        """
        half = (np.asarray(self.high) - np.asarray(self.low)) / 2
        unit: np.ndarray = np.where(half > 0, half, 1.0)
        return unit

    def to_env(self, boxed: np.ndarray) -> np.ndarray:
        """Actions in the shape and dtype of the environment's box, and within it.

        Takes one action in the environment's units, or a batch of them.
        """
        shape = (self.dim,) if self.shape is None else self.shape
        actions: np.ndarray = np.clip(boxed.astype(self.dtype), self.low, self.high)
        return actions.astype(self.dtype).reshape(*boxed.shape[:-1], *shape)
