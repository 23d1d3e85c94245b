"""What an agent's learned world and value function say: predictions, V, Q and sqrt(U).

All take and give numbers in the environment's own units, for one row or a batch. A
batch is padded to a power of two, so that few sizes are ever compiled.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pombu.algorithms.base import ModelLearner
from pombu.dynamics.model import Dynamics, Step
from pombu.errors import UsageError
from pombu.nn import MLP, predict_value
from pombu.parallel import jit
from pombu.rollout.imagine import ImaginationRules
from pombu.rollout.q_value import q_returns, q_uncertainty
from pombu.training.algorithm import Algorithm


@dataclass(frozen=True)
class Prediction:
    """What every member expects of one step."""

    observations: Float[np.ndarray, "K n o"]
    """Next observations."""
    rewards: Float[np.ndarray, "K n"]
    terminated: Bool[np.ndarray, "K n"]


@dataclass(frozen=True)
class Trajectories:
    """Imagined trajectories: each member goes its own way from every observation.

    After a trajectory's end it stays where it is, with rewards of 0.
    """

    observations: Float[np.ndarray, "K n _ o"]
    actions: Float[np.ndarray, "K n T a"]
    """In the environment's own units."""
    rewards: Float[np.ndarray, "K n T"]
    terminated: Bool[np.ndarray, "K n T"]
    """True from the step on that ended the trajectory."""

    @property
    def returns(self) -> Float[np.ndarray, "K n"]:
        """Sums of rewards."""
        total: np.ndarray = self.rewards.sum(-1)
        return total


def model_of(learner: Algorithm[Any], state: Any) -> Dynamics:
    """The learned dynamics of an agent.

    Raises:
        UsageError: The algorithm has none to look into.
    """
    if not isinstance(learner, ModelLearner):
        raise UsageError(
            f"{learner.name} gives no access to a learned model: choose pombu, meppo, "
            "metrpo, slbo or mbmpo."
        )
    if learner.config.model.kind == "simulator":
        raise UsageError(
            "The agent imagines in the simulator, so it has no learned model to ask: "
            "train it with model.kind left as it is."
        )
    return learner.dynamics(state)


def rules_for(learner: Any, horizon: int) -> ImaginationRules:
    """The learner's rules for trajectories of so many steps."""
    rules: ImaginationRules = replace(learner.rules, horizon=horizon)
    return rules


def value_network(learner: Algorithm[Any], state: Any) -> MLP:
    """V of an agent.

    Raises:
        UsageError: It has none.
    """
    value = getattr(state, "value", None)
    if not isinstance(value, MLP):
        raise UsageError(
            f"{learner.name} has no value function here: choose pombu or meppo, or "
            "set baseline.kind to network where the algorithm has that option."
        )
    return value


def predict_next(
    dynamics: Dynamics,
    observations: Float[np.ndarray, "n o"],
    actions: Float[np.ndarray, "n a"],
) -> Prediction:
    """One step of every member."""
    number = len(observations)
    step = _step(dynamics, padded(observations), padded(actions))
    states, rewards, ends = (np.asarray(part)[:, :number] for part in step)
    return Prediction(states, rewards, ends)


@jit
def _step(dynamics: Dynamics, states: Array, actions: Array) -> Step:
    return dynamics.step(states, actions)


@jit
def _move(dynamics: Dynamics, states: Array, actions: Array) -> Step:
    return dynamics.move(states, actions)


def imagine(
    dynamics: Dynamics,
    act: Any,
    observations: Float[np.ndarray, "n o"],
    steps: int,
) -> Trajectories:
    """Let each member play the policy from each observation by itself.

    Args:
        dynamics: the learned dynamics.
        act: gives the actions in the environment's units for rows of observations and
            the number of the step.
        observations: where to begin.
        steps: how many.
    """
    members, (number, dim) = dynamics.members.count, observations.shape
    start = padded(observations)
    states = np.broadcast_to(start, (members, *start.shape)).astype(np.float32)
    running = np.ones(states.shape[:2], bool)
    seen, acted, earned, ended = [states], [], [], []
    for index in range(steps):
        rows = act(states.reshape(-1, dim), index)
        actions = np.asarray(rows, np.float32).reshape(*states.shape[:2], -1)
        following, rewards, ends = map(np.asarray, _move(dynamics, states, actions))
        states = np.where(running[..., None], following, states)
        earned.append(np.where(running, rewards, 0.0))
        running = running & ~ends
        seen.append(states)
        acted.append(actions)
        ended.append(~running)
    return Trajectories(
        np.stack(seen, 2)[:, :number],
        np.stack(acted, 2)[:, :number],
        np.stack(earned, 2)[:, :number],
        np.stack(ended, 2)[:, :number],
    )


def values(
    value: MLP, dynamics: Dynamics, observations: np.ndarray, scaled: bool
) -> Float[np.ndarray, " n"]:
    """V of observations, in units of the task's reward."""
    normal = dynamics.observation.normalise(jnp.asarray(padded(observations)))
    unit = dynamics.return_std if scaled else 1.0
    return np.asarray(predict_value(value, normal) * unit)[: len(observations)]


def q_values(
    policy: Any,
    value: MLP,
    dynamics: Dynamics,
    rules: ImaginationRules,
    observations: np.ndarray,
    actions: np.ndarray,
    rollouts: int,
    key: jax.Array,
) -> Float[np.ndarray, " n"]:
    """Mean imagined return of every pair; NaN where all trajectories ran away."""
    states = jnp.repeat(jnp.asarray(padded(observations)), rollouts, 0)
    boxed = jnp.repeat(jnp.asarray(padded(actions)), rollouts, 0)
    found, sound = q_returns(policy, value, dynamics, rules, states, boxed, key)
    shape = (-1, rollouts)
    total = jnp.where(sound, found, 0.0).reshape(shape).sum(1)
    number = sound.reshape(shape).sum(1)
    mean = jnp.where(number > 0, total / jnp.maximum(number, 1), jnp.nan)
    return np.asarray(mean)[: len(observations)]


def q_uncertainties(
    policy: Any,
    value: MLP,
    dynamics: Dynamics,
    rules: ImaginationRules,
    observations: np.ndarray,
    actions: np.ndarray,
    rollouts: int,
    key: jax.Array,
) -> Float[np.ndarray, " n"]:
    """sqrt(U) of every pair, in units of the task's reward."""
    states, boxed = jnp.asarray(padded(observations)), jnp.asarray(padded(actions))
    found = q_uncertainty(policy, value, dynamics, rules, states, boxed, rollouts, key)
    return np.asarray(found)[: len(observations)]


def padded(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m d"]:
    """The rows and repetitions of the last one, up to the next power of two."""
    number = 1 << (len(rows) - 1).bit_length()
    missing = np.repeat(rows[-1:], number - len(rows), 0)
    return np.concatenate([rows, missing])
