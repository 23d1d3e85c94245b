"""Virtual trajectories for a named purpose: in the ensemble, or in the simulator."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.envs import Episode, Task
from pombu.imagination import Imagined, imagine_in_shards
from pombu.networks import MLP
from pombu.policies import GaussianPolicy
from pombu.randomness import Keys
from pombu.simulation import simulate
from pombu.values import VarianceValue
from pombu.workers import Workers
from pombu.worlds import Rules, World, real_starts, starts


class Plan(NamedTuple):
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


Dreamer = Callable[[GaussianPolicy, MLP | None, Plan], Imagined]


def dreamer(
    kind: str,
    task: Task,
    world: World,
    rules: Rules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Dreamer:
    """Imagine where a config's model says: in the simulator, or in what was learned."""
    where = in_simulator if kind == "simulator" else in_ensemble
    return where(task, world, rules, episodes, keys, workers)


def in_ensemble(
    task: Task,
    world: World,
    rules: Rules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Dreamer:
    """Imagine in the learned world."""

    def dream(policy: GaussianPolicy, value: MLP | None, plan: Plan) -> Imagined:
        start_key = keys.jax(f"{plan.stage} start", plan.number)
        first, limits = beginnings(
            task, episodes, plan.trajectories, rules.real_starts, start_key
        )
        return imagine_in_shards(
            policy,
            value,
            world,
            rules,
            first,
            plan.member_weights,
            keys.jax(plan.stage, plan.number),
            plan.shards,
            workers,
            limits,
            plan.tail,
        )

    return dream


def beginnings(
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


def in_simulator(
    task: Task,
    world: World,
    rules: Rules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Dreamer:
    """Imagine in the real environment, with the units of the learned world."""

    def dream(policy: GaussianPolicy, value: MLP | None, plan: Plan) -> Imagined:
        return simulate(
            policy,
            value,
            task,
            world.observation,
            float(world.return_std),
            rules.returns,
            keys.jax(plan.stage, plan.number),
            keys.episodes(f"{plan.stage} {plan.number}", plan.trajectories),
        )

    return dream
