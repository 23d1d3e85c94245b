"""Imagined trajectories: policy x ensemble, one fused scan over the horizon.

At every step all K members predict, the trajectory's reward is their mean, the next
state comes from one member drawn per trajectory and step (or once per trajectory), and
the members' rewards and next values give the local uncertainty of Algorithm 1. Nothing
is computed twice: the value of the next state is among the members' next values.
Methods without uncertainty may draw one member per step for the whole batch, and then
only that one predicts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.dynamics.config import (
    Draw,
    ImaginationConfig,
    ModelConfig,
    MultiStepModelConfig,
    PlainReturnConfig,
)
from pombu.dynamics.error import strays
from pombu.dynamics.model import Dynamics
from pombu.envs import ActionBox, Task
from pombu.errors import UsageError
from pombu.nn import (
    StochasticPolicy,
    Value,
    VarianceValue,
    episode_horizon,
    predict_value,
    predict_variance,
)
from pombu.parallel import Workers, jit
from pombu.rollout.returns import correlation_of, scaled_reward
from pombu.uncertainty.algorithm1 import local_uncertainty


class ImaginationRules(eqx.Module):
    """What stays the same from rollout to rollout; hashable, so static under jit."""

    box: ActionBox = eqx.field(static=True)
    returns: PlainReturnConfig = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    runaway: float = eqx.field(static=True)
    """Standard deviations of the real data that a state may lie from its mean."""
    draw: Draw = eqx.field(static=True, default="trajectory")
    real_starts: float = eqx.field(static=True, default=0.0)
    disagreement_stop: float | None = eqx.field(static=True, default=None)
    keep_member: bool = eqx.field(static=True, default=False)
    """Whether a trajectory stays with the member that it drew first."""


def rules_of(
    task: Task,
    returns: PlainReturnConfig,
    imagination: ImaginationConfig,
    model: ModelConfig | MultiStepModelConfig,
    draw: Draw = "trajectory",
) -> ImaginationRules:
    """The rules by which a config's trajectories are imagined in a task."""
    if model.kind == "simulator" and imagination.real_starts:
        raise UsageError(
            "imagination.real_starts begins trajectories in stored states, and "
            "model.kind = simulator can only begin with a reset: set one of them back."
        )
    if model.kind == "simulator" and imagination.horizon(task.horizon) < task.horizon:
        raise UsageError(
            "imagination.steps cuts trajectories short, and model.kind = simulator "
            "plays whole episodes: set one of them back."
        )
    _require_members(imagination, model, draw)
    return ImaginationRules(
        task.action_box,
        returns,
        imagination.horizon(task.horizon),
        imagination.runaway,
        draw,
        imagination.real_starts,
        imagination.disagreement_stop,
        imagination.draw == "rollout",
    )


