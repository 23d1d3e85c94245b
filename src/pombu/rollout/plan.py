"""Batches of virtual trajectories: where they start, and where they are imagined.

They start in the task's own first states or in stored real ones, and run in the learned
dynamics or in the simulator.

In the simulator the real environment stands in for the dynamics, to tell model error
from optimiser error: same batch, same units, no model error and hence no uncertainty.
Its steps are not counted as real ones, which makes it a tool for finding out why a run
fails, not a way to learn from few steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.dynamics.config import PlainReturnConfig
from pombu.dynamics.error import about_steps, on_real_data
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task, collect
from pombu.errors import UsageError
from pombu.nn import (
    StochasticPolicy,
    Value,
    VarianceValue,
    episode_horizon,
    predict_value,
)
from pombu.parallel import Workers, jit
from pombu.rng import Keys
from pombu.rollout.imagine import (
    ImaginationRules,
    Imagined,
    imagine,
    imagine_in_shards,
)
from pombu.rollout.real import act_alone
from pombu.rollout.returns import scaled_reward


class RolloutPlan(NamedTuple):
    """A batch of virtual trajectories to be imagined."""

    stage: str
    number: int
    """Which of the stage's batches; with the stage, it names the random draws."""
    trajectories: int
    shards: int
    member_weights: Float[Array, " K"]
    """How often each member gives the next state."""
    tail: VarianceValue | None = None
    """U_psi, which continues D past the end of a trajectory."""


Imaginer = Callable[[StochasticPolicy, Value | None, RolloutPlan], Imagined]


