"""Algorithm 1 of the paper, its discounted form (Appendix B), and dependent steps.

Each step's K members predict a reward and a next state; the spread of
``r_j + gamma * V(s_j)`` over the members is the local uncertainty ``d``, and a backward
pass along the trajectory adds the local uncertainties up:
``D^i = d^i + gamma^2 * D^{i+1}``. The result, ``sqrt(D^h)``, estimates the uncertainty
``sqrt(U^h)`` in the Q-value of the h-th state and action of the trajectory.

That sum takes the members' errors at different steps for independent. A learned model
repeats its errors, so two more sums are here: `propagate_correlated`, where errors that
are n steps apart have correlation rho^n, and `propagate_members`, which assumes nothing
and takes the variance over members of each member's discounted sum of deviations.

`_standard_deviations` has the same sums on PyTorch tensors, with gradients; PyTorch is
imported by those who pass its tensors alone.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy import ndarray

from pombu.errors import UsageError

Correlation = float | int | str
"""How errors of different steps depend: rho in [0, 1], or "full", as members show."""


def local_uncertainty(
    member_rewards: Float[Array, "K *batch"],
    member_next_values: Float[Array, "K *batch"],
    gamma: float | int,
    ddof: int = 0,
) -> Float[Array, "*batch"]:
    """Variance over the K members of ``r_j + gamma * V(s_j)``: the paper's ``d``.

    The variance is of the sum, so the covariance of reward and next value is kept.
    ``ddof=0`` treats the members as the posterior itself, as the paper does; ``ddof=1``
    treats them as K samples of it. A single member has no spread: its ``d`` is 0.
    """
    q = member_rewards + gamma * member_next_values
    deviations = q - jnp.mean(q, axis=0)
    return jnp.sum(deviations**2, axis=0) / max(q.shape[0] - ddof, 1)


def propagate(
    d: Float[Array, "H *batch"],
    gamma: float | int,
    continues: Float[Array, "H *batch"] | None = None,
    beyond: Float[Array, "*batch"] | None = None,
) -> Float[Array, "H *batch"]:
    """Add local uncertainties up along time, ``D^i = d^i + gamma^2 c^i D^{i+1}``.

    Args:
        d: local uncertainties, time first.
        gamma: the discount factor.
        continues: 0 at a step after which the trajectory has ended, else 1; nothing
            flows back over an end. Without it nothing ends early.
        beyond: D^{H+1}, the uncertainty past the last step of a trajectory that goes
            on; None is 0, as in the paper's finite-horizon form.

    Returns:
        D, time first.
    """
    discounts = jnp.full_like(d, gamma**2)
    if continues is not None:
        discounts = discounts * continues

    def step(
        later: Float[Array, "*batch"],
        now: tuple[Float[Array, "*batch"], Float[Array, "*batch"]],
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        local, discount = now
        total = local + discount * later
        return total, total

    last = jnp.zeros_like(d[0]) if beyond is None else beyond
    _, variances = jax.lax.scan(step, last, (d, discounts), reverse=True)
    return variances


def standard_deviation(variance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Square root whose value and gradient are 0, not infinite, where it is given 0."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def propagate_correlated(
    d: Float[Array, "H *batch"],
    gamma: float | int,
    rho: float | int | Float[Array, ""],
    continues: Float[Array, "H *batch"] | None = None,
    beyond: Float[Array, "*batch"] | None = None,
) -> Float[Array, "H *batch"]:
    """Add local uncertainties up whose errors have correlation ``rho^n`` n steps apart.

    One reverse scan gives ``sum_ts gamma^(t+s) rho^|t-s| sqrt(d_t d_s)``:
    ``U_t = d_t + 2 gamma rho sqrt(d_t) C_{t+1} + gamma^2 U_{t+1}`` with
    ``C_t = sqrt(d_t) + gamma rho C_{t+1}``. With rho = 0 it is `propagate`; with
    rho = 1 it is ``(sum_t gamma^t sqrt(d_t))^2``, which bounds every dependence.

    Args:
        d: local uncertainties, time first.
        gamma: the discount factor.
        rho: correlation of the errors of neighbouring steps, in [0, 1].
        continues: as in `propagate`.
        beyond: variance of what lies past the last step. It counts as the error of one
            more step, so its correlation with the last step is rho.

    Returns:
        The variances, time first.
    """
    go_on = jnp.ones_like(d) if continues is None else continues
    last = jnp.zeros_like(d[0]) if beyond is None else beyond

    def step(
        later: tuple[Float[Array, "*batch"], Float[Array, "*batch"]],
        now: tuple[Float[Array, "*batch"], Float[Array, "*batch"]],
    ) -> tuple[
        tuple[Float[Array, "*batch"], Float[Array, "*batch"]], Float[Array, "*batch"]
    ]:
        variance, shared = later
        local, go_on = now
        own = standard_deviation(local)
        both = gamma * rho * go_on * shared
        total = local + 2 * own * both + gamma**2 * go_on * variance
        return (total, own + both), total

    first = (last, standard_deviation(last))
    _, variances = jax.lax.scan(step, first, (d, go_on), reverse=True)
    return variances


def propagate_members(
    member_q: Float[Array, "K H *batch"],
    gamma: float | int,
    ddof: int = 0,
    continues: Float[Array, "H *batch"] | None = None,
    beyond: Float[Array, "*batch"] | None = None,
    member_beyond: Float[Array, "K *batch"] | None = None,
) -> Float[Array, "H *batch"]:
    """F: the variance over members of the discounted sum of their deviations.

    With ``delta_k`` a member's ``r + gamma V(s')`` less the members' mean, at the same
    states and actions, ``sum_t gamma^t delta_k(t)`` is to first order what the member's
    own Q differs from the mean Q (the simulation lemma). So F is the variance of
    members that are each rolled alone, read off a trajectory that all of them share.

    Args:
        member_q: each member's ``r + gamma V(s')`` at each step.
        gamma: the discount factor.
        ddof: as in `local_uncertainty`.
        continues: as in `propagate`.
        beyond: a variance past the last step that is independent of the members.
        member_beyond: what each member says of the value past the last step; its
            deviations from the members' mean continue the members' sums.

    Returns:
        The variances, time first.
    """
    deviations = jnp.moveaxis(member_q - jnp.mean(member_q, 0), 1, 0)
    go_on = jnp.ones_like(member_q[0]) if continues is None else continues
    independent = jnp.zeros_like(member_q[0, 0]) if beyond is None else beyond
    own = jnp.zeros_like(deviations[0])
    if member_beyond is not None:
        own = member_beyond - jnp.mean(member_beyond, 0)
    freedom = max(member_q.shape[0] - ddof, 1)

    def step(
        later: tuple[Float[Array, "K *batch"], Float[Array, "*batch"]],
        now: tuple[Float[Array, "K *batch"], Float[Array, "*batch"]],
    ) -> tuple[
        tuple[Float[Array, "K *batch"], Float[Array, "*batch"]], Float[Array, "*batch"]
    ]:
        sums, rest = later
        deviation, go_on = now
        sums = deviation + gamma * go_on * sums
        rest = gamma**2 * go_on * rest
        return (sums, rest), jnp.sum(sums**2, 0) / freedom + rest

    first = (own, independent)
    _, variances = jax.lax.scan(step, first, (deviations, go_on), reverse=True)
    return variances


def q_uncertainty(
    member_rewards: Any,
    member_next_values: Any,
    gamma: float | int = 1.0,
    ddof: int = 0,
    correlation: Correlation = 0,
    continues: Any = None,
    beyond: Any = None,
    member_beyond: Any = None,
) -> Any:
    """Estimate the uncertainty in Q along trajectories.

    The result is the spread of Q over the MDPs that the members stand for. It is not
    the standard error of the members' mean, nor the error to be expected of it:
    `pombu.uncertainty.variance_factor` leads from the one to the others.

    Args:
        member_rewards: each member's predicted reward at each step, ``[K, H, ...]``; a
            NumPy, JAX or PyTorch array, or nested lists.
        member_next_values: the value of each member's predicted next state, same shape;
            0 where that member says that the episode ends.
        gamma: discount factor in (0, 1].
        ddof: 0 when the members are the posterior (the paper's definition), 1 when they
            are K samples of it.
        correlation: how a member's errors at different steps depend on each other. 0:
            not at all (Algorithm 1, U). A number rho up to 1: errors n steps apart have
            correlation ``rho^n``. ``"full"``: as the members themselves show it (F, the
            variance over members of the discounted sum of their deviations).
        continues: ``[H, ...]``, 0 at a step after which the trajectory has ended, else
            1; None if nothing ends early.
        beyond: ``[...]``, variance of what lies past the last step; None is 0. For a
            number rho it counts as the error of one more step, otherwise as
            independent.
        member_beyond: ``[K, ...]``, each member's value past the last step, for
            ``correlation="full"`` only: its deviations continue the members' sums.

    Returns:
        Standard deviations ``[H, ...]``; all 0 for a single member, which cannot
        disagree. It is a NumPy array if both arrays are, and a PyTorch tensor, with
        gradients, if both are; else a JAX array, differentiable as well. Gradients are
        0, not infinite, where members agree.

    Raises:
        UsageError: for mismatched shapes, values that are not finite, or arguments out
            of range.
    """
    if not 0.0 < gamma <= 1.0:
        raise UsageError(f"gamma is {gamma}; it must lie in (0, 1].")
    if ddof not in (0, 1):
        raise UsageError(f"ddof is {ddof}; it must be 0 (1/K) or 1 (1/(K-1)).")
    _require_correlation(correlation, member_beyond)
    in_torch = all(
        hasattr(x, "new_tensor") for x in (member_rewards, member_next_values)
    )
    kind = _tensor(member_rewards) if in_torch else _array
    rewards: Any = kind("member_rewards", member_rewards)
    next_values: Any = kind("member_next_values", member_next_values)
    if rewards.shape != next_values.shape:
        raise UsageError(
            f"member_rewards has shape {tuple(rewards.shape)} but member_next_values "
            f"has shape {tuple(next_values.shape)}; both must be [members, steps, ...]."
        )
    if rewards.ndim < 2 or 0 in rewards.shape[:2]:
        raise UsageError(
            f"member_rewards has shape {tuple(rewards.shape)}; it must be [members, "
            "steps, ...] with at least one member and one step."
        )
    K, *steps = rewards.shape
    more = {
        name: None if x is None else _shaped(name, kind(name, x), shape)
        for name, x, shape in (
            ("continues", continues, steps),
            ("beyond", beyond, steps[1:]),
            ("member_beyond", member_beyond, [K, *steps[1:]]),
        )
    }
    if more["beyond"] is not None:
        _require_variance(more["beyond"])
    if in_torch:
        return _standard_deviations(
            rewards + gamma * next_values, gamma, ddof, correlation, **more
        )
    if correlation == "full":
        found = _members_scan(rewards, next_values, gamma, ddof, **more)
    elif correlation == 0:
        rest = more["continues"], more["beyond"]
        found = _scan(rewards, next_values, gamma, ddof, *rest)
    else:
        rho = jnp.asarray(correlation, rewards.dtype)
        rest = more["continues"], more["beyond"]
        found = _correlated_scan(rewards, next_values, rho, gamma, ddof, *rest)
    given = (member_rewards, member_next_values)
    in_numpy = all(isinstance(array, np.ndarray) for array in given)
    traced = isinstance(found, jax.core.Tracer)
    return np.asarray(found) if in_numpy and not traced else found


@partial(jax.jit, static_argnames=("gamma", "ddof"))
def _scan(
    rewards: Float[Array, "K H *batch"],
    next_values: Float[Array, "K H *batch"],
    gamma: float | int,
    ddof: int,
    continues: Float[Array, "H *batch"] | None,
    beyond: Float[Array, "*batch"] | None,
) -> Float[Array, "H *batch"]:
    d = local_uncertainty(rewards, next_values, gamma, ddof)
    return standard_deviation(propagate(d, gamma, continues, beyond))


@partial(jax.jit, static_argnames=("gamma", "ddof"))
def _correlated_scan(
    rewards: Float[Array, "K H *batch"],
    next_values: Float[Array, "K H *batch"],
    rho: Float[Array, ""],
    gamma: float | int,
    ddof: int,
    continues: Float[Array, "H *batch"] | None,
    beyond: Float[Array, "*batch"] | None,
) -> Float[Array, "H *batch"]:
    d = local_uncertainty(rewards, next_values, gamma, ddof)
    return standard_deviation(propagate_correlated(d, gamma, rho, continues, beyond))


@partial(jax.jit, static_argnames=("gamma", "ddof"))
def _members_scan(
    rewards: Float[Array, "K H *batch"],
    next_values: Float[Array, "K H *batch"],
    gamma: float | int,
    ddof: int,
    continues: Float[Array, "H *batch"] | None,
    beyond: Float[Array, "*batch"] | None,
    member_beyond: Float[Array, "K *batch"] | None,
) -> Float[Array, "H *batch"]:
    member_q = rewards + gamma * next_values
    return standard_deviation(
        propagate_members(member_q, gamma, ddof, continues, beyond, member_beyond)
    )


def _require_correlation(correlation: Any, member_beyond: Any) -> None:
    named = isinstance(correlation, str)
    if (correlation != "full") if named else not 0.0 <= correlation <= 1.0:
        raise UsageError(
            f"correlation is {correlation!r}; it must be a number in [0, 1] or 'full'."
        )
    if member_beyond is not None and correlation != "full":
        raise UsageError(
            f"member_beyond is given and correlation is {correlation!r}; only "
            "correlation='full' follows the members: give their variance as beyond."
        )


def _require_variance(beyond: Any) -> None:
    if not isinstance(beyond, jax.core.Tracer) and bool((beyond < 0).any()):
        raise UsageError("beyond has a negative entry; it must be a variance.")


def _shaped(name: str, array: Any, shape: list[int]) -> Any:
    if list(array.shape) != shape:
        raise UsageError(
            f"{name} has shape {tuple(array.shape)}; member_rewards asks for shape "
            f"{tuple(shape)}."
        )
    return array


def _array(name: str, value: Any) -> Float[Array, "..."]:
    """A JAX array of floats, finite where its values are known (not traced)."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        array = jnp.asarray(value)
        if jnp.iscomplexobj(array):
            raise TypeError("complex numbers")
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} is {value!r:.80}: give an array of numbers."
        ) from None
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.result_type(float))
    if not isinstance(array, jax.core.Tracer):
        _require_finite(name, np.asarray(array))
    return array


def _tensor(like: Any) -> Any:
    """What turns an argument into a PyTorch tensor as ``like`` is one."""

    def convert(name: str, value: Any) -> Any:
        if not hasattr(value, "new_tensor"):
            value = like.new_tensor(np.asarray(value))
        if not value.is_floating_point():
            value = value.float()
        _require_finite(name, value.detach().cpu().numpy())
        return value.to(like.device)

    return convert


def _require_finite(name: str, array: np.ndarray) -> None:
    broken = np.argwhere(~np.isfinite(array))
    if len(broken):
        index = tuple(int(i) for i in broken[0])
        raise UsageError(
            f"{name}[{', '.join(map(str, index))}] is {float(array[index])}; every "
            "entry must be finite."
        )


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


def _standard_deviations(
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
