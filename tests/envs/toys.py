"""Small environments with known behaviour and known faults."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pombu.envs.contract import LocomotionContract
from pombu.envs.locomotion import LocomotionEnv, LocomotionPhysics


class Counter(gymnasium.Env[Any, Any]):
    """Observes (row, column) of a counter as a 2 x 1 integer array; reward is its size.

    Ends for good after `length` steps.
    """

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.length = length
        self.observation_space = spaces.Box(-100, 100, (2, 1), np.int64)
        self.action_space = spaces.Box(-3.0, 5.0, (1, 2), np.float32)
        self.count = 0
        self.received: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = int(self.np_random.integers(10))
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (1, 2)
        self.received.append(action)
        self.count += 1
        self.steps += 1
        terminated = self.steps == self.length
        return self._observe(), float(self.count), terminated, False, {}

    def _observe(self) -> Any:
        return np.array([[self.count], [1]])


class Faulty(Counter):
    """Goes wrong in its third step, in the way it is told to."""

    fault = ""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.steps == 3:
            if self.fault == "raise":
                raise OSError("the cable came loose")
            if self.fault == "reward":
                reward = float("nan")
            if self.fault == "text":
                reward = "much"  # type: ignore[assignment]
            if self.fault == "complex":
                reward = np.complex64(1j)  # type: ignore[assignment]
            if self.fault == "observation":
                observation = observation * np.nan
            if self.fault == "shape":
                observation = np.zeros(5)
        return observation, reward, terminated, truncated, info


class Raises(Faulty):
    fault = "raise"


class NanReward(Faulty):
    fault = "reward"


class TextReward(Faulty):
    fault = "text"


class ComplexReward(Faulty):
    fault = "complex"


class NanObservation(Faulty):
    fault = "observation"


class OtherShape(Faulty):
    fault = "shape"


class AtOnce(Counter):
    """Ends in its first step."""

    def __init__(self) -> None:
        super().__init__(length=1)


class UnboundedActions(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class IntegerActions(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(0, 3, (2,), np.int64)


class CounterContract:
    """What `Counter` does, with an error where the subclass says so."""

    def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return next_obs[..., 0]

    def terminal(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return obs[..., 0] < -1000

    def initial(self, key: Any, n: int) -> Any:
        import jax
        import jax.numpy as jnp

        count = jax.random.randint(key, (n,), 0, 10).astype(jnp.float32)
        return jnp.stack([count, jnp.ones(n)], axis=-1)


class Endless(Counter):
    """A counter that never ends, with a contract that is right."""

    contract: Any = CounterContract()

    def __init__(self) -> None:
        super().__init__(length=10**9)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 1), np.float64)


class WrongReward(Endless):
    class Contract(CounterContract):
        def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
            return next_obs[..., 0] + 0.5

    contract = Contract()


class WrongRewardShape(Endless):
    class Contract(CounterContract):
        def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
            return next_obs[..., :1]

    contract = Contract()


class WrongTermination(Endless):
    class Contract(CounterContract):
        def terminal(self, obs: Any, action: Any, next_obs: Any) -> Any:
            return obs[..., 0] > 20

    contract = Contract()


class WrongStarts(Endless):
    class Contract(CounterContract):
        def initial(self, key: Any, n: int) -> Any:
            return super().initial(key, n) * 3.0 - 2.0

    contract = Contract()


class NotJittable(Endless):
    class Contract(CounterContract):
        def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
            return float(next_obs[0, 0])

    contract = Contract()


class HalfContract(Endless):
    contract = object()


def behind_a_wrapper() -> gymnasium.Env[Any, Any]:
    """An environment whose contract does not describe what is observed."""
    return gymnasium.wrappers.TransformObservation(
        env := Endless(), lambda observation: -observation, env.observation_space
    )


class Unseeded(Counter):
    """Ignores its seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=None)


def not_an_env() -> int:
    return 3


def breaks() -> gymnasium.Env[Any, Any]:
    raise OSError("no simulator here")


def needs_argument(port: int) -> gymnasium.Env[Any, Any]:
    return Counter(port)


not_callable = 1


class FallingContract(LocomotionContract):
    """Walker2d's, where an episode is over once the body is low or leans far."""

    def terminal(self, obs: Any, action: Any, next_obs: Any) -> Any:
        height, angle = next_obs[..., 0], next_obs[..., 1]
        return (height < 1.0) | (abs(angle) > 0.5)


class FallingWalker(LocomotionEnv):
    """A MuJoCo task in the style of the catalogue whose episodes end early."""

    def __init__(self, **options: Any) -> None:
        super().__init__("Walker2d", **options)
        own = self.physics.contract
        contract = FallingContract(own.spec, own.alive_bonus, own.noise)
        self.physics = LocomotionPhysics(contract)
