"""Checks of tabular arguments; every error names the argument and the index."""

from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.errors import UsageError

# Rows given in float32 sum to 1 within about 1e-7 per entry.
SUM_TOLERANCE = 1e-6


def finite(name: str, value: Any, axes: str) -> Float64[ndarray, "..."]:
    """A read-only float64 copy with one dimension per letter of ``axes``."""
    array = np.array(value, dtype=np.float64)
    if array.ndim != len(axes) or 0 in array.shape:
        raise UsageError(
            f"{name} has shape {array.shape}; it must be [{','.join(axes)}] with no "
            "empty axis."
        )
    _refuse_where(name, array, ~np.isfinite(array), "it must be finite")
    array.flags.writeable = False
    return array


def shaped(name: str, array: ndarray, shape: tuple[int, ...], like: str) -> None:
    """Refuse an array whose shape does not follow from another argument's."""
    if array.shape != shape:
        raise UsageError(
            f"{name} has shape {array.shape}; {like} asks for shape {shape}."
        )


def non_negative(name: str, array: Float64[ndarray, "..."]) -> None:
    """Refuse negative entries."""
    _refuse_where(name, array, array < 0, "it must not be negative")


def distributions(name: str, array: Float64[ndarray, "..."]) -> None:
    """Refuse an array whose last axis does not hold probabilities that sum to 1."""
    non_negative(name, array)
    sums = array.sum(axis=-1)
    wrong = np.argwhere(np.abs(sums - 1.0) > SUM_TOLERANCE)
    if len(wrong):
        index = tuple(wrong[0])
        raise UsageError(
            f"{_entry(name, index)} sums to {sums[index]:.9g}; probabilities must sum "
            "to 1."
        )


def policy_for(policy: Any, states: int, actions: int) -> Float64[ndarray, "S A"]:
    """The policy as float64 ``[S, A]``, rows summing to 1."""
    array = finite("policy", policy, "SA")
    shaped("policy", array, (states, actions), "the posterior")
    distributions("policy", array)
    return array


def horizon_and_gamma(horizon: object, gamma: float | int) -> None:
    """Refuse a horizon below 1 and a gamma outside (0, 1]."""
    if not isinstance(horizon, int | np.integer) or horizon < 1:
        raise UsageError(f"horizon is {horizon}; it must be a whole number, 1 or more.")
    if not 0.0 < gamma <= 1.0:
        raise UsageError(f"gamma is {gamma}; it must lie in (0, 1].")


def _refuse_where(name: str, array: ndarray, wrong: ndarray, rule: str) -> None:
    if wrong.any():
        index = tuple(np.argwhere(wrong)[0])
        raise UsageError(f"{_entry(name, index)} is {array[index]:.9g}; {rule}.")


def _entry(name: str, index: tuple[Any, ...]) -> str:
    return f"{name}[{', '.join(str(int(i)) for i in index)}]" if index else name
