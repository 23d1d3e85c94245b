"""Environments as a user would bring them, with known behaviour."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env[Any, Any]):
    """A point on a line that ends for good beyond 0.5; reward 1 - x'^2."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-0.5, 0.5, (1,), np.float32)
        self.x = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-0.2, 0.2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x += 0.3 * float(action[0])
        return self._observe(), 1.0 - self.x**2, abs(self.x) > 0.5, False, {}

    def _observe(self) -> Any:
        return np.array([self.x, 1.0], np.float32)


def corridor() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Corridor(), 12)


class KnownReward:
    """Only a reward; termination and starts are to be learned."""

    def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return 1.0 - next_obs[..., 0] ** 2


class KnownEnd:
    """Only a termination."""

    def terminal(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return abs(next_obs[..., 0]) > 0.5


class MisshapenReward:
    def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return 1.0 - next_obs**2


class Untraceable:
    """Written with NumPy, which cannot be compiled."""

    def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return np.where(next_obs[..., 0] > 0, 1.0, 0.0)


class Branching:
    """Asks for the value of what is only traced."""

    def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return 1.0 - next_obs[..., 0] ** 2 if (obs > 0).all() else 0.0 * obs[..., 0]


class Misspelt(KnownEnd):
    """Its reward goes by another name."""

    def rewards(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return 1.0 - next_obs[..., 0] ** 2


def _with(contract: Any) -> Any:
    env: Any = corridor()
    env.contract = contract
    return env


def with_reward() -> gymnasium.Env[Any, Any]:
    return _with(KnownReward())


def with_end() -> gymnasium.Env[Any, Any]:
    return _with(KnownEnd())


def untraceable() -> gymnasium.Env[Any, Any]:
    return _with(Untraceable())


def branching() -> gymnasium.Env[Any, Any]:
    return _with(Branching())


def misspelt() -> gymnasium.Env[Any, Any]:
    return _with(Misspelt())


def misshapen() -> gymnasium.Env[Any, Any]:
    return _with(MisshapenReward())


class Still(Corridor):
    """Observes always the same."""

    def _observe(self) -> Any:
        return np.array([0.3, 1.0], np.float32)


def still() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Still(), 12)


class AtOnce(Corridor):
    """Ends in its first step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, True, truncated, info


class Late(Corridor):
    """Goes wrong long after the check, in the way it is told to."""

    fault = ""
    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Late.steps += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if Late.steps > 400:
            if self.fault == "raise":
                raise OSError("the cable came loose")
            if self.fault == "nan":
                observation = observation * np.nan
            if self.fault == "shape":
                observation = np.zeros(5, np.float32)
        return observation, reward, terminated, truncated, info


class Raises(Late):
    fault = "raise"


class Nan(Late):
    fault = "nan"


class Shape(Late):
    fault = "shape"
