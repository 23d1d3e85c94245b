"""Between NumPy, JAX and PyTorch, without importing what the user does not use.

`standard_deviations` has the sums of `pombu.uncertainty.algorithm1` on PyTorch tensors,
with gradients; pombu itself does not need PyTorch.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

if TYPE_CHECKING:
    from torch import Tensor


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


def standard_deviations(
    member_q: "Tensor",
    gamma: float,
    ddof: int,
    correlation: float | str,
    continues: "Tensor | None" = None,
    beyond: "Tensor | None" = None,
    member_beyond: "Tensor | None" = None,
) -> "Tensor":
    """`q_uncertainty` of each member's ``r + gamma V(s')``, ``[K, H, ...]``."""
    import torch

    deviations = member_q - member_q.mean(0)
    go_on = torch.ones_like(member_q[0]) if continues is None else continues
    rest = torch.zeros_like(member_q[0, 0]) if beyond is None else beyond
    freedom = max(len(member_q) - ddof, 1)
    if correlation == "full":
        sums = torch.zeros_like(member_q[:, 0])
        if member_beyond is not None:
            sums = member_beyond - member_beyond.mean(0)
        variances = _full(deviations, go_on, rest, sums, gamma, freedom)
    else:
        local = (deviations**2).sum(0) / freedom
        variances = _correlated(local, go_on, rest, gamma, float(correlation))
    return _root(torch.stack(variances[::-1]))


def _correlated(
    local: "Tensor", go_on: "Tensor", beyond: "Tensor", gamma: float, rho: float
) -> "list[Tensor]":
    """`propagate_correlated`, the last step first; rho = 0 is `propagate`."""
    variance, shared = beyond, _root(beyond)
    found = []
    for d, c in zip(local.flip(0), go_on.flip(0), strict=True):
        own, both = _root(d), gamma * rho * c * shared
        variance = d + 2 * own * both + gamma**2 * c * variance
        shared = own + both
        found.append(variance)
    return found


def _full(
    deviations: "Tensor",
    go_on: "Tensor",
    rest: "Tensor",
    sums: "Tensor",
    gamma: float,
    freedom: int,
) -> "list[Tensor]":
    """`propagate_members`, the last step first."""
    found = []
    for delta, c in zip(deviations.flip(1).unbind(1), go_on.flip(0), strict=True):
        sums, rest = delta + gamma * c * sums, gamma**2 * c * rest
        found.append((sums**2).sum(0) / freedom + rest)
    return found


def _root(variance: "Tensor") -> "Tensor":
    """Square root whose value and gradient are 0, not infinite, where it is given 0."""
    import torch

    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), 0.0)
