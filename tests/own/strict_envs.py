"""Environments that are right, and particular about what they are given."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class StrictEnv(gymnasium.Env[Any, Any]):
    """Refuses actions outside its lopsided box of shape 2 x 2 and of float64.

    It goes on to change the array that it gives as an observation.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1, 2), np.float32)
        low, high = np.array([-0.1, -0.7, 0.3, 1.1]), np.array([0.1, 0.2, 0.9, 7.3])
        self.action_space = spaces.Box(
            low.reshape(2, 2), high.reshape(2, 2), dtype=np.float64
        )
        self.state = np.zeros((1, 2), np.float32)
        self.reward_shape: tuple[int, ...] = ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state[:] = self.np_random.uniform(-0.2, 0.2, (1, 2))
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in the box")
        self.state += 0.1 * (action.sum() - 4.0)
        reward = np.full(self.reward_shape, -float(np.abs(self.state).sum()))
        return self.state, reward[()], False, False, {}


def strict() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(StrictEnv(), 12)


def in_a_list() -> gymnasium.Env[Any, Any]:
    """Its rewards come in arrays of one."""
    env = StrictEnv()
    env.reward_shape = (1,)
    return gymnasium.wrappers.TimeLimit(env, 12)


class Broken(StrictEnv):
    """Breaks in the real step after `steps` of them, in whatever instance."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        Broken.steps -= 1
        if Broken.steps < 0:
            raise OSError("the cable came loose")
        return super().step(action)


def broken() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Broken(), 12)
