"""States in which imagined trajectories start: the task's own, or stored real ones."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.envs import Episode, Task
from pombu.errors import UsageError


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
