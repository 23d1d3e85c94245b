"""Episodes that advance side by side: pombu's tasks in one call, others in turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding

from pombu.envs.environment import Array32, Array64, TaskEnv, to_float32
from pombu.envs.history import first_stack, next_stack
from pombu.envs.task import Task

Rows = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """What a reset or a step gave for the rows that went well."""

    rows: Rows
    observations: Array32
    rewards: Array64
    terminated: Flags
    truncated: Flags
    fault: str | None = None
    """What went wrong with the first row that did not."""


@runtime_checkable
class Stepper(Protocol):
    """As many episodes side by side as it was made for."""

    def reset(self, seeds: Sequence[int]) -> Outcome:
        """Begin all episodes, each with its seed."""

    def step(self, rows: Rows, actions: Array32) -> Outcome:
        """Advance the episodes in `rows` by one action each, in the box's units."""

    def close(self) -> None:
        """Free the environments."""


class Together:
    """A pombu task's world, all episodes in one call.

    Each episode draws from its own generator in the order that the environment does, so
    the result equals stepping environments one by one.
    """

    def __init__(self, task: Task, number: int) -> None:
        env = task.make().unwrapped
        assert isinstance(env, TaskEnv)
        self._world = env.world
        box = env.action_space
        assert isinstance(box, gymnasium.spaces.Box)
        self._low, self._high = box.low.astype(float), box.high.astype(float)
        self._generators: list[np.random.Generator] = []
        self._horizon = task.horizon
        self._history = task.config.history
        self._stack = np.empty(0, np.float32)
        self._states = np.empty(0)
        self._noise = np.empty(0)
        self._step = 0

    def reset(self, seeds: Sequence[int]) -> Outcome:
        """Draw the starts, and all observation noise at once as the streams allow."""
        world = self._world
        self._generators = [seeding.np_random(int(seed))[0] for seed in seeds]
        self._states = np.stack([world.start(rng) for rng in self._generators])
        shape = (self._horizon, world.observe(self._states).shape[1])
        if world.noise.size:
            drawn = [world.noise.draw_episode(rng, *shape) for rng in self._generators]
            self._noise = np.stack(drawn, axis=1)
        self._step = 0
        n = len(self._states)
        self._stack = first_stack(self._observe(), self._history)
        return _finite(np.arange(n), self._stack, np.zeros(n), np.zeros(n, bool))

    def step(self, rows: Rows, actions: Array32) -> Outcome:
        """Advance every episode; these tasks never end before the time limit."""
        world = self._world
        clipped = np.clip(actions.astype(np.float64), self._low, self._high)
        before, self._states = (
            self._states,
            world.advance_all(self._states, clipped),
        )
        transition = world.observe(before), clipped, world.observe(self._states)
        rewards = world.contract.reward(*transition)
        terminated = world.contract.terminal(*transition)
        self._step += 1
        self._stack = next_stack(self._stack, self._observe())
        return _finite(rows, self._stack, rewards, terminated)

    def close(self) -> None:
        """Free the world."""
        self._world.close()

    def _observe(self) -> Array32:
        clean = self._world.observe(self._states)
        if self._noise.size:
            clean = clean + self._noise[self._step]
        return to_float32(clean)


class OneByOne:
    """Any Gymnasium environment, one instance per episode, stepped in turn."""

    def __init__(self, task: Task, number: int) -> None:
        self._envs = [task.make() for _ in range(number)]
        self._shape = (task.observation_dim,)
        self._box = task.action_box

    def reset(self, seeds: Sequence[int]) -> Outcome:
        """Reset each environment with its seed."""

        def one(row: int) -> tuple[Any, ...]:
            observation, _ = self._envs[row].reset(seed=int(seeds[row]))
            return observation, 0.0, False, False

        return self._each(range(len(self._envs)), one)

    def step(self, rows: Rows, actions: Array32) -> Outcome:
        """Step each environment; a fault leaves the others' transitions intact."""
        action_of = dict(zip(rows.tolist(), actions, strict=True))

        def one(row: int) -> tuple[Any, ...]:
            action = self._box.to_env(action_of[row])
            return self._envs[row].step(action)[:4]

        return self._each(rows.tolist(), one)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _each(self, rows: Sequence[int], one: Any) -> Outcome:
        done: list[int] = []
        results: list[tuple[Any, ...]] = []
        fault = None
        for row in rows:
            try:
                observation, *rest = one(row)
            except Exception as error:
                fault = fault or f"raised {type(error).__name__}: {error}"
                continue
            if any(map(np.ndim, rest)):
                reward, terminated, truncated = map(np.shape, rest)
                fault = fault or (
                    f"gave a reward of shape {reward} and flags of shapes "
                    f"{terminated} and {truncated} where one number each is due"
                )
                continue
            if observation.shape != self._shape:
                fault = fault or (
                    f"gave an observation with {observation.size} entries where its "
                    f"space has {self._shape[0]}"
                )
                continue
            done.append(row)
            results.append((observation, *rest))
        if not results:
            none = np.empty(0)
            empty = none.astype(np.float32).reshape(0, *self._shape)
            flags = none.astype(bool)
            return Outcome(none.astype(np.intp), empty, none, flags, flags, fault)
        observations, rewards, terminated, truncated = zip(*results, strict=True)
        return _finite(
            np.asarray(done),
            np.stack(observations),
            np.asarray(rewards, dtype=np.float64),
            np.asarray(terminated, dtype=bool),
            np.asarray(truncated, dtype=bool),
            fault,
        )


def _finite(
    rows: Rows,
    observations: Array32,
    rewards: Array64,
    terminated: Flags,
    truncated: Flags | None = None,
    fault: str | None = None,
) -> Outcome:
    """Leave out rows with NaN or infinity, and say so."""
    if truncated is None:
        truncated = np.zeros_like(terminated)
    good_observation = np.isfinite(observations).all(axis=1)
    good = good_observation & np.isfinite(rewards)
    if not good.all():
        what = "a reward" if good_observation.all() else "an observation"
        fault = fault or f"gave {what} that is not finite"
    return Outcome(
        rows[good],
        observations[good],
        rewards[good],
        terminated[good],
        truncated[good],
        fault,
    )
