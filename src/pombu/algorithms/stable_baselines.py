"""sbx, which is Stable-Baselines3 in JAX, behind pombu's face.

Networks, losses and optimisers are sbx's; collection, evaluation, checkpoints and
random draws are pombu's. A model object is only a place to compute in: what it has
learned is read out as plain arrays after each iteration and written back before the
next, so nothing is ever pickled. Buffers of Stable-Baselines3 draw from the global
generator of NumPy, which is seeded by name and put back afterwards.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pombu.algorithms.base import Progress
from pombu.envs import Task
from pombu.errors import UsageError
from pombu.nn import MLP
from pombu.training.algorithm import Policy

try:
    import torch as torch

    with warnings.catch_warnings():
        # TensorFlow Probability, which sbx imports, uses names that JAX is to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        from flax.serialization import from_state_dict, to_state_dict
        from flax.training.train_state import TrainState
        from sbx import PPO as PPO
        from sbx import SAC as SAC
        from sbx import TQC as TQC
        from sbx import CrossQ as CrossQ
    from stable_baselines3.common.buffers import ReplayBuffer as ReplayBuffer
    from stable_baselines3.common.buffers import RolloutBuffer as RolloutBuffer
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import Schedule
except ImportError as error:
    raise UsageError(
        "SAC, DroQ, TQC, CrossQ and PPO need sbx, which cannot be imported "
        f"({error}): pip install 'pombu[baselines]'."
    ) from None

Model = SAC | TQC | CrossQ | PPO
Networks = dict[str, dict[str, Any]]
"""Parameters, targets, running statistics and optimisers' memory, by sbx's names."""


class SbxState(Progress):
    """Everything that a run is, beside its episodes; nothing is ever imagined."""

    replaced: ClassVar[Mapping[str, str]] = {
        "networks/tensors/": "its PyTorch implementation (Stable-Baselines3)"
    }
    """How arrays of earlier versions are named, and what wrote them."""

    networks: Networks


class Spaces(gymnasium.Env[np.ndarray, np.ndarray]):
    """A task's spaces, from which sbx sizes its networks.

    The action space is policy space, so that its own scaling of actions does nothing.
    """

    def __init__(self, task: Task) -> None:
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, (task.observation_dim,), np.float32
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (task.action_dim,))


def _train_states(holder: Any) -> dict[str, TrainState]:
    return {
        name: value
        for name, value in sorted(vars(holder).items())
        if isinstance(value, TrainState)
    }


def _plain(states: Mapping[str, TrainState]) -> Networks:
    # Numbers that Flax begins with come back from training as arrays of 32 bits.
    return {
        name: jax.tree.map(lambda x: np.asarray(jnp.asarray(x)), to_state_dict(state))
        for name, state in states.items()
    }


def read(model: Model) -> Networks:
    """Copy out all that a model has learned."""
    return _plain({**_train_states(model.policy), **_train_states(model)})


def write(model: Model, networks: Networks) -> None:
    """Copy it back in."""
    for holder in (model.policy, model):
        for name, state in _train_states(holder).items():
            arrays = jax.tree.map(jnp.asarray, networks[name])
            setattr(holder, name, from_state_dict(state, arrays))


def fresh(model: Model, key: PRNGKeyArray, rate_or_clip: float) -> Networks:
    """Untrained networks; a temperature is not among them.

    Args:
        model: gives their sizes; what it has learned does not matter.
        key: for the initial weights.
        rate_or_clip: the last argument of the policy's `build`: the critics' learning
            rate, or for PPO the largest norm of a gradient.
    """
    schedule: Schedule = model.lr_schedule
    kind: Callable[..., Any] = model.policy_class
    spaces = model.observation_space, model.action_space
    policy = kind(*spaces, schedule, **model.policy_kwargs)
    policy.build(bits(key), schedule, rate_or_clip)
    return _plain(_train_states(policy))


def bits(key: PRNGKeyArray) -> jax.Array:
    """A key in the older form, which sbx makes its own in."""
    return jax.random.key_data(key)


@contextlib.contextmanager
def seeded(numbers: Sequence[int]) -> Iterator[None]:
    """Let NumPy's global generator draw from `numbers`, and leave it as it was."""
    kept = np.random.get_state()
    np.random.seed(np.random.SeedSequence(numbers).generate_state(1))
    try:
        yield
    finally:
        np.random.set_state(kept)


def silent() -> Logger:
    """A logger that only keeps the last values."""
    return Logger(folder=None, output_formats=[])


def logged(logger: Logger, names: Mapping[str, str]) -> dict[str, float]:
    """Values of the last training, under pombu's names for them."""
    values = logger.name_to_value
    return {own: float(values[name]) for name, own in names.items() if name in values}


def act_with(
    model: Model,
    networks: Networks,
    prepare: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Policy:
    """A policy in the form in which runs are evaluated.

    Args:
        model: which computes; what it has learned is not touched.
        networks: the policy's are among them.
        prepare: what is done to observations before the policy sees them.
    """
    kind = type(model.policy)
    arrays = jax.tree.map(jnp.asarray, networks["actor_state"])
    actor = from_state_dict(model.policy.actor_state, arrays)

    def act(
        observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
    ) -> np.ndarray:
        seen = prepare(observations)
        if deterministic:
            actions = kind.select_action(actor, seen)
        else:
            actions = kind.sample_action(actor, seen, bits(key))
        clipped: np.ndarray = np.clip(np.asarray(actions), -1.0, 1.0)
        return clipped

    return act


EPSILON = 1e-3
"""What sbx's batch renormalisation adds to a variance."""


def plain_mean(networks: Networks, activation: Literal["tanh", "relu"]) -> MLP:
    """The network of a policy's mean, with layers of batch renormalisation merged.

    Such a layer is a scale and a shift of what goes into the next one once its
    statistics are no longer updated, which is how policies act.
    """
    actor = networks["actor_state"]
    layers = actor["params"].get("params", actor["params"])
    statistics = actor.get("batch_stats", {})
    names = [name for name in layers if name.startswith("Dense_")]
    # The last layer of a soft actor-critic's policy gives the logarithm of its noise.
    depth = len(names) if "log_std" in layers else len(names) - 1
    weights, biases = [], []
    for i in range(depth):
        weight, bias = (layers[f"Dense_{i}"][part] for part in ("kernel", "bias"))
        if own := statistics.get(f"BatchRenorm_{i}"):
            norm = layers[f"BatchRenorm_{i}"]
            scale = norm["scale"] / np.sqrt(own["var"] + EPSILON)
            bias = bias + (norm["bias"] - own["mean"] * scale) @ weight
            weight = scale[:, None] * weight
        weights.append(jnp.asarray(weight))
        biases.append(jnp.asarray(bias))
    return MLP(tuple(weights), tuple(biases), activation)


def to_policy_space(task: Task, actions: np.ndarray) -> np.ndarray:
    """Environment actions as a policy would name them."""
    box = task.action_box
    scaled: np.ndarray = (actions - box.middle) / box.unit
    return scaled.astype(np.float32)
