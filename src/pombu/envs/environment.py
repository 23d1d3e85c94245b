"""What pombu's own tasks share as Gymnasium environments, and the simplest of them.

Besides, the action box of any environment. The simplest task is the point mass of
Appendix D, in two and three dimensions.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from jaxtyping import Float

from pombu.envs.config import Noise, NoiseKind, require_bonus, require_noise
from pombu.envs.contract import Contract, PointContract
from pombu.errors import UsageError

Array32 = npt.NDArray[np.float32]
Array64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ActionBox:
    """The environment's finite action bounds; a policy's [-1, 1] spans them.

    This is the one place where policy actions become environment actions.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...] | None = None
    """Of the environment's own box; None is a flat one."""
    dtype: str = "float32"

    @property
    def dim(self) -> int:
        """Number of action entries."""
        return len(self.low)

    def to_box(self, action: Float[Any, "*batch act"]) -> Float[Any, "*batch act"]:
        """Clip a policy's action to [-1, 1] and map it to the environment's units.

        Works on numpy and JAX arrays and keeps their precision.
        """
        low = np.asarray(self.low, dtype=action.dtype)
        high = np.asarray(self.high, dtype=action.dtype)
        mapped = (high + low) / 2 + action.clip(-1, 1) * ((high - low) / 2)
        # Rounding may lead past a bound.
        return self.clip(mapped)

    def clip(self, boxed: Float[Any, "*batch act"]) -> Float[Any, "*batch act"]:
        """Actions in the environment's units, no further than its bounds."""
        low = np.asarray(self.low, dtype=boxed.dtype)
        return boxed.clip(low, np.asarray(self.high, dtype=boxed.dtype))

    @property
    def middle(self) -> np.ndarray:
        """What a policy's 0 means, in the environment's units."""
        middle: np.ndarray = (np.asarray(self.high) + np.asarray(self.low)) / 2
        return middle

    @property
    def unit(self) -> np.ndarray:
        """What a policy's step from 0 to 1 means, in the environment's units.

        1 where the box leaves no choice: such an entry is always 0 to a policy.
        """
        half = (np.asarray(self.high) - np.asarray(self.low)) / 2
        unit: np.ndarray = np.where(half > 0, half, 1.0)
        return unit

    def to_env(self, boxed: np.ndarray) -> np.ndarray:
        """Actions in the shape and dtype of the environment's box, and within it.

        Takes one action in the environment's units, or a batch of them.
        """
        shape = (self.dim,) if self.shape is None else self.shape
        actions: np.ndarray = np.clip(boxed.astype(self.dtype), self.low, self.high)
        return actions.astype(self.dtype).reshape((*boxed.shape[:-1], *shape))


@runtime_checkable
class Physics(Protocol):
    """A task's real dynamics as functions of a float64 state vector.

    The next state depends on nothing but state and action, so one object serves one
    environment and a whole batch of episodes, with equal results.
    """

    @property
    def contract(self) -> Contract:
        """The task's reward, termination and starts."""

    @property
    def noise(self) -> Noise:
        """The noise on observations."""

    def start(self, rng: np.random.Generator) -> Array64:
        """Draw a start state."""

    def advance(self, state: Array64, action: Array64) -> Array64:
        """The state one control step later."""

    def advance_all(self, states: Array64, actions: Array64) -> Array64:
        """`advance` for every row."""

    def observe(self, state: Array64) -> Array64:
        """The clean observation of a state, batched over leading axes."""

    def close(self) -> None:
        """Free what it holds."""


