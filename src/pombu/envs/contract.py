"""What the learner needs to know of a task: reward, termination, starts.

The functions below are written once for numpy and JAX arrays: the real environment
calls them on its clean float64 state and the learner on imagined float32 observations,
so the two cannot drift apart.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float

from pombu.envs.catalogue import LocomotionSpec
from pombu.envs.config import NO_NOISE, Noise
from pombu.errors import UsageError

if TYPE_CHECKING:
    import jax


@runtime_checkable
class Contract(Protocol):
    """A task's pure, jittable functions, batched over leading axes.

    Actions are in the environment's own units and already clipped to its box.
    """

    def reward(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Float[Any, "*batch"]:
        """Reward of one step."""

    def terminal(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Bool[Any, "*batch"]:
        """Whether the step ends the episode for good (a time limit does not)."""

    def initial(self, key: "jax.Array", n: int) -> Float[Any, "n obs"]:
        """Draw `n` first observations."""


FUNCTIONS = ("reward", "terminal", "initial")
"""What a contract may consist of."""


@dataclass(frozen=True)
class Part:
    """A user's contract, of which perhaps only some functions are known.

    The others are learned. What a user's functions give is looked at where it is used,
    so that a wrong shape can be named.
    """

    whole: Any
    known: frozenset[str]

    def reward(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Any:
        """The known reward; whoever lacks it learns one instead of asking."""
        return _traced("reward", self.whole.reward, obs, action, next_obs)

    def terminal(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Any:
        """The known termination; where it is not known, never."""
        if "terminal" in self.known:
            return _traced("terminal", self.whole.terminal, obs, action, next_obs)
        return _never(next_obs)

    def initial(self, key: "jax.Array", n: int) -> Any:
        """The known starts; whoever lacks them reuses observed ones."""
        return _traced("initial", self.whole.initial, key, n)

    def misspelt(self) -> dict[str, str]:
        """Methods that are not used, and the missing function each may stand for."""
        missing = [name for name in FUNCTIONS if name not in self.known]
        names = [name for name in dir(self.whole) if not name.startswith("_")]
        near = {n: difflib.get_close_matches(n, missing, 1, 0.75) for n in names}
        return {name: found[0] for name, found in near.items() if found}


def _traced(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a user's function gives, which JAX must be able to trace."""
    from jax.errors import JAXIndexError, JAXTypeError

    try:
        return function(*given)
    except (JAXIndexError, JAXTypeError) as error:
        raise UsageError(
            f"The environment's {name} function cannot be compiled "
            f"({type(error).__name__}): write it with jax.numpy instead of numpy, and "
            "jnp.where instead of if."
        ) from error


def known_functions(contract: Contract | None) -> frozenset[str]:
    """Which of a contract's functions are known."""
    if contract is None:
        return frozenset()
    known: frozenset[str] = getattr(contract, "known", frozenset(FUNCTIONS))
    return known


def without_termination(contract: Contract | None) -> Contract | None:
    """The same contract with its termination left to be learned."""
    if contract is None:
        return None
    return Part(contract, known_functions(contract) - {"terminal"})


def _never(next_obs: Float[Any, "*batch obs"]) -> Bool[Any, "*batch"]:
    xp = next_obs.__array_namespace__()
    return xp.zeros(next_obs.shape[:-1], dtype=bool)


def _noise_on_first(noise: Noise, key: "jax.Array", shape: tuple[int, ...]) -> Any:
    """What first observations have, where the kind of noise reaches them."""
    import jax

    size = noise.size if noise.on_first else 0.0
    return size * jax.random.normal(key, shape)


class Endless:
    """A contract whose episodes end by their time limit alone."""

    def terminal(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Bool[Any, "*batch"]:
        """Never."""
        return _never(next_obs)


@dataclass(frozen=True)
class PointContract(Endless):
    """Point mass of Appendix D: start U[-2, 2]^n, reward -|s'|^2."""

    dimensions: int
    alive_bonus: float = 0.0
    noise: Noise = NO_NOISE

    start_range = 2.0

    def reward(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Float[Any, "*batch"]:
        """-|s + a|^2, read off the next state so that model error reaches it."""
        return self.alive_bonus - (next_obs**2).sum(-1)

    def initial(self, key: "jax.Array", n: int) -> Float[Any, "n obs"]:
        """Uniform starts, with observation noise if the task has it."""
        import jax

        start_key, noise_key = jax.random.split(key)
        shape = (n, self.dimensions)
        bound = self.start_range
        start = jax.random.uniform(start_key, shape, minval=-bound, maxval=bound)
        return start + _noise_on_first(self.noise, noise_key, shape)


@dataclass(frozen=True)
class LocomotionContract(Endless):
    """Forward speed minus control effort minus departure from the target height."""

    spec: LocomotionSpec
    alive_bonus: float = 0.0
    noise: Noise = NO_NOISE

    def reward(
        self,
        obs: Float[Any, "*batch obs"],
        action: Float[Any, "*batch act"],
        next_obs: Float[Any, "*batch obs"],
    ) -> Float[Any, "*batch"]:
        """The paper's formula; velocity and height come from before the step."""
        spec = self.spec
        velocity = obs[..., spec.velocity_index]
        effort = (action**2).sum(-1)
        reward = velocity - spec.control_cost * effort + self.alive_bonus
        if spec.height_index is None:
            return reward
        lapse = obs[..., spec.height_index] - spec.target_height
        return reward - spec.height_cost * lapse**2

    def start_state(
        self, position_noise: Float[Any, "*batch q"], velocity: Float[Any, "*batch v"]
    ) -> Float[Any, "*batch state"]:
        """The start state [qpos, qvel] at this distance from rest.

        Noise reaches a quaternion too, which is brought back to unit length here
        because MuJoCo's next step would do so and the two must not differ.
        """
        xp = position_noise.__array_namespace__()
        position = xp.asarray(self.spec.rest, dtype=position_noise.dtype)
        position = position + position_noise
        if self.spec.quaternion_at is None:
            return xp.concat([position, velocity], axis=-1)
        start, end = self.spec.quaternion_at, self.spec.quaternion_at + 4
        quaternion = position[..., start:end]
        length = xp.sqrt((quaternion**2).sum(-1, keepdims=True))
        parts = [position[..., :start], quaternion / length, position[..., end:]]
        return xp.concat([*parts, velocity], axis=-1)

    def initial(self, key: "jax.Array", n: int) -> Float[Any, "n obs"]:
        """Starts around rest, with observation noise if the task has it."""
        import jax

        spec = self.spec
        position_key, velocity_key, noise_key = jax.random.split(key, 3)
        bound = spec.position_noise
        position_noise = jax.random.uniform(
            position_key, (n, spec.nq), minval=-bound, maxval=bound
        )
        if spec.normal_velocity:
            velocity = jax.random.normal(velocity_key, (n, spec.nv))
        else:
            velocity = jax.random.uniform(velocity_key, (n, spec.nv), minval=-1.0)
        state = self.start_state(position_noise, spec.velocity_noise * velocity)
        obs = state[:, spec.unobserved :]
        return obs + _noise_on_first(self.noise, noise_key, obs.shape)
