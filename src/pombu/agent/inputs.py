"""What a user hands to an agent, checked: observations, actions, numbers of steps."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pombu.errors import UsageError

MOST_STEPS = 10**12


def as_rows(
    name: str, given: Any, shapes: Sequence[tuple[int, ...] | None]
) -> tuple[np.ndarray, bool]:
    """One array or a batch of them as rows [n, dim], and whether it was only one.

    Args:
        name: what it is called in an error.
        given: anything that NumPy makes an array of numbers of.
        shapes: that a single one may have, the flat one first.

    Raises:
        UsageError: It has another shape, or is not made of finite numbers.
    """
    accepted = [shape for shape in shapes if shape is not None]
    dim = accepted[0][0]
    try:
        rows = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise UsageError(
            f"The {name} is {given!r:.80}: give an array of {dim} numbers, or a batch "
            f"[n, {dim}]."
        ) from None
    single = rows.shape in accepted or (dim == 1 and rows.shape == ())
    if rows.size == 0 or not (single or rows.shape[1:] in accepted):
        raise UsageError(
            f"The {name} has shape {rows.shape}; give one of shape "
            f"{' or '.join(map(str, dict.fromkeys(accepted)))}, or a batch of them."
        )
    if not np.isfinite(rows).all():
        raise UsageError(
            f"The {name} has entries that are not finite: give finite ones."
        )
    return rows.reshape(-1, dim), single


def whole(name: str, given: Any, least: int, most: int) -> int:
    """A whole number within bounds; 1e4 is one as well.

    Raises:
        UsageError: It is none.
    """
    try:
        number = int(given)
        if number == given and least <= number <= most and given is not True:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(
        f"{name} is {given!r}; it must be a whole number from {least} to {most}."
    )


def as_numpy(given: Any) -> Any:
    """A tensor of PyTorch, wherever it lies, as an array; anything else as it is."""
    return given.detach().cpu().numpy() if hasattr(given, "detach") else given


def array_like(given: Any, found: np.ndarray) -> Any:
    """An array of the library that the given one is of."""
    if isinstance(given, jax.Array):
        return jnp.asarray(found)
    if hasattr(given, "new_tensor"):
        return given.new_tensor(found)
    return found
