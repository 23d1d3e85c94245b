"""Wrappers that bring any environment to the form pombu works with."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pombu.envs.environment import Array32
from pombu.envs.noise import Noise


class FlatObservation(gymnasium.Wrapper[Array32, Any, Any, Any]):
    """Observations as flat float32 vectors, whatever their shape and dtype were."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        box = env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = spaces.Box(
            box.low.astype(np.float32).ravel(),
            box.high.astype(np.float32).ravel(),
            dtype=np.float32,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array32, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return _flat(observation), info

    def step(self, action: Any) -> tuple[Array32, Any, bool, bool, dict[str, Any]]:
        """One step; the action keeps the shape of the environment's box."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return _flat(observation), reward, terminated, truncated, info


class NoisyObservation(gymnasium.Wrapper[Array32, Any, Array32, Any]):
    """Noise on observations: Gaussian on all, or uniform on all but the first."""

    def __init__(self, env: gymnasium.Env[Array32, Any], noise: Noise) -> None:
        super().__init__(env)
        self.noise = noise
        shape = env.observation_space.shape
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array32, dict[str, Any]]:
        """Begin an episode; the seed also starts the noise."""
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            # A stream of its own: the environment draws from default_rng(seed) itself.
            self._rng = np.random.default_rng([seed, 1])
        if not self.noise.on_first:
            return observation, {**info, "clean_observation": observation}
        return self._blur(observation, info)

    def step(self, action: Any) -> tuple[Array32, Any, bool, bool, dict[str, Any]]:
        """One step; the reward is the environment's own and so free of this noise."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._blur(observation, info)
        return observation, reward, terminated, truncated, info

    def _blur(
        self, clean: Array32, info: dict[str, Any]
    ) -> tuple[Array32, dict[str, Any]]:
        noisy = clean + self.noise.draw(self._rng, clean.shape)
        return noisy.astype(np.float32), {**info, "clean_observation": clean}


def _flat(observation: Any) -> Array32:
    # A copy: some environments give the array they go on to change.
    return np.array(observation, dtype=np.float32).ravel()
