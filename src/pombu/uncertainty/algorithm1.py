"""Algorithm 1 of the paper and its discounted form (Appendix B).

Each step's K members predict a reward and a next state; the spread of
``r_j + gamma * V(s_j)`` over the members is the local uncertainty ``d``, and a backward
pass along the trajectory adds the local uncertainties up:
``D^i = d^i + gamma^2 * D^{i+1}``. The result, ``sqrt(D^h)``, estimates the uncertainty
``sqrt(U^h)`` in the Q-value of the h-th state and action of the trajectory.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pombu.errors import UsageError


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


def q_uncertainty(
    member_rewards: Any,
    member_next_values: Any,
    gamma: float | int = 1.0,
    ddof: int = 0,
) -> Float[Array, "H *batch"]:
    """Estimate the uncertainty in Q along trajectories (Algorithm 1).

    Args:
        member_rewards: each member's predicted reward at each step, ``[K, H, ...]``; a
            NumPy, JAX or PyTorch array, or nested lists.
        member_next_values: the value of each member's predicted next state, same shape.
        gamma: discount factor in (0, 1].
        ddof: 0 when the members are the posterior (the paper's definition), 1 when they
            are K samples of it.

    Returns:
        ``sqrt(D^h)`` as ``[H, ...]``; all 0 for a single member, which cannot disagree.

    Raises:
        UsageError: for mismatched shapes, values that are not finite, or arguments out
            of range.
    """
    if not 0.0 < gamma <= 1.0:
        raise UsageError(f"gamma is {gamma}; it must lie in (0, 1].")
    if ddof not in (0, 1):
        raise UsageError(f"ddof is {ddof}; it must be 0 (1/K) or 1 (1/(K-1)).")
    rewards = _array("member_rewards", member_rewards)
    next_values = _array("member_next_values", member_next_values)
    if rewards.shape != next_values.shape:
        raise UsageError(
            f"member_rewards has shape {rewards.shape} but member_next_values has "
            f"shape {next_values.shape}; both must be [members, steps, ...]."
        )
    if rewards.ndim < 2 or 0 in rewards.shape[:2]:
        raise UsageError(
            f"member_rewards has shape {rewards.shape}; it must be [members, steps, "
            "...] with at least one member and one step."
        )
    uncertainty: Array = _scan(rewards, next_values, gamma, ddof)
    return uncertainty


@partial(jax.jit, static_argnames=("gamma", "ddof"))
def _scan(
    rewards: Float[Array, "K H *batch"],
    next_values: Float[Array, "K H *batch"],
    gamma: float | int,
    ddof: int,
) -> Float[Array, "H *batch"]:
    d = local_uncertainty(rewards, next_values, gamma, ddof)
    return standard_deviation(propagate(d, gamma))


def _array(name: str, value: Any) -> Float[Array, "..."]:
    """A JAX array of floats, finite where its values are known (not traced)."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.result_type(float))
    if not isinstance(array, jax.core.Tracer):
        broken = np.argwhere(~np.isfinite(np.asarray(array)))
        if len(broken):
            index = tuple(int(i) for i in broken[0])
            raise UsageError(
                f"{name}[{', '.join(map(str, index))}] is {float(array[index])}; every "
                "entry must be finite."
            )
    return array
