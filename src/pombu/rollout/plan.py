"""Batches of virtual trajectories: where they start, and where they are imagined.

They start in the task's own first states or in stored real ones, and run in the
ensemble or in the simulator.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task
from pombu.errors import UsageError
from pombu.nn import MLP, StochasticPolicy, VarianceValue
from pombu.parallel import Workers
from pombu.rng import Keys
from pombu.rollout.imagine import ImaginationRules, Imagined, imagine_in_shards
from pombu.rollout.simulate import simulate


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


Imaginer = Callable[[StochasticPolicy, MLP | None, RolloutPlan], Imagined]


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
    where = in_simulator if kind == "simulator" else in_ensemble
    return where(task, dynamics, rules, episodes, keys, workers)


def in_ensemble(
    task: Task,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Imaginer:
    """Imagine in the learned dynamics."""

    def imagine_batch(
        policy: StochasticPolicy, value: MLP | None, plan: RolloutPlan
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

    return imagine_batch


def in_simulator(
    task: Task,
    dynamics: Dynamics,
    rules: ImaginationRules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Imaginer:
    """Imagine in the real environment, with the units of the learned dynamics."""

    def imagine_batch(
        policy: StochasticPolicy, value: MLP | None, plan: RolloutPlan
    ) -> Imagined:
        return simulate(
            policy,
            value,
            task,
            dynamics.observation,
            float(dynamics.return_std),
            rules.returns,
            keys.jax(plan.stage, plan.number),
            keys.episodes(f"{plan.stage} {plan.number}", plan.trajectories),
        )

    return imagine_batch


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