def _require_members(
    imagination: ImaginationConfig,
    model: ModelConfig | MultiStepModelConfig,
    draw: Draw,
) -> None:
    """Refuse to ask members where there are none to ask, or where one answers."""
    if imagination.draw == "rollout" and draw == "batch":
        raise UsageError(
            "imagination.draw = rollout keeps a member for each trajectory, and this "
            "algorithm draws one per step for the whole batch: set it to step."
        )
    if imagination.disagreement_stop is None:
        return
    reasons = {
        "model.kind = simulator has none": model.kind == "simulator",
        "model.kind = network is a single one": model.kind == "network",
        "draw = batch computes only one of them": draw == "batch",
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(
                "imagination.disagreement_stop compares what the members predict, and "
                f"{reason}: set one of the two back."
            )


class Imagined(NamedTuple):
    """A batch of N trajectories of H steps, time first."""

    observations: Float[Array, "H N o"]
    """Normalised states before each step."""
    actions: Float[Array, "H N a"]
    """Actions in policy space, not clipped."""
    log_probs: Float[Array, "H N"]
    """log pi_old(a|s)."""
    rewards: Float[Array, "H N"]
    """Scaled rewards, the mean over members; where the time limit or the members'
    disagreement cuts a trajectory off and returns bootstrap, the last one includes what
    is expected beyond it."""
    values: Float[Array, "H N"]
    """V_old of the states before each step."""
    local: Float[Array, "H N"]
    """Local uncertainty d; where the time limit cuts a trajectory off and U_psi goes
    on, the last one includes what is expected beyond it."""
    continues: Float[Array, "H N"]
    """0 where the trajectory ends after the step."""
    weight: Float[Array, "H N"]
    """0 after a trajectory's end, and everywhere in one that was masked."""
    raw_rewards: Float[Array, "H N"]
    """Rewards as the task gives them, for reporting."""
    masked: Float[Array, ""]
    """Trajectories that were not finite or ran away."""
    beyond: Float[Array, "1 N"] | None = None
    """V_old of the states past the last step."""
    variance_beyond: Float[Array, "1 N"] | None = None
    """U_psi of the same states; None where nothing estimates it."""
    stopped: Float[Array, ""] | None = None
    """Trajectories that the members' disagreement cut off; None where it cannot."""
    member_q: Float[Array, "H N K"] | None = None
    """Each member's r + gamma V(s'); None where the uncertainty is not F."""
    cut_local: Float[Array, "H N"] | None = None
    """The part of `local` that lies beyond a trajectory's cut; None where the
    uncertainty is not F, or nothing is cut."""
    left: Int[Array, "H N"] | None = None
    """Steps left in the episode before each step; None where neither V nor U_psi knows
    the step."""


_MEMBER_DRAW = 0x6D656D

Carry = tuple[Float[Array, "N o"], Float[Array, " N"], Bool[Array, " N"], Array]


def imagine(
    policy: StochasticPolicy,
    value: Value | None,
    dynamics: Dynamics,
    rules: ImaginationRules,
    starts: Float[Array, "N o"],
    member_weights: Float[Array, " K"],
    key: PRNGKeyArray,
    limits: Int[Array, " N"] | None = None,
    variance: VarianceValue | None = None,
) -> Imagined:
    """Roll the policy out in the learned dynamics.

    Args:
        policy: pi_old.
        value: V_old; None counts as 0 everywhere.
        dynamics: the learned dynamics; Gaussian members are followed along their means.
        rules: action box, units, horizon and limits.
        starts: first states.
        member_weights: probability with which each member gives the next state; u and
            the mean reward stay uniform over members.
        key: the random draws of this batch.
        limits: steps after which the time limit cuts each trajectory off; None where
            all have the whole horizon.
        variance: U_psi, which continues D past the end of a trajectory as V continues
            the return; None counts as 0.
    """
    number = starts.shape[0]
    log_weights = jnp.log(member_weights)
    together = dynamics.unstack()
    full = correlation_of(rules.returns) == "full"
    whole = episode_horizon(value, variance)
    kept_member = None
    if rules.keep_member:
        # Folded in, so that all other draws are those of a member per step.
        own = jax.random.fold_in(key, _MEMBER_DRAW)
        kept_member = jax.random.categorical(own, log_weights, shape=(number,))

    def left_after(steps: Int[Array, ""] | int) -> Int[Array, " N"] | None:
        """Steps that are left after so many, for those who know the step."""
        if whole is None:
            return None
        first = jnp.full(number, whole) if limits is None else limits
        return jnp.maximum(first - steps, 0)

    def values_of(
        states: Float[Array, "*b o"], left: Int[Array, " N"] | None
    ) -> Float[Array, "*b"]:
        if value is None:
            return jnp.zeros(states.shape[:-1])
        return predict_value(value, dynamics.observation.normalise(states), left)

    def variance_of(
        states: Float[Array, "*b o"], left: Int[Array, " N"] | None
    ) -> Float[Array, "*b"]:
        if variance is None:
            return jnp.zeros(states.shape[:-1])
        return predict_variance(variance, dynamics.observation.normalise(states), left)

    def step(
        carry: Carry, now: tuple[PRNGKeyArray, Int[Array, ""]]
    ) -> tuple[Carry, dict[str, Array]]:
        # 1. Act.
        state, value_now, running, sound = carry
        key, index = now
        action_key, member_key = jax.random.split(key)
        observation = dynamics.observation.normalise(state)
        action, log_prob = policy.sample(observation, action_key)
        boxed = rules.box.to_box(action)
        # 2. Predict, with all members or with the one that was drawn for the batch.
        if rules.draw == "batch":
            member = jax.random.categorical(member_key, log_weights)
            chosen = jnp.zeros(number, jnp.int32)
            ahead = dynamics.only(member).step(state, boxed)
        else:
            chosen = (
                jax.random.categorical(member_key, log_weights, shape=(number,))
                if kept_member is None
                else kept_member
            )
            ahead = together.step(state, boxed)
        following, raw, ended = ahead
        # 3. Rewards, next values and their disagreement, Algorithm 1's d.
        reward = scaled_reward(raw, dynamics.return_std, rules.returns)
        left = left_after(index + 1)
        next_values = values_of(following, left)
        # Nothing is to be had after a member's end: its next value is 0 there.
        member_values = jnp.where(ended, 0.0, next_values)
        local = local_uncertainty(reward, member_values, rules.returns.gamma)
        # 4. Follow the drawn member; what is cut off is worth what V expects.
        pick = _picker(chosen)
        next_state = pick(following)
        proceeds = running & ~pick(ended)
        mean_reward = jnp.mean(reward, 0)
        strayed = strays(dynamics, following)
        over = _either(strayed, None if limits is None else index + 1 >= limits)
        if over is not None:
            cut = proceeds & over
            proceeds = proceeds & ~cut
            if rules.returns.bootstrap:
                gamma = rules.returns.gamma
                beyond = gamma * pick(next_values)
                mean_reward = mean_reward + jnp.where(cut, beyond, 0.0)
                cut_local = jnp.where(
                    cut, gamma**2 * variance_of(next_state, left), 0.0
                )
                local = local + cut_local
        # 5. Mask what ran away.
        # One member out of bounds is enough: it spoils the mean reward and d for all.
        bounded = jnp.all(dynamics.plausible(following, rules.runaway), 0)
        kept = bounded & jnp.isfinite(local) & jnp.isfinite(jnp.mean(reward, 0))
        sound = sound & (kept | ~running)
        # A masked trajectory goes on from its start, so that no NaN reaches a matmul.
        next_state = jnp.where(kept[:, None], next_state, starts)
        out = {
            "observations": observation,
            "actions": action,
            "log_probs": log_prob,
            "rewards": mean_reward,
            "values": value_now,
            "local": local,
            "continues": proceeds.astype(jnp.float32),
            "weight": running.astype(jnp.float32),
            "raw_rewards": jnp.mean(raw, 0),
        }
        if strayed is not None:
            out["stopped"] = cut & strayed
        if full:
            out["member_q"] = (reward + rules.returns.gamma * member_values).T
            if over is not None and rules.returns.bootstrap:
                out["cut_local"] = cut_local
        if (before := left_after(index)) is not None:
            out["left"] = before
        return (next_state, pick(next_values), proceeds, sound), out

    everyone = jnp.ones(number, bool)
    (last_states, last_values, running, sound), steps = jax.lax.scan(
        step,
        (starts, values_of(starts, left_after(0)), everyone, everyone),
        (jax.random.split(key, rules.horizon), jnp.arange(rules.horizon)),
    )
    counts = (steps["weight"] > 0) & sound
    stopped = steps.pop("stopped", None)
    return Imagined(
        **{name: _only(counts, x) for name, x in steps.items()},
        masked=jnp.sum(~sound).astype(jnp.float32),
        beyond=jnp.where(running & sound, last_values, 0.0)[None],
        variance_beyond=None
        if variance is None
        else jnp.where(
            running & sound, variance_of(last_states, left_after(rules.horizon)), 0.0
        )[None],
        stopped=None
        if stopped is None
        else jnp.sum(stopped & counts).astype(jnp.float32),
    )


_imagine = jit(imagine)


def imagine_in_shards(
    policy: StochasticPolicy,
    value: Value | None,
    dynamics: Dynamics,
    rules: ImaginationRules,
    starts: Float[Array, "N o"],
    member_weights: Float[Array, " K"],
    key: PRNGKeyArray,
    shards: int,
    workers: Workers,
    limits: Int[Array, " N"] | None = None,
    variance: VarianceValue | None = None,
) -> Imagined:
    """`imagine` with the batch cut into independent parts that run side by side."""
    parts = starts.reshape(shards, -1, starts.shape[-1])
    cuts = [None] * shards if limits is None else limits.reshape(shards, -1)

    def part(shard: int) -> Imagined:
        own_key = jax.random.fold_in(key, shard)
        imagined: Imagined = _imagine(
            policy,
            value,
            dynamics,
            rules,
            parts[shard],
            member_weights,
            own_key,
            cuts[shard],
            variance,
        )
        return imagined

    joined: Imagined = _join(workers.map(part, range(shards)))
    return joined


@jit
def _join(parts: Sequence[Imagined]) -> Imagined:
    joined: Imagined = jax.tree.map(
        lambda *part: jnp.concatenate(part, 1) if part[0].ndim else sum(part), *parts
    )
    return joined


def _picker(chosen: Array) -> Callable[[Array], Array]:
    """Take, for every trajectory, what its drawn member predicted."""

    def pick(members: Array) -> Array:
        index = chosen.reshape((1, -1) + (1,) * (members.ndim - 2))
        return jnp.take_along_axis(members, index, 0)[0]

    return pick


def _either(
    one: Bool[Array, " N"] | None, other: Bool[Array, " N"] | None
) -> Bool[Array, " N"] | None:
    """Where one of two holds, of which either may be left out."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def _only(counts: Bool[Array, "H N"], steps: Array) -> Array:
    """Zeros for steps that do not count, weight among them: no NaN is left behind."""
    nothing = jnp.zeros((), steps.dtype)
    counted = counts.reshape(counts.shape + (1,) * (steps.ndim - 2))
    return jnp.where(counted, steps, nothing)
