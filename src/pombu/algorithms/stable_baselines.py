"""Stable-Baselines3 behind pombu's face.

Networks, losses and optimisers are Stable-Baselines3's; collection, evaluation,
checkpoints and random draws are pombu's. A model object is only a place to compute in:
what it has learned is read out as plain arrays after each iteration and written back
before the next, so nothing is ever pickled. Stable-Baselines3 draws from the global
generators of NumPy and torch; they are seeded by name and put back afterwards.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax
import numpy as np

from pombu.envs import Task
from pombu.errors import UsageError
from pombu.training.algorithm import Policy

try:
    import torch
    from stable_baselines3 import PPO as PPO
    from stable_baselines3 import SAC as SAC
    from stable_baselines3.common.buffers import ReplayBuffer as ReplayBuffer
    from stable_baselines3.common.buffers import RolloutBuffer as RolloutBuffer
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.policies import ActorCriticPolicy as ActorCriticPolicy
    from stable_baselines3.common.policies import BasePolicy
except ImportError:
    raise UsageError(
        "SAC and PPO need Stable-Baselines3, which is not installed: "
        "pip install 'pombu[baselines]'."
    ) from None

# Networks this small gain nothing from threads, and how many cores there are must not
# show in the numbers.
torch.set_num_threads(1)


class AdamState(NamedTuple):
    """An optimiser's memory, one entry per parameter."""

    steps: np.ndarray
    means: tuple[np.ndarray, ...]
    squares: tuple[np.ndarray, ...]


class Snapshot(eqx.Module):
    """All that a model has learned."""

    tensors: dict[str, np.ndarray]
    optimisers: tuple[AdamState, ...]


class Learned(NamedTuple):
    """The parts of a model that learning changes."""

    tensors: Mapping[str, torch.Tensor]
    optimisers: Sequence[torch.optim.Optimizer]

    def read(self) -> Snapshot:
        """Copy everything out."""
        tensors = {name: _array(tensor) for name, tensor in self.tensors.items()}
        return Snapshot(tensors, tuple(map(_read_adam, self.optimisers)))

    @torch.no_grad()
    def write(self, snapshot: Snapshot) -> None:
        """Copy everything back in."""
        for name, tensor in self.tensors.items():
            tensor.copy_(torch.from_numpy(snapshot.tensors[name]))
        for optimiser, state in zip(self.optimisers, snapshot.optimisers, strict=True):
            _write_adam(optimiser, state)


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().numpy().copy()
    return array


def _parameters(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimiser.param_groups for one in group["params"]]


def _read_adam(optimiser: torch.optim.Optimizer) -> AdamState:
    """Zeros, as Adam itself begins, where no step was taken yet."""
    parameters = _parameters(optimiser)
    memory = [optimiser.state.get(one, {}) for one in parameters]

    def moments(name: str) -> tuple[np.ndarray, ...]:
        return tuple(
            _array(one.get(name, torch.zeros_like(parameter)))
            for one, parameter in zip(memory, parameters, strict=True)
        )

    steps = np.array([float(one.get("step", 0.0)) for one in memory], np.float32)
    return AdamState(steps, moments("exp_avg"), moments("exp_avg_sq"))


def _write_adam(optimiser: torch.optim.Optimizer, state: AdamState) -> None:
    entries = zip(_parameters(optimiser), *state, strict=True)
    for parameter, step, mean, square in entries:
        optimiser.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": torch.from_numpy(mean.copy()),
            "exp_avg_sq": torch.from_numpy(square.copy()),
        }


@contextlib.contextmanager
def seeded(numbers: Sequence[int]) -> Iterator[None]:
    """Let the global generators draw from `numbers`, and leave them as they were."""
    kept_numpy, kept_torch = np.random.get_state(), torch.get_rng_state()
    for_numpy, for_torch = np.random.SeedSequence(numbers).generate_state(2)
    np.random.seed(for_numpy)
    torch.manual_seed(int(for_torch))
    try:
        yield
    finally:
        np.random.set_state(kept_numpy)
        torch.set_rng_state(kept_torch)


class Spaces(gymnasium.Env[np.ndarray, np.ndarray]):
    """A task's spaces, from which Stable-Baselines3 sizes its networks.

    The action space is policy space, so that its own scaling of actions does nothing.
    """

    def __init__(self, task: Task) -> None:
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, (task.observation_dim,), np.float32
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (task.action_dim,))


ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}

without_gradients = torch.no_grad
"""The context in which nothing is recorded for a backward pass."""


def silent() -> Logger:
    """A logger that only keeps the last values."""
    return Logger(folder=None, output_formats=[])


def logged(logger: Logger, names: Mapping[str, str]) -> dict[str, float]:
    """Values of the last training, under pombu's names for them."""
    values = logger.name_to_value
    return {own: float(values[name]) for name, own in names.items() if name in values}


def policy_of(
    policy: BasePolicy, prepare: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Policy:
    """A policy in the form in which runs are evaluated and exported.

    Args:
        policy: with its parameters in place.
        prepare: what is done to observations before it sees them.
    """

    def act(
        observations: np.ndarray, deterministic: bool, key: jax.Array
    ) -> np.ndarray:
        with seeded([int(number) for number in jax.random.bits(key, (2,))]):
            actions, _ = policy.predict(
                prepare(observations), deterministic=deterministic
            )
        return actions

    return act


def tensor(array: np.ndarray) -> torch.Tensor:
    """An array as torch sees it."""
    return torch.as_tensor(array, dtype=torch.float32)


def to_policy_space(task: Task, actions: np.ndarray) -> np.ndarray:
    """Environment actions as a policy would name them."""
    box = task.action_box
    scaled: np.ndarray = (actions - box.middle) / box.unit
    return scaled.astype(np.float32)
