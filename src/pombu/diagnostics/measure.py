"""Compare a run's learned world with fresh real episodes of its policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pombu.data import Normaliser
from pombu.envs import Episode, Task, collect
from pombu.errors import RunError, UsageError
from pombu.imagination import imagine
from pombu.learner import WorldLearner
from pombu.policies import GaussianPolicy
from pombu.prediction_error import open_loop
from pombu.randomness import Keys
from pombu.rollouts import act_alone
from pombu.workers import jit
from pombu.worlds import Rules, World, predict_step

LONGEST = 50
"""Steps ahead that are compared."""
LARGEST = 1e6
"""Errors count up to here, so that a prediction that diverges leaves a number."""

_imagine = jit(imagine)
_predict_step = jit(predict_step)


@dataclass(frozen=True)
class Measured:
    """The learned world beside the real one, under the same policy."""

    error: np.ndarray
    """[T, o] median absolute error of open-loop predictions by horizon, in standard
    deviations of the data; member by member, from many real states."""
    real: np.ndarray
    """[T + 1, o] one real trajectory."""
    predicted: np.ndarray
    """[T + 1, K, o] each member's prediction of it from its first state and actions."""
    disagreement: np.ndarray
    """[n] spread of the members' next states, in standard deviations of the change."""
    one_step_error: np.ndarray
    """[n] error of the members' mean next state, in the same units and states."""
    real_returns: np.ndarray
    """[e] of whole real episodes."""
    imagined_returns: np.ndarray
    """[e] of whole imagined ones from the same starts."""
    action_std: float
    """Mean standard deviation of the policy, where [-1, 1] spans the action box."""
    constant: tuple[int, ...]
    """Observed entries that never changed in the run's data."""


def measure(
    learner: Any, state: Any, episodes: Sequence[Episode], number: int, seed: int
) -> Measured:
    """Run the policy in `number` real episodes and repeat them in the learned world.

    Raises:
        UsageError: The run's policy does not learn in an imagined world.
        RunError: There is nothing to compare yet.
    """
    if not isinstance(learner, WorldLearner):
        raise UsageError(
            f"{learner.name} has no policy that learns in an imagined world, which is "
            "what there is to diagnose: give a run of pombu, meppo, metrpo, slbo or "
            "mbmpo."
        )
    if learner.config.model.kind == "simulator":
        raise UsageError(
            "The run imagined in the simulator, so it has no learned world to diagnose."
        )
    if not len(episodes):
        raise RunError("The run has no real episodes yet: train it first.")
    task: Task = learner.task
    policy: GaussianPolicy = state.policy
    world, rules = learner.world(state), learner.rules
    normaliser = Normaliser.of(state.experience.observation)
    keys = Keys(seed, int(state.iteration))
    act = act_alone(policy, normaliser, number, keys.jax("diagnose"))
    real = collect(task, act, keys.episodes("diagnose", number))
    spread = state.experience.observation.squares
    disagreement, one_step = _one_step(world, rules, real)
    error, trajectory, predicted = _open_loop(world, rules, real)
    return Measured(
        error,
        trajectory,
        predicted,
        disagreement,
        one_step,
        np.array([episode.rewards.sum() for episode in real]),
        _imagined_returns(policy, world, rules, task, real, keys),
        float(np.mean(np.exp(np.asarray(policy.log_std)))),
        tuple(np.flatnonzero(spread[: task.frame_dim] == 0).tolist()),
    )


def _one_step(
    world: World, rules: Rules, real: Sequence[Episode]
) -> tuple[np.ndarray, np.ndarray]:
    before = np.concatenate([episode.observations[:-1] for episode in real])
    after = np.concatenate([episode.observations[1:] for episode in real])
    actions = np.concatenate([episode.actions for episode in real])
    following, _ = _predict_step(world, rules, before, actions)
    unit = np.asarray(world.delta.std)
    scaled = np.asarray(following)[..., : len(unit)] / unit
    spread = np.sqrt(scaled.var(0).mean(-1))
    gap = scaled.mean(0) - after[:, : len(unit)] / unit
    return spread, np.sqrt(np.mean(gap**2, -1))


def _open_loop(
    world: World, rules: Rules, real: Sequence[Episode]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Error by horizon and dimension, and the longest episode with its predictions."""
    longest = max(real, key=len)
    length = min(LONGEST, len(longest))
    begins = [
        (episode, t)
        for episode in [longest, *(e for e in real if e is not longest)]
        for t in range(0, len(episode) - length + 1, length)
    ]
    states = np.stack([e.observations[t : t + length + 1] for e, t in begins], 1)
    actions = np.stack([e.actions[t : t + length] for e, t in begins], 1)
    frame = world.delta.std.shape[-1]
    unit = np.asarray(world.observation.std)[:frame]
    predicted = np.asarray(open_loop(world, rules, states[0], actions))[..., :frame]
    states = states[..., :frame]
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.abs(predicted - states[1:, None]) / unit
    error = np.median(np.fmin(gap, LARGEST), (1, 2))
    first = np.broadcast_to(states[0, 0], predicted[:1, :, 0].shape)
    return error, states[:, 0], np.concatenate([first, predicted[:, :, 0]])


def _imagined_returns(
    policy: GaussianPolicy,
    world: World,
    rules: Rules,
    task: Task,
    real: Sequence[Episode],
    keys: Keys,
) -> np.ndarray:
    starts = jnp.asarray(np.stack([episode.observations[0] for episode in real]))
    whole = replace(rules, horizon=task.horizon, draw="trajectory")
    everyone = jnp.full(world.members, 1.0 / world.members)
    key: jax.Array = keys.jax("diagnose imagined")
    imagined = _imagine(policy, None, world, whole, starts, everyone, key)
    counted = np.asarray(imagined.raw_rewards * imagined.weight).sum(0)
    kept = np.asarray(imagined.weight)[0] > 0
    return np.asarray(counted[kept])
