"""What learned dynamics predict of real episodes, step by step, and its calibration.

The episodes are those of an evaluation: they are run anyway and never learned from. All
members predict every real step once; `pombu.uncertainty.n_step` does the rest.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode
from pombu.errors import UsageError
from pombu.nn import Value, episode_horizon, predict_value
from pombu.parallel import jit
from pombu.rollout.imagine import ImaginationRules
from pombu.rollout.returns import Correction, scaled_reward
from pombu.uncertainty.n_step import LEAST_EPISODES, RealSteps, fit, scale_of


class Calibrated(eqx.Module):
    """How sigma of Q-values is corrected, as arrays for a checkpoint."""

    rho: np.ndarray
    """Correlation of the errors of neighbouring steps."""
    scale: np.ndarray
    """Factor of sigma, once errors depend so."""
    coverage: np.ndarray
    """Share of held-out errors in the corrected 90 % interval."""
    spearman: np.ndarray
    """Rank correlation of abs(error) and sigma; NaN where one of them is constant."""
    episodes: np.ndarray
    """Real episodes it was fitted to; 0 where it was not."""

    def metrics(self) -> dict[str, float]:
        """For `metrics.csv`; nothing where there is no correction."""
        if not int(self.episodes):
            return {}
        found = {
            "calibration_scale": float(self.scale),
            "calibration_rho": float(self.rho),
            "coverage_90": float(self.coverage),
            "spearman": float(self.spearman),
        }
        return {name: number for name, number in found.items() if np.isfinite(number)}


def not_calibrated() -> Calibrated:
    """No correction yet."""
    one, none = np.asarray(1.0), np.asarray(0.0)
    return Calibrated(none, one, none, none, np.asarray(0))


def calibration_of(
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    horizon: int,
) -> Calibrated:
    """The correction that real episodes ask for; none where they cannot tell.

    The arguments are those of `real_steps`.
    """
    if len(episodes) < LEAST_EPISODES:
        return not_calibrated()
    real = real_steps(value, dynamics, rules, episodes, horizon)
    try:
        found = fit(real, rules.returns.gamma)
    except UsageError:
        # A single member, or one that ran away: a run goes on without a correction.
        return not_calibrated()
    return Calibrated(
        np.asarray(found.rho),
        np.asarray(found.scale),
        np.asarray(found.coverage),
        np.asarray(found.spearman),
        np.asarray(found.episodes),
    )


def no_correction() -> Correction:
    """The uncertainty as the members give it, before real episodes say more."""
    return Correction(jnp.zeros(()), jnp.ones(()))


def correction_of(
    earlier: Correction,
    config: ReturnConfig,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    horizon: int,
) -> Correction:
    """rho and the scale for the uncertainty that learning uses, as a config asks.

    Where these episodes cannot tell, the earlier one stays: an uncertainty whose unit
    jumps whenever an evaluation is small would be harder to learn with than one whose
    scale is an iteration old.

    Args:
        earlier: what is used now.
        config: which uncertainty it is, and whether it is recalibrated.
        value: V_phi.
        dynamics: the learned dynamics.
        rules: units of rewards, and gamma.
        episodes: real ones.
        horizon: their steps, at most.
    """
    if len(episodes) < LEAST_EPISODES:
        return earlier
    real = real_steps(value, dynamics, rules, episodes, horizon)
    gamma = rules.returns.gamma
    try:
        if config.correlation == "fitted":
            found = fit(real, gamma)
            rho, scale = found.rho, found.scale
        else:
            shown = "full" if config.correlation == "full" else 0
            rho, scale = 0.0, scale_of(real, gamma, shown)
    except UsageError:
        return earlier
    scale = scale if config.recalibrate else 1.0
    return Correction(jnp.float32(rho), jnp.float32(scale))


def real_steps(
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    horizon: int,
) -> RealSteps:
    """Real episodes beside what all members predicted of their steps.

    Rewards and values are in the units in which V_phi learns.

    Args:
        value: V_phi.
        dynamics: the learned dynamics.
        rules: units of rewards, and gamma.
        episodes: real ones, at least one.
        horizon: their steps, at most; shorter ones are padded, so that shapes stay the
            same however episodes end.
    """
    E = len(episodes)
    states = np.zeros((E, horizon, episodes[0].observations.shape[-1]), np.float32)
    following = np.zeros_like(states)
    actions = np.zeros((E, horizon, episodes[0].actions.shape[-1]), np.float32)
    rewards = np.zeros((E, horizon), np.float32)
    over = np.zeros((E, horizon), bool)
    for number, episode in enumerate(episodes):
        steps = len(episode)
        states[number, :steps] = episode.observations[:-1]
        following[number, :steps] = episode.observations[1:]
        actions[number, :steps] = episode.actions
        rewards[number, :steps] = episode.rewards
        over[number, steps - 1] = episode.terminated
    flat = [x.reshape(E * horizon, *x.shape[2:]) for x in (states, actions, following)]
    whole = episode_horizon(value)
    left = None if whole is None else jnp.tile(whole - 1 - jnp.arange(horizon), E)
    given = map(jnp.asarray, flat)
    member_q, next_value = _backups(value, dynamics, rules, *given, left)
    gamma = rules.returns.gamma
    reward = scaled_reward(jnp.asarray(rewards), dynamics.return_std, rules.returns)
    later = np.where(over, 0.0, np.asarray(next_value).reshape(E, horizon))
    return RealSteps(
        np.asarray(member_q).reshape(-1, E, horizon),
        np.asarray(reward) + gamma * later,
        np.array([len(episode) for episode in episodes]),
        np.array([episode.terminated for episode in episodes], bool),
    )


@jit
def _backups(
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    states: Float[Array, "n o"],
    actions: Float[Array, "n a"],
    following: Float[Array, "n o"],
    left: Int[Array, " n"] | None = None,
) -> tuple[Float[Array, "K n"], Float[Array, " n"]]:
    """Each member's ``r + gamma V(s')``, and V of the states that really followed."""
    predicted, raw, ended = dynamics.step(states, actions)

    def values_of(x: Float[Array, "*b o"]) -> Float[Array, "*b"]:
        return predict_value(value, dynamics.observation.normalise(x), left)

    reward = scaled_reward(raw, dynamics.return_std, rules.returns)
    later = jnp.where(ended, 0.0, values_of(predicted))
    return reward + rules.returns.gamma * later, values_of(following)