class TaskEnv(gymnasium.Env[Array32, Any]):
    """Physics with seeding, observation noise, action checks and clipping."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        physics: Physics,
        observation_dim: int,
        action_bound: float,
        action_dim: int,
        steps_per_second: float,
        render_mode: str | None,
    ) -> None:
        if render_mode not in {None, *self.metadata["render_modes"]}:
            raise UsageError(
                f"render_mode {render_mode!r} is not known; pombu's tasks render "
                "'rgb_array', or nothing with None."
            )
        self.metadata = {**self.metadata, "render_fps": round(steps_per_second)}
        self.render_mode = render_mode
        self.physics = physics
        self.observation_space = spaces.Box(
            -np.inf, np.inf, (observation_dim,), np.float32
        )
        self._box = spaces.Box(-action_bound, action_bound, (action_dim,), np.float32)
        self.action_space = self._box
        self._state: Array64 | None = None

    @property
    def contract(self) -> Contract:
        """The task's reward, termination and starts."""
        return self.physics.contract

    @property
    def state(self) -> Array64:
        """The clean float64 state."""
        if self._state is None:
            raise UsageError("The environment has no state yet: call reset() first.")
        return self._state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array32, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._state = self.physics.start(self.np_random)
        return self._observe(self.physics.noise.on_first)

    def step(self, action: Any) -> tuple[Array32, float, bool, bool, dict[str, Any]]:
        """Clip the action to the box, advance, and reward from the clean state."""
        clipped = _clip_to_box(action, self._box)
        before = self.state
        self._state = self.physics.advance(before, clipped)
        obs, next_obs = self.physics.observe(before), self.physics.observe(self._state)
        reward = float(self.contract.reward(obs, clipped, next_obs))
        terminated = bool(self.contract.terminal(obs, clipped, next_obs))
        observation, info = self._observe(self.physics.noise.size > 0)
        return observation, reward, terminated, False, info

    @abstractmethod
    def render(self) -> npt.NDArray[np.uint8] | None:
        """The current state as an RGB picture, in render mode `rgb_array`."""

    def close(self) -> None:
        """Free the physics."""
        self.physics.close()

    def _observe(self, noisy: bool) -> tuple[Array32, dict[str, Any]]:
        clean = self.physics.observe(self.state)
        seen = clean
        if noisy:
            seen = clean + self.physics.noise.draw(self.np_random, clean.shape)
        return to_float32(seen), {"clean_observation": to_float32(clean)}


def to_float32(values: Array64) -> Array32:
    """Single precision; what does not fit is infinite, for collection to report."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _clip_to_box(action: npt.ArrayLike, box: spaces.Box) -> Array64:
    """The action clipped to the box, in float64; raise if it is none for that box."""
    array = np.asarray(action, dtype=np.float64)
    if array.shape != box.shape:
        raise UsageError(
            f"The action has shape {array.shape}, but this environment takes "
            f"{box.shape}: give one number per actuator."
        )
    if not np.isfinite(array).all():
        raise UsageError(
            f"The action {array.tolist()} is not finite: give numbers between "
            f"{box.low.min():g} and {box.high.max():g}."
        )
    return np.clip(array, box.low.astype(np.float64), box.high.astype(np.float64))


ACTION_BOUND = 0.1


class PointPhysics:
    """s' = s + a."""

    def __init__(self, contract: PointContract) -> None:
        self.contract = contract

    @property
    def noise(self) -> Noise:
        """The noise on observations."""
        return self.contract.noise

    def start(self, rng: np.random.Generator) -> Array64:
        """Uniform in the start square or cube."""
        bound = self.contract.start_range
        return rng.uniform(-bound, bound, self.contract.dimensions)

    def advance(self, state: Array64, action: Array64) -> Array64:
        """The state moved by the action."""
        return state + action

    advance_all = advance

    def observe(self, state: Array64) -> Array64:
        """The state itself."""
        return state

    def close(self) -> None:
        """Nothing to free."""


class PointEnv(TaskEnv):
    """A point that is rewarded for being near the origin."""

    def __init__(
        self,
        dimensions: int,
        observation_noise: float = 0.0,
        alive_bonus: float = 0.0,
        noise_kind: NoiseKind = "gaussian",
        render_mode: str | None = None,
    ) -> None:
        require_noise(observation_noise, noise_kind)
        require_bonus(alive_bonus)
        noise = Noise(observation_noise, noise_kind)
        contract = PointContract(dimensions, alive_bonus, noise)
        super().__init__(
            PointPhysics(contract),
            observation_dim=dimensions,
            action_bound=ACTION_BOUND,
            action_dim=dimensions,
            steps_per_second=10.0,
            render_mode=render_mode,
        )

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The first two coordinates seen from above; nearer in depth is larger."""
        if self.render_mode is None:
            return None
        size, reach = 256, 5.0
        axis = np.linspace(-reach, reach, size)
        across, up = np.meshgrid(axis, -axis)
        picture = np.full((size, size, 3), 255, np.uint8)
        picture[np.minimum(abs(across), abs(up)) < reach / size] = 225
        picture[across**2 + up**2 < 0.15**2] = (60, 160, 80)
        depth = self.state[2] if len(self.state) > 2 else 0.0
        radius = 0.18 * np.exp(depth / reach)
        near = (across - self.state[0]) ** 2 + (up - self.state[1]) ** 2 < radius**2
        picture[near] = (40, 90, 200)
        return picture
