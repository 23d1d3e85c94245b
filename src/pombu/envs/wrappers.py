"""Wrappers that bring any environment to the form pombu works with.

Observations are flat and may have noise, or be a short history: the last frames side by
side, newest first.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Bool, Float

from pombu.envs.config import Noise
from pombu.envs.contract import Contract, known_functions
from pombu.envs.environment import Array32


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


if TYPE_CHECKING:
    import jax


def first_stack(frame: Array32, history: int) -> Array32:
    """What is observed at the start of an episode: its first frame, repeated."""
    return np.concatenate([frame] * history, axis=-1)


def next_stack(stack: Array32, frame: Array32) -> Array32:
    """What is observed after one more frame: the oldest one is dropped."""
    return np.concatenate([frame, stack[..., : -frame.shape[-1]]], axis=-1)


def stack_episode(frames: Array32, history: int) -> Array32:
    """What is observed in an episode of these frames [T, frame]."""
    stacks = [first_stack(frames[0], history)]
    for frame in frames[1:]:
        stacks.append(next_stack(stacks[-1], frame))
    return np.stack(stacks)


class StackedObservation(gymnasium.Wrapper[Array32, Any, Array32, Any]):
    """Observations with those before them; `clean_observation` stays a single frame."""

    def __init__(self, env: gymnasium.Env[Array32, Any], history: int) -> None:
        super().__init__(env)
        self.history = history
        box = env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = spaces.Box(
            np.tile(box.low, history), np.tile(box.high, history), dtype=np.float32
        )
        self._stack = np.zeros(0, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array32, dict[str, Any]]:
        """Begin an episode."""
        frame, info = self.env.reset(seed=seed, options=options)
        self._stack = first_stack(frame, self.history)
        return self._stack, info

    def step(self, action: Any) -> tuple[Array32, Any, bool, bool, dict[str, Any]]:
        """One step."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._stack = next_stack(self._stack, frame)
        return self._stack, reward, terminated, truncated, info


@dataclass(frozen=True)
class StackedContract:
    """A contract about single frames, for states that are stacks of them."""

    whole: Contract
    frame_dim: int
    history: int

    @property
    def known(self) -> frozenset[str]:
        """Which functions are known."""
        return known_functions(self.whole)

    def reward(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Any:
        """Reward of one step, by the newest frames."""
        return self.whole.reward(self._newest(obs), action, self._newest(next_obs))

    def terminal(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Bool[Any, "*batch"]:
        """Whether the step ends the episode, by the newest frames."""
        return self.whole.terminal(self._newest(obs), action, self._newest(next_obs))

    def initial(self, key: "jax.Array", n: int) -> Any:
        """Draw `n` first frames, each repeated."""
        frames = self.whole.initial(key, n)
        xp = frames.__array_namespace__()
        return xp.concat([frames] * self.history, axis=-1)

    def _newest(self, stack: Float[Any, "*batch obs"]) -> Float[Any, "*batch frame"]:
        return stack[..., : self.frame_dim]
