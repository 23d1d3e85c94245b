"""What held-out real episodes say about the members, and how they correct sigma.

The episodes are those of an evaluation, which are run anyway and never learned from.
All members predict every step of them once; `pombu.uncertainty.n_step` does the rest.
Intervals around Q-values take the correction; without one they are refused.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from statistics import NormalDist

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray
from numpy import ndarray

from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode
from pombu.errors import UsageError
from pombu.nn import (
    GaussianPolicy,
    StochasticPolicy,
    Value,
    episode_horizon,
    predict_value,
)
from pombu.parallel import jit
from pombu.rollout.imagine import ImaginationRules
from pombu.rollout.q_value import QEstimate, q_estimate
from pombu.rollout.returns import Correction, scaled_reward
from pombu.uncertainty.n_step import (
    LEAST_EPISODES,
    OVERLAP,
    STEPS,
    RealSteps,
    Windows,
    fit,
    scale_beside_noise,
    scale_for,
    scale_of,
)
from pombu.uncertainty.recalibration import require_level

WHOLE_ROLLOUTS = 4
"""Trajectories that are imagined from the start of each real episode of an evaluation,
to see whether their returns agree."""


class Calibrated(eqx.Module):
    """How sigma of Q-values is corrected, as arrays for a checkpoint."""

    rho: np.ndarray
    """Correlation of the errors of neighbouring steps."""
    scale: np.ndarray
    """Factor of sigma, once errors depend so, for returns of any length together."""
    coverage: np.ndarray
    """Share of held-out errors in the corrected 90 % interval."""
    spearman: np.ndarray
    """Rank correlation of abs(error) and sigma; NaN where one of them is constant."""
    episodes: np.ndarray
    """Real episodes it was fitted to; 0 where it was not."""
    scales: np.ndarray = field(default_factory=lambda: np.zeros(len(STEPS)))
    """Factors of sigma for returns of `STEPS` steps; 0 where they are not known, as for
    lengths that too few episodes reach."""
    whole: np.ndarray = field(default_factory=lambda: np.asarray(0.0))
    """The factor for whole episodes that are imagined from their start; 0 where it is
    not known."""
    horizon: np.ndarray = field(default_factory=lambda: np.asarray(0))
    """Steps of such an episode."""

    def scale_for(self, steps: int) -> float:
        """The factor of sigma for returns of so many steps along real trajectories."""
        known = self._known()
        return scale_for(steps, known) if known else float(self.scale)

    def imagined_scale_for(self, steps: int) -> float:
        """The factor for a trajectory of so many steps that is imagined.

        Past the longest n-step returns it grows to what whole episodes ask for.
        """
        known = self._known()
        if self.whole > 0:
            horizon = int(self.horizon)
            known[horizon] = max(float(self.whole), known.get(horizon, 0.0))
        return scale_for(steps, known) if known else float(self.scale)

    def _known(self) -> dict[int, float]:
        every = zip(STEPS, self.scales, strict=True)
        return {n: float(scale) for n, scale in every if scale > 0}

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
    policy: StochasticPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    horizon: int,
    key: PRNGKeyArray,
) -> Calibrated:
    """The correction that real episodes ask for; none where they cannot tell.

    The arguments are those of `real_steps`, the policy that played the episodes, and a
    key for imagining them.
    """
    if len(episodes) < LEAST_EPISODES:
        return not_calibrated()
    real = real_steps(value, dynamics, rules, episodes, horizon)
    try:
        found = fit(real, rules.returns.gamma)
    except UsageError:
        # A single member, or one that ran away: a run goes on without a correction.
        return not_calibrated()
    fitted = Calibrated(
        np.asarray(found.rho),
        np.asarray(found.scale),
        np.asarray(found.coverage),
        np.asarray(found.spearman),
        np.asarray(found.episodes),
        np.array([found.scales.get(n, 0.0) for n in STEPS]),
        horizon=np.asarray(horizon),
    )
    rules = replace(rules, horizon=horizon)
    whole = _whole_scale(policy, value, dynamics, rules, episodes, fitted, key)
    complete: Calibrated = eqx.tree_at(lambda c: c.whole, fitted, np.asarray(whole))
    return complete


def _whole_scale(
    policy: StochasticPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    fitted: Calibrated,
    key: PRNGKeyArray,
) -> float:
    """The factor of sigma that whole episodes ask for, imagined from their start.

    n-step returns follow real trajectories. A trajectory that is imagined for a whole
    episode leaves the data, where all members may err alike, and only returns from the
    start tell by how much. They are few, one of each episode, so they may widen what
    the longest n-step returns say, and never narrow it. 0 where too few kept course.
    """
    found = q_estimate(
        policy,
        value,
        dynamics,
        rules,
        jnp.asarray(np.stack([one.observations[0] for one in episodes])),
        jnp.asarray(np.stack([one.actions[0] for one in episodes])),
        WHOLE_ROLLOUTS,
        key,
        jnp.float32(fitted.rho),
    )
    q, sigma, noise = (np.asarray(x, np.float64) for x in found)
    error = real_returns(episodes, rules) - q
    sound = np.isfinite(error) & np.isfinite(sigma) & (sigma > 0)
    if sound.sum() < LEAST_EPISODES:
        return 0.0
    # Noise of single returns is much alike from start to start, and each has few.
    variance = (1 + 1 / WHOLE_ROLLOUTS) * float(np.mean(noise[sound] ** 2))
    whole = scale_beside_noise(error[sound], sigma[sound], variance)
    return max(whole, fitted.scale_for(rules.horizon))


def real_returns(
    episodes: Sequence[Episode], rules: ImaginationRules
) -> Float64[ndarray, " e"]:
    """Discounted returns of real episodes, with the rewards' clip that learning has."""
    clip = np.inf if rules.returns.reward_clip is None else rules.returns.reward_clip
    discounts = rules.returns.gamma ** np.arange(max(map(len, episodes)))
    every = (discounts[: len(e)] @ np.clip(e.rewards, -clip, clip) for e in episodes)
    return np.array(list(every), np.float64)


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


