"""Wrappers that bring any environment to the form pombu works with."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from pombu.envs.environment import Array32
from pombu.envs.noise import Noise
from pombu.errors import UsageError


class FlatObservation(gymnasium.Wrapper[Array32, Any, Any, Any]):
    """Observations as flat float32 vectors, whatever their shape and dtype were.

    Dicts and tuples are flattened as Gymnasium does it: entry after entry, and one of n
    choices as n numbers of which one is 1.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        box = spaces.flatten_space(env.observation_space)
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
        return self._flat(observation), info

    def step(self, action: Any) -> tuple[Array32, Any, bool, bool, dict[str, Any]]:
        """One step; the action keeps the shape of the environment's box."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._flat(observation), reward, terminated, truncated, info

    def _flat(self, observation: Any) -> Array32:
        space = self.env.observation_space
        if not isinstance(space, spaces.Box):
            observation = spaces.flatten(space, observation)
        # A copy: some environments give the array they go on to change.
        return np.array(observation, dtype=np.float32).ravel()


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


def flatten_rows(space: spaces.Space[Any], given: Any) -> Array32:
    """One observation of a Dict or Tuple as [d], or a batch of them as [n, d].

    A batch has one more axis in every entry.

    Raises:
        UsageError: It is not of this space.
    """
    try:
        part, leaf = space, given
        while isinstance(part, spaces.Dict | spaces.Tuple):
            key: Any = next(iter(part)) if isinstance(part, spaces.Dict) else 0
            part, leaf = part[key], leaf[key]
        if np.shape(leaf) == part.shape:
            return np.asarray(spaces.flatten(space, given), np.float32)
        batch = batch_space(space, len(leaf))
        rows = [spaces.flatten(space, one) for one in iterate(batch, given)]
        return np.asarray(rows, np.float32)
    except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
        raise UsageError(
            f"The observation does not fit the space {space} "
            f"({type(error).__name__}): give one of it, or a batch."
        ) from None
