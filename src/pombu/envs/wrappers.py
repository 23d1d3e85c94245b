"""Wrappers that bring any environment to the form pombu works with.

Observations are flat and may have noise, or be a short history: the last frames side by
side, newest first.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from jaxtyping import Bool, Float

from pombu.envs.config import Noise
from pombu.envs.contract import Contract, known_functions
from pombu.envs.environment import Array32
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


@dataclass(frozen=True)
class Leaf:
    """A part of an observation that is no Dict or Tuple itself, and where it lies."""

    path: tuple[str | int, ...]
    """Keys and positions that lead to it."""
    space: spaces.Space[Any]
    begin: int
    """Its first entry in the flat observation."""
    size: int

    @property
    def names(self) -> list[str]:
        """One per entry: `goal[1]`, or `goal` alone where there is only one."""
        name = ".".join(map(str, self.path))
        if self.size == 1:
            return [name]
        return [f"{name}[{i}]" for i in range(self.size)]

    @property
    def described(self) -> dict[str, Any]:
        """As JSON: all it takes to flatten such an observation."""
        found: dict[str, Any] = {
            "path": list(self.path),
            "begin": self.begin,
            "size": self.size,
        }
        if isinstance(self.space, spaces.Discrete):
            return {**found, "choices": [int(self.space.n)], "from": _first(self.space)}
        if isinstance(self.space, spaces.MultiDiscrete):
            choices = self.space.nvec.ravel().tolist()
            return {**found, "choices": choices, "from": _first(self.space)}
        return {**found, "shape": list(self.space.shape or ())}


def _first(space: spaces.Discrete | spaces.MultiDiscrete) -> list[int]:
    """The smallest of each of the space's choices."""
    return [int(one) for one in np.ravel(space.start)]


def leaves_of(space: spaces.Space[Any]) -> list[Leaf]:
    """The parts of a Dict or Tuple in the order in which they are flattened."""
    found: list[Leaf] = []

    def visit(part: spaces.Space[Any], path: tuple[str | int, ...]) -> None:
        if isinstance(part, spaces.Dict | spaces.Tuple):
            inner = part.items() if isinstance(part, spaces.Dict) else enumerate(part)
            for key, one in inner:
                visit(one, (*path, key))
            return
        begin = found[-1].begin + found[-1].size if found else 0
        found.append(Leaf(path, part, begin, spaces.flatdim(part)))

    visit(space, ())
    return found


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