def rolled_alone(
    policy: GaussianPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    real: Sequence[Episode],
    noise: Float[ndarray, "T E a"],
    n: int,
) -> Windows:
    """Errors of n-step returns when each member goes its own way.

    Windows lie whole inside their episodes and begin where those of `windows` do. The
    error is that of the members' mean, sigma their standard deviation. The policy must
    react to where a member goes: replayed actions would not balance a pendulum.
    """
    places = [
        (number, t)
        for number, episode in enumerate(real)
        for t in range(0, len(episode) - n + 1, max(1, n // OVERLAP))
    ]
    if not places:
        nothing = np.zeros(0)
        return Windows(nothing, nothing, np.zeros(0, int))
    starts = np.stack([real[e].observations[t] for e, t in places])
    drawn = np.stack([noise[t : t + n, e] for e, t in places], 1)
    rewards = np.stack([real[e].rewards[t : t + n] for e, t in places], 1)
    last = np.stack([real[e].observations[t + n] for e, t in places])
    over = np.array([real[e].terminated and t + n == len(real[e]) for e, t in places])
    whole = episode_horizon(value)
    left = None
    if whole is not None:
        left = jnp.asarray([whole - t - n for _, t in places])
    given = (jnp.asarray(x) for x in (starts, drawn, rewards, last, over))
    came, members = _n_step_returns(policy, value, dynamics, rules, *given, left)
    error = np.asarray(came - members.mean(0), np.float64)
    sigma = np.asarray(members, np.float64).std(0)
    sound = np.isfinite(error) & np.isfinite(sigma) & (sigma > 0)
    episode = np.array([e for e, _ in places])
    return Windows(error[sound], sigma[sound], episode[sound])


@jit
def _n_step_returns(
    policy: GaussianPolicy,
    value: Value,
    dynamics: Dynamics,
    rules: ImaginationRules,
    starts: Float[Array, "w o"],
    noise: Float[Array, "n w a"],
    rewards: Float[Array, "n w"],
    last: Float[Array, "w o"],
    over: Array,
    left: Int[Array, " w"] | None,
) -> tuple[Float[Array, " w"], Float[Array, "K w"]]:
    """Real n-step returns, and those of the policy in every member."""
    gamma, members = rules.returns.gamma, dynamics.members.count

    def values_of(states: Float[Array, "*b o"]) -> Float[Array, "*b"]:
        return predict_value(value, dynamics.observation.normalise(states), left)

    def scaled(raw: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return scaled_reward(raw, dynamics.return_std, rules.returns)

    def step(
        carry: tuple[Array, Array, Array, Array], now: Array
    ) -> tuple[tuple[Array, Array, Array, Array], None]:
        states, running, discount, total = carry
        drawn = policy.mean(dynamics.observation.normalise(states)) + now
        following, raw, ended = dynamics.move(states, rules.box.to_box(drawn))
        total = total + jnp.where(running, discount * scaled(raw), 0.0)
        # What has ended stays where it is, and earns nothing more.
        states = jnp.where(running[..., None], following, states)
        return (states, running & ~ended, discount * gamma, total), None

    first = jnp.broadcast_to(starts, (members, *starts.shape))
    running = jnp.ones(first.shape[:-1], bool)
    begin = (first, running, jnp.ones(()), jnp.zeros(running.shape))
    (states, running, discount, total), _ = jax.lax.scan(step, begin, noise)
    predicted = total + discount * jnp.where(running, values_of(states), 0.0)
    discounts = gamma ** jnp.arange(len(rewards))
    later = jnp.where(over, 0.0, values_of(last))
    came = jnp.tensordot(discounts, scaled(rewards), 1) + discount * later
    return came, predicted


def interval(
    found: QEstimate,
    calibrated: Calibrated | None,
    rollouts: int,
    steps: int,
    level: float = 0.9,
    of_return: bool = False,
) -> tuple[Float64[ndarray, " n"], Float64[ndarray, " n"]]:
    """Lower and upper ends of intervals that hold a share `level` of the truth.

    The variance is that of Q over worlds, corrected, and that of the mean over
    imagined trajectories, of which there are few. Where every trajectory ran away the
    interval is infinite.

    Args:
        found: Q-values for the rho of `calibrated`.
        calibrated: the correction.
        rollouts: imagined trajectories per Q-value.
        steps: of these trajectories; the scale of sigma is that of their returns.
        level: in (0, 1).
        of_return: whether the interval is to hold single returns, with the noise of
            policy and environment, instead of their mean Q.

    Raises:
        UsageError: The agent never saw a held-out episode, the members agree entirely,
            or the level is no share.
    """
    require_level(level)
    calibrated = require_calibrated(calibrated)
    q, sigma, noise = (np.asarray(x, np.float64) for x in found)
    if (sigma <= 0).any():
        raise UsageError(
            f"All members agree about Q of pair {int(np.argmin(sigma))}, so there is "
            "no uncertainty to make an interval of: train an ensemble of two members "
            "or more."
        )
    share = 1.0 / rollouts + float(of_return)
    scaled = calibrated.imagined_scale_for(steps) * sigma
    variance = scaled**2 + share * np.nan_to_num(noise) ** 2
    half = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(variance)
    known = np.isfinite(q)
    centre = np.where(known, q, 0.0)
    half = np.where(known, half, np.inf)
    return np.asarray(centre - half), np.asarray(centre + half)


def require_calibrated(calibrated: Calibrated | None) -> Calibrated:
    """The correction; an agent that no real episode has corrected is refused."""
    if calibrated is None:
        raise UsageError(
            "The agent was trained without calibration, so its intervals would not "
            "hold: train it with calibration.use, as the preset fast does."
        )
    if not int(calibrated.episodes):
        raise UsageError(
            "The agent never saw a held-out episode that its ensemble could be "
            "compared with, so its intervals would not hold: let it learn one "
            "iteration with evaluation_episodes of 5 or more, and with "
            "--evaluation-share inf where episodes are long."
        )
    return calibrated
