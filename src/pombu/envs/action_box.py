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
        return (high + low) / 2 + action.clip(-1, 1) * ((high - low) / 2)
