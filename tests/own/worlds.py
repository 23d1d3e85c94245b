"""One small world, and what spoils it: for diagnoses whose answer is known."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Cart(gymnasium.Env[Any, Any]):
    """A cart that is to come to the middle and stay; a lamp swings behind it.

    Args:
        shift: added to every reward.
        noise: standard deviation of what is added to the lamp's observed angle.
        edge: the episode ends for good beyond it.
        clock: steps after which it terminates, as if for good.
    """

    observation_names = ("position", "velocity", "lamp")

    def __init__(
        self,
        shift: float = 0.0,
        noise: float = 0.0,
        edge: float = np.inf,
        clock: int | None = None,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.shift, self.noise, self.edge, self.clock = shift, noise, edge, clock
        self.state = np.zeros(3)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1.0, 1.0, 3)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        position, velocity, lamp = self.state
        velocity = 0.9 * velocity + 0.2 * float(action[0])
        position = position + 0.2 * velocity
        self.state = np.array([position, velocity, 0.9 * lamp - 0.3 * velocity])
        self.steps += 1
        reward = 1.0 - position**2 - 0.1 * velocity**2 + self.shift
        over = abs(position) > self.edge or self.steps == self.clock
        return self._observe(), float(reward), bool(over), False, {}

    def _observe(self) -> Any:
        flicker = self.noise * self.np_random.standard_normal()
        return (self.state + np.array([0, 0, flicker])).astype(np.float32)


def _limited(**spoilt: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Cart(**spoilt), 40)


def healthy() -> gymnasium.Env[Any, Any]:
    return _limited()


def richer() -> gymnasium.Env[Any, Any]:
    """Every step earns half a point more."""
    return _limited(shift=0.5)


def poorer() -> gymnasium.Env[Any, Any]:
    return _limited(shift=-0.5)


def noisy() -> gymnasium.Env[Any, Any]:
    """The lamp flickers."""
    return _limited(noise=0.5)


def ending() -> gymnasium.Env[Any, Any]:
    """Ends within the starts' reach, so that many episodes do."""
    return _limited(edge=0.5)


def clockwork() -> gymnasium.Env[Any, Any]:
    """A time limit of 12 steps in disguise."""
    return _limited(clock=12)
