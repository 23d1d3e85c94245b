"""What an agent's dynamics and value function say: predictions, V, Q and sqrt(U).

All take and give numbers in the environment's own units, for one row or a batch. A
batch is padded to a power of two, so that few sizes are ever compiled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pombu.algorithms.base import ModelLearner
from pombu.dynamics.model import Dynamics, Step
from pombu.envs import ActionBox
from pombu.envs.wrappers import flatten_rows
from pombu.errors import UsageError
from pombu.nn import MLP, TimedValue, Value, predict_value
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.held_out import interval, require_calibrated
from pombu.rollout.imagine import ImaginationRules
from pombu.rollout.q_value import QEstimate, q_estimate, q_returns, q_uncertainty
from pombu.training.algorithm import Algorithm, Planner, Policy

MOST_STEPS = 10**12


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


def _model_of(learner: Algorithm[Any], state: Any) -> Dynamics:
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


def _rules_for(learner: Any, horizon: int) -> ImaginationRules:
    """The learner's rules for trajectories of so many steps."""
    rules: ImaginationRules = replace(learner.rules, horizon=horizon)
    return rules


def _value_network(learner: Algorithm[Any], state: Any) -> Value:
    """V of an agent.

    Raises:
        UsageError: It has none.
    """
    value = getattr(state, "value", None)
    if not isinstance(value, MLP | TimedValue):
        raise UsageError(
            f"{learner.name} has no value function here: choose pombu or meppo, or "
            "set baseline.kind to network where the algorithm has that option."
        )
    return value


