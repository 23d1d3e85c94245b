"""An exported policy for where JAX is not: this file needs NumPy and safetensors alone.

Copy it next to the exported file, or import it from pombu:

    act = load_policy("policy.safetensors")
    action = act(observation)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import load_file


def load_policy(path: str) -> Callable[[Any], np.ndarray]:
    """Read an exported policy; it maps one observation or a batch to mean actions."""
    p = load_file(path)
    depth = sum(name.startswith("weight_") for name in p)

    def bend(x: np.ndarray) -> Any:
        # x sigmoid(x), in a form that cannot overflow.
        return x * (1 + np.tanh(x / 2)) / 2 if "silu" in p else np.tanh(x)

    def act(observation: Any) -> np.ndarray:
        x = np.asarray(observation, np.float32)
        if x.shape[-1:] != p["observation_mean"].shape:
            x = x.reshape(-1, len(p["observation_mean"]))
            x = x[0] if len(x) == 1 else x
        x = (x - p["observation_mean"]) / p["observation_std"]
        for i in range(depth - 1):
            x = bend(x @ p[f"weight_{i}"] + p[f"bias_{i}"])
        x = x @ p[f"weight_{depth - 1}"] + p[f"bias_{depth - 1}"]
        x = np.tanh(x) if "squash" in p else x
        middle, half = (p["high"] + p["low"]) / 2, (p["high"] - p["low"]) / 2
        # Rounding may lead past a bound.
        action: np.ndarray = np.clip(
            middle + np.clip(x, -1, 1) * half, p["low"], p["high"]
        )
        return action

    return act