def imaginer(
    kind: str,
    task: Task,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Imaginer:
    """Imagine where a config's model says: in the simulator, or in what was learned."""

    def in_simulator(
        policy: StochasticPolicy, value: Value | None, plan: RolloutPlan
    ) -> Imagined:
        seeds = keys.episodes(f"{plan.stage} {plan.number}", plan.trajectories)
        key = keys.jax(plan.stage, plan.number)
        return simulate(policy, value, task, dynamics, rules.returns, key, seeds)

    def in_dynamics(
        policy: StochasticPolicy, value: Value | None, plan: RolloutPlan
    ) -> Imagined:
        start_key = keys.jax(f"{plan.stage} start", plan.number)
        first, limits = branch_starts(
            task, episodes, plan.trajectories, rules.real_starts, start_key
        )
        return imagine_in_shards(
            policy,
            value,
            dynamics,
            rules,
            first,
            plan.member_weights,
            keys.jax(plan.stage, plan.number),
            plan.shards,
            workers,
            limits,
            plan.tail,
        )

    return in_simulator if kind == "simulator" else in_dynamics


def starts(
    task: Task, episodes: Sequence[Episode], number: int, key: PRNGKeyArray
) -> Float[Array, "n o"]:
    """First states: the task's own distribution, or starts that were observed."""
    if task.contract is not None and "initial" in task.known:
        first: Array = task.contract.initial(key, number)
        if first.shape != (number, task.observation_dim):
            raise UsageError(
                f"The environment's initial function gave shape {first.shape} where "
                f"{(number, task.observation_dim)} is due: return one row per start."
            )
        return first
    observed = np.stack([episode.observations[0] for episode in episodes])
    chosen = jax.random.randint(key, (number,), 0, len(observed))
    return jnp.asarray(observed[np.asarray(chosen)])


def real_starts(
    task: Task, episodes: Sequence[Episode], number: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n o"], Int[Array, " n"]]:
    """Stored real states, all equally likely, and the steps left to their horizon."""
    states = np.concatenate([episode.observations[:-1] for episode in episodes])
    left = np.concatenate([task.horizon - np.arange(len(e)) for e in episodes])
    chosen = np.asarray(jax.random.randint(key, (number,), 0, len(states)))
    return jnp.asarray(states[chosen]), jnp.asarray(np.maximum(left, 1)[chosen])


def branch_starts(
    task: Task,
    episodes: Sequence[Episode],
    number: int,
    share: float,
    key: PRNGKeyArray,
) -> tuple[Float[Array, "n o"], Int[Array, " n"] | None]:
    """First states, a share of them stored real ones, and the steps that each has.

    Without stored ones all have the whole horizon, which None stands for.
    """
    stored = round(share * number)
    if not stored:
        return starts(task, episodes, number, key), None
    begin_key, stored_key = jax.random.split(key)
    resets = starts(task, episodes, number - stored, begin_key)
    states, left = real_starts(task, episodes, stored, stored_key)
    whole = jnp.full(number - stored, task.horizon, left.dtype)
    return jnp.concatenate([resets, states]), jnp.concatenate([whole, left])


def simulate(
    policy: StochasticPolicy,
    value: Value | None,
    task: Task,
    dynamics: Dynamics,
    returns: PlainReturnConfig,
    key: PRNGKeyArray,
    seeds: list[int],
) -> Imagined:
    """Real rollouts in the shape of imagined ones; short episodes are padded.

    Args:
        policy: pi_old.
        value: V_old; None counts as 0 everywhere.
        task: the environment stands in for the dynamics.
        dynamics: the units of states and rewards.
        returns: how rewards are scaled and cut.
        key: the policy's draws.
        seeds: of the episodes.
    """
    normaliser = dynamics.observation
    act = act_alone(policy, normaliser, len(seeds), key)
    drawn: list[np.ndarray] = []

    def act_and_keep(observations: np.ndarray, step: int) -> np.ndarray:
        actions = act(observations, step)
        drawn.append(actions)
        return actions

    episodes = collect(task, act_and_keep, seeds)
    horizon = task.horizon
    lengths = np.array([len(e.rewards) for e in episodes])
    ended = np.array([e.terminated for e in episodes])
    cut = ~ended & (lengths < horizon)

    def padded(name: str) -> Float[np.ndarray, "H N ..."]:
        rows = [getattr(e, name)[:horizon] for e in episodes]
        out = np.zeros((horizon, len(rows), *rows[0].shape[1:]), np.float32)
        for n, row in enumerate(rows):
            out[: len(row), n] = row
        return out

    step = np.arange(horizon)[:, None]
    weight = jnp.asarray(step < lengths, jnp.float32)
    last = step == lengths - 1
    continues = jnp.asarray((step < lengths - 1) | (last & ~ended & ~cut), jnp.float32)
    actions = np.zeros((horizon, *drawn[0].shape), np.float32)
    actions[: len(drawn)] = np.stack(drawn)
    raw = jnp.asarray(padded("rewards"))
    states = normaliser.normalise(jnp.asarray(padded("observations")))
    final = normaliser.normalise(jnp.stack([e.observations[-1] for e in episodes]))
    left = over = None
    if (whole := episode_horizon(value)) is not None:
        left = jnp.asarray(np.broadcast_to(whole - step, raw.shape))
        over = jnp.asarray(whole - lengths)
    beyond = None if value is None else predict_value(value, final, over)[None]
    rewards = scaled_reward(raw, dynamics.return_std, returns)
    if beyond is not None and returns.bootstrap:  # as `imagine` does at a time limit
        rewards = rewards + returns.gamma * beyond * jnp.asarray(last & cut)
    return Imagined(
        observations=states,
        actions=jnp.asarray(actions),
        log_probs=policy.log_prob(states, jnp.asarray(actions)),
        rewards=rewards,
        values=jnp.zeros_like(raw)
        if value is None
        else predict_value(value, states, left),
        local=jnp.zeros_like(raw),
        continues=continues,
        weight=weight,
        raw_rewards=raw,
        masked=jnp.zeros(()),
        beyond=beyond,
        left=left,
    )


WHOLE_TRAJECTORIES = 32
"""Imagined from beginning to end, to see where a policy leads."""

_imagine = jit(imagine)


def outlook(
    policy: StochasticPolicy,
    dynamics: Dynamics,
    rules: ImaginationRules,
    task: Task,
    episodes: Sequence[Episode],
    keys: Keys,
) -> dict[str, float]:
    """What the learned dynamics promises a policy, and whether it can know.

    `return_imagined` is the mean return of whole imagined episodes, and
    `disagreement_ratio` the members' mean disagreement along them over that about the
    stored steps: about 1 where the policy stays among the data. Trajectories that run
    away count in neither; if all do, there is nothing to report.
    """
    whole = replace(rules, horizon=task.horizon, draw="trajectory")
    first = starts(task, episodes, WHOLE_TRAJECTORIES, keys.jax("outlook start"))
    members = dynamics.members.count
    everyone = jnp.full(members, 1.0 / members)
    # Trajectories are followed to their end, also where nothing is known.
    unlimited = replace(dynamics, most_disagreement=None)
    key = keys.jax("outlook")
    imagined = _imagine(policy, None, unlimited, whole, first, everyone, key)
    weight = np.asarray(imagined.weight)
    kept = weight[0] > 0
    if not kept.any():
        return {}
    rewards = np.asarray(imagined.raw_rewards, np.float64) * weight
    counts = weight.ravel() > 0
    states = np.asarray(dynamics.observation.restore(imagined.observations))
    actions = np.asarray(task.action_box.to_box(imagined.actions))
    ahead = about_steps(
        dynamics,
        states.reshape(-1, states.shape[-1])[counts],
        actions.reshape(-1, actions.shape[-1])[counts],
    )
    usual = float(np.mean(on_real_data(dynamics, episodes), dtype=np.float64))
    found = {"return_imagined": float(rewards[:, kept].sum(0).mean())}
    if usual > 0:
        mean = float(np.mean(ahead, dtype=np.float64))
        found["disagreement_ratio"] = mean / usual
    return found