def _predict_all(
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


def _roll_out(
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
    value: Value,
    dynamics: Dynamics,
    observations: np.ndarray,
    scaled: bool,
    left: int,
) -> Float[np.ndarray, " n"]:
    """V of observations, in units of the task's reward."""
    normal = dynamics.observation.normalise(jnp.asarray(padded(observations)))
    unit = dynamics.return_std if scaled else 1.0
    return np.asarray(predict_value(value, normal, left) * unit)[: len(observations)]


def _q_values(
    policy: Any,
    value: Value,
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


def _q_uncertainties(
    policy: Any,
    value: Value,
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


class ModelAccess:
    """Questions to an agent about its learned model and its value function."""

    learner: Algorithm[Any]
    state: Any
    seed: int
    _acting: tuple[Any, Policy] | None

    @property
    def config(self) -> Any:
        """The resolved config."""
        return self.learner.config

    def predict_next(self, observation: Any, action: Any) -> Prediction:
        """What every member of the learned model expects of one step.

        Args:
            observation: one observation or a batch.
            action: as many, in the environment's own units; clipped to its bounds.
        """
        dynamics = _model_of(self.learner, self.state)
        return _predict_all(dynamics, *self._pairs(observation, action))

    def imagine(
        self, observation: Any, steps: int | None = None, deterministic: bool = False
    ) -> Trajectories:
        """Trajectories of the policy in the learned model, one per member and row.

        Args:
            observation: one observation or a batch, where they begin.
            steps: how many; None takes the task's horizon.
            deterministic: whether the policy acts without its noise.
        """
        horizon = self.learner.task.horizon
        steps = whole("steps", horizon if steps is None else steps, 1, MOST_STEPS)
        dynamics = _model_of(self.learner, self.state)
        keys, box = Keys(self.seed, int(self.state.iteration)), self._box
        policy = self._policy()

        def act(rows: np.ndarray, step: int) -> np.ndarray:
            drawn = policy(rows, deterministic, keys.jax("imagine", step))
            return np.asarray(box.to_box(np.asarray(drawn)))

        return _roll_out(dynamics, act, self._rows(observation)[0], steps)

    def value(self, observation: Any, steps_left: int | None = None) -> np.ndarray:
        """V of the policy, one number per observation, in units of reward.

        It is discounted, as the config's `returns.gamma` says.

        Args:
            observation: one observation or a batch.
            steps_left: how many the episode has left, for a V that knows the step
                (`value.clock`); None is a whole episode.
        """
        horizon = self.learner.task.horizon
        left = horizon if steps_left is None else steps_left
        left = whole("steps_left", left, 0, horizon)
        value = _value_network(self.learner, self.state)
        dynamics = _model_of(self.learner, self.state)
        scaled = self.config.returns.scale_rewards
        return values(value, dynamics, self._rows(observation)[0], scaled, left)

    def q_value(self, observation: Any, action: Any, rollouts: int = 20) -> np.ndarray:
        """Q(s, a) of the policy, as imagined: one number per pair, in units of reward.

        It is that of a whole episode that begins with the pair: discounted, as the
        config's `returns.gamma` says, with nothing past the time limit.

        Args:
            observation: one observation or a batch.
            action: as many, in the environment's own units; clipped to its bounds.
            rollouts: imagined trajectories per pair whose returns are averaged.
        """
        given = self._for_q(observation, action, rollouts)
        return _q_values(*given)

    def _pairs(self, observation: Any, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """Observations and as many actions as rows."""
        states, _ = self._rows(observation)
        box = self._box
        actions, _ = as_rows("action", action, [(box.dim,), box.shape])
        if len(states) != len(actions):
            raise UsageError(
                f"There are {len(states)} observations and {len(actions)} actions: "
                "give one action per observation."
            )
        return states, box.clip(actions)

    def _for_q(self, observation: Any, action: Any, rollouts: int) -> tuple[Any, ...]:
        """What estimates of Q take."""
        dynamics = _model_of(self.learner, self.state)
        value = _value_network(self.learner, self.state)
        states, actions = self._pairs(observation, action)
        return (
            self.state.policy,
            value,
            dynamics,
            _rules_for(self.learner, self.learner.task.horizon),
            states,
            actions,
            whole("rollouts", rollouts, 1, 100_000),
            jax.random.key(self.seed),
        )

    @property
    def _box(self) -> ActionBox:
        return self.learner.task.action_box

    def _rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations as rows, and whether there is only one, without a batch."""
        task = self.learner.task
        if task.layout is not None and isinstance(observation, Mapping | tuple):
            observation = flatten_rows(task.layout, observation)
        shapes = [(task.observation_dim,), task.observation_shape]
        return as_rows("observation", observation, shapes)

    def _policy(self) -> Policy:
        """The policy, made once for as long as the state is the same."""
        if self._acting is None or self._acting[0] is not self.state:
            self._acting = self.state, self.learner.policy(self.state)
        policy = self._acting[1]
        return policy.begin() if isinstance(policy, Planner) else policy


class UncertaintyAccess(ModelAccess):
    """The part of an agent that tells how uncertain Q-values are."""

    state: Any

    def q_uncertainty(self, observation: Any, action: Any, rollouts: int = 20) -> Any:
        """sqrt(U) of Q(s, a) under the current policy, in units of the task's reward.

        It is an array with one number per pair, also where there is only one, and one
        of JAX or PyTorch where the observation is. Before anything was learned it tells
        how far untrained networks lie apart.

        Args:
            observation: one observation or a batch.
            action: in the environment's own units; clipped to its bounds.
            rollouts: imagined trajectories per pair whose variances are averaged.
        """
        given = self._for_q(as_numpy(observation), as_numpy(action), rollouts)
        return array_like(observation, _q_uncertainties(*given))

    def q_interval(
        self, observation: Any, action: Any, level: float = 0.9, rollouts: int = 20
    ) -> tuple[Any, Any]:
        """Lower and upper ends of intervals around Q(s, a), corrected by real episodes.

        They are arrays as those of `q_uncertainty`, in units of the task's reward. The
        correction was fitted in the last evaluation (`calibration.use`). Where every
        imagined trajectory ran away the interval is infinite.

        Args:
            observation: one observation or a batch.
            action: in the environment's own units; clipped to its bounds.
            level: share of true Q-values to hold, in (0, 1).
            rollouts: imagined trajectories per pair.

        Raises:
            UsageError: The agent never saw a held-out episode, its members agree
                entirely, or the level is no share.
        """
        calibrated = require_calibrated(self.state.calibration)
        given = self._for_q(as_numpy(observation), as_numpy(action), rollouts)
        policy, value, dynamics, rules, states, actions, number, key = given
        found = q_estimate(
            policy,
            value,
            dynamics,
            rules,
            jnp.asarray(padded(states)),
            jnp.asarray(padded(actions)),
            number,
            key,
            jnp.float32(calibrated.rho),
        )
        only = QEstimate(*(x[: len(states)] for x in found))
        low, high = interval(only, calibrated, number, rules.horizon, level)
        return array_like(observation, low), array_like(observation, high)


def as_rows(
    name: str, given: Any, shapes: Sequence[tuple[int, ...] | None]
) -> tuple[np.ndarray, bool]:
    """One array or a batch of them as rows [n, dim], and whether it was only one.

    Args:
        name: what it is called in an error.
        given: anything that NumPy makes an array of numbers of.
        shapes: that a single one may have, the flat one first.

    Raises:
        UsageError: It has another shape, or is not made of finite numbers.
    """
    accepted = [shape for shape in shapes if shape is not None]
    dim = accepted[0][0]
    try:
        rows = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise UsageError(
            f"The {name} is {given!r:.80}: give an array of {dim} numbers, or a batch "
            f"[n, {dim}]."
        ) from None
    single = rows.shape in accepted or (dim == 1 and rows.shape == ())
    if rows.size == 0 or not (single or rows.shape[1:] in accepted):
        raise UsageError(
            f"The {name} has shape {rows.shape}; give one of shape "
            f"{' or '.join(map(str, dict.fromkeys(accepted)))}, or a batch of them."
        )
    if not np.isfinite(rows).all():
        raise UsageError(
            f"The {name} has entries that are not finite: give finite ones."
        )
    return rows.reshape(-1, dim), single


def whole(name: str, given: Any, least: int, most: int) -> int:
    """A whole number within bounds; 1e4 is one as well.

    Raises:
        UsageError: It is none.
    """
    try:
        number = int(given)
        if number == given and least <= number <= most and given is not True:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(
        f"{name} is {given!r}; it must be a whole number from {least} to {most}."
    )


def as_numpy(given: Any) -> Any:
    """A tensor of PyTorch, wherever it lies, as an array; anything else as it is."""
    return given.detach().cpu().numpy() if hasattr(given, "detach") else given


def array_like(given: Any, found: np.ndarray) -> Any:
    """An array of the library that the given one is of."""
    if isinstance(given, jax.Array):
        return jnp.asarray(found)
    if hasattr(given, "new_tensor"):
        return given.new_tensor(found)
    return found
