"""A trained policy as one small file that needs no JAX to run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from pombu.agent.numpy_policy import checksum
from pombu.data import Experience
from pombu.envs import Task
from pombu.errors import RunError, UsageError
from pombu.files import write_atomic
from pombu.nn import MLP, GaussianPolicy, SquashedPolicy

FORMAT = "1"


def export_policy(path: Path, task: Task, state: Any, about: dict[str, Any]) -> None:
    """Write the policy's network, its input's units and the action box.

    A Gaussian policy's log-std is written too; what makes another policy differ (SiLU
    layers, tanh after the mean) is an entry of that name. `pombu.agent.numpy_policy`
    reads it back in a few lines of NumPy.

    Raises:
        UsageError: The state holds no policy of this kind.
        RunError: The policy has numbers that are not finite.
    """
    policy = getattr(state, "policy", None)
    experience = getattr(state, "experience", None)
    if not (
        isinstance(policy, GaussianPolicy | SquashedPolicy)
        and isinstance(experience, Experience)
    ):
        raise UsageError(
            f"A {about.get('algorithm')} policy cannot be exported: only those of "
            "algorithms that learn a Gaussian policy network can, such as pombu."
        )
    network, own = _network(policy)
    arrays = {
        "observation_mean": experience.observation.mean,
        "observation_std": experience.observation.std,
        "low": np.asarray(task.action_box.low),
        "high": np.asarray(task.action_box.high),
        **own,
    }
    for i, (weight, bias) in enumerate(
        zip(network.weights, network.biases, strict=True)
    ):
        arrays[f"weight_{i}"] = np.asarray(weight)
        arrays[f"bias_{i}"] = np.asarray(bias)
    plain = {
        name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()
    }
    if bad := [name for name, array in plain.items() if not np.isfinite(array).all()]:
        raise RunError(
            f"The policy has numbers that are not finite ({bad[0]}), so it was not "
            "exported: export another checkpoint."
        )
    # One entry alone, because the order of several in the file is left to chance.
    seal = {"format": FORMAT, "about": about, "sha256": checksum(plain)}
    write_atomic(path, save(plain, {"pombu": json.dumps(seal)}))


def _network(
    policy: GaussianPolicy | SquashedPolicy,
) -> tuple[MLP, dict[str, np.ndarray]]:
    """The layers of the mean, and the entries that only this kind of policy has."""
    if isinstance(policy, GaussianPolicy):
        return policy.mean, {"log_std": np.asarray(policy.log_std)}
    net = policy.network
    actions = net.biases[-1].shape[0] // 2
    mean = MLP(
        (*net.weights[:-1], net.weights[-1][:, :actions]),
        (*net.biases[:-1], net.biases[-1][:actions]),
        net.activation,
    )
    return mean, {"silu": np.ones(1), "squash": np.ones(1)}
