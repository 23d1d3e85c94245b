"""From imagined rewards to returns, advantages and uncertainties in fixed units."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pombu.dynamics.config import Correlation, PlainReturnConfig, ReturnConfig
from pombu.errors import UsageError
from pombu.uncertainty.algorithm1 import (
    propagate,
    propagate_correlated,
    propagate_members,
    standard_deviation,
)

Steps = Float[Array, "H N"]


class Correction(eqx.Module):
    """What real episodes say about the uncertainty that learning uses.

    Its numbers change from evaluation to evaluation, so they are arrays.
    """

    rho: Array
    """Correlation of the errors of neighbouring steps; 0 where it is not fitted."""
    scale: Array
    """Factor of sqrt(D); 1 where it is not to be recalibrated."""


def correlation_of(config: PlainReturnConfig) -> Correlation:
    """How errors of different steps depend; methods without uncertainty do not say."""
    return config.correlation if isinstance(config, ReturnConfig) else "none"


def scaled_reward(
    reward: Float[Array, "*b"], std: Float[Array, ""], config: PlainReturnConfig
) -> Float[Array, "*b"]:
    """Clip a raw reward, then divide it by the standard deviation of real returns."""
    if config.reward_clip is not None:
        reward = jnp.clip(reward, -config.reward_clip, config.reward_clip)
    return reward / std if config.scale_rewards else reward


def discounted_sum(rewards: Steps, continues: Steps, gamma: float) -> Steps:
    """G_h = r_h + gamma c_h G_{h+1} with G_{H+1} = 0."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, go_on = now
        total = reward + gamma * go_on * later
        return total, total

    _, sums = jax.lax.scan(
        step, jnp.zeros_like(rewards[0]), (rewards, continues), reverse=True
    )
    return sums


class Targets(NamedTuple):
    """What an update learns from, per imagined step."""

    returns: Steps
    """Targets of V_phi."""
    advantages: Steps
    """A_old, clipped and standardised as configured."""
    uncertainty: Steps
    """sqrt(D), clipped and in the unit that is configured."""
    variances: Steps
    """D, neither recalibrated nor clipped nor divided: targets of U_psi, which would
    otherwise be scaled once more with every step that it is carried back."""
    advantage_std: Float[Array, ""]
    """Standard deviation of the advantages before they were standardised."""
    advantage_unit: Float[Array, ""]
    """What 1 of the advantages is, in the units of the uncertainty."""


def targets(
    rewards: Steps,
    values: Steps,
    local: Steps,
    continues: Steps,
    weight: Steps,
    config: PlainReturnConfig,
    beyond: Float[Array, "1 N"] | None = None,
    variance_beyond: Float[Array, "1 N"] | None = None,
    member_q: Float[Array, "H N K"] | None = None,
    cut_local: Steps | None = None,
    correction: Correction | None = None,
) -> Targets:
    """Returns and advantages of Section 4 and sqrt(D) of Algorithm 1, or of F or U_rho.

    Args:
        rewards: scaled rewards, the mean over members.
        values: V_old of the states before the steps.
        local: local uncertainty d of the steps.
        continues: 0 where the trajectory ends after the step.
        weight: 0 for steps that do not count.
        config: discount, clipping and units.
        beyond: what to expect past the horizon; None is 0, as in the paper's
            finite-horizon returns.
        variance_beyond: D^{H+1}, how uncertain that is; None is 0.
        member_q: each member's r + gamma V(s'), which F needs.
        cut_local: the part of `local` past a trajectory's cut, which F needs.
        correction: rho and the scale; None is Algorithm 1 as it stands.
    """
    past = jnp.zeros_like(values[:1]) if beyond is None else beyond
    next_values = jnp.concatenate([values[1:], past])
    errors = rewards + config.gamma * continues * next_values - values
    advantages = discounted_sum(errors, continues, config.gamma * config.lam)
    returns = (
        discounted_sum(rewards, continues, config.gamma)
        if config.lam == 1.0 and beyond is None
        else advantages + values
    )
    if config.advantage_clip is not None:
        advantages = jnp.clip(advantages, -config.advantage_clip, config.advantage_clip)
    count = jnp.maximum(jnp.sum(weight), 1.0)
    mean = jnp.sum(advantages * weight) / count
    std = jnp.sqrt(jnp.sum((advantages - mean) ** 2 * weight) / count)
    std = jnp.maximum(std, 1e-8)
    unit = jnp.ones_like(std)
    if config.standardise_advantages:
        advantages, unit = (advantages - mean) / std, std
    last = None if variance_beyond is None else variance_beyond[0]
    kind = correlation_of(config)
    if kind == "full":
        variances = _full(member_q, config.gamma, continues, last, cut_local)
    elif kind == "fitted" and correction is not None:
        variances = propagate_correlated(
            local, config.gamma, correction.rho, continues, last
        )
    else:
        variances = propagate(local, config.gamma, continues, last)
    used = variances if correction is None else correction.scale**2 * variances
    clip = config.variance_clip if isinstance(config, ReturnConfig) else None
    clipped = used if clip is None else jnp.minimum(used, clip)
    uncertainty = standard_deviation(clipped)
    if isinstance(config, ReturnConfig) and config.uncertainty_units == "advantage":
        uncertainty, unit = uncertainty / std, unit / std
    return Targets(returns, advantages, uncertainty, variances, std, unit)


def _full(
    member_q: Float[Array, "H N K"] | None,
    gamma: float,
    continues: Steps,
    beyond: Float[Array, " N"] | None,
    cut_local: Steps | None,
) -> Steps:
    """F, and what lies beyond the trajectories, independent of the members."""
    if member_q is None:
        raise UsageError(
            "returns.correlation is full, and the trajectories were imagined without "
            "what each member said of them: imagine them with the same returns."
        )
    shown = propagate_members(jnp.moveaxis(member_q, -1, 0), gamma, continues=continues)
    cut = jnp.zeros_like(shown) if cut_local is None else cut_local
    return shown + propagate(cut, gamma, continues, beyond)
