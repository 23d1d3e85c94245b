"""Between NumPy, JAX and PyTorch, without importing what the user does not use."""

from typing import Any

import numpy as np
from numpy import ndarray


def to_numpy(x: Any) -> ndarray:
    """Any array as NumPy, cut off from PyTorch's gradients."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
    return np.asarray(x)


def like(x: ndarray, reference: Any) -> Any:
    """``x`` as the kind of array that ``reference`` is."""
    if hasattr(reference, "new_tensor"):
        return reference.new_tensor(x)
    if isinstance(reference, np.ndarray):
        return x.astype(reference.dtype)
    import jax.numpy as jnp

    return jnp.asarray(x, dtype=reference.dtype)
