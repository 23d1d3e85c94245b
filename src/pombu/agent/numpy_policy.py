"""An exported policy for where JAX is not: this file needs NumPy and safetensors alone.

Copy it next to the exported file, or import it from pombu:

    act = load_policy("policy.safetensors")
    action = act(observation)
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

FORMAT = "1"


def checksum(arrays: Mapping[str, np.ndarray], about: Any) -> str:
    """The SHA-256 of named arrays and of what is written about them, as JSON."""
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.dtype} {array.shape} ".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


__all__ = ["load_policy"]


def load_policy(path: str) -> Callable[[Any], np.ndarray]:
    """Read an exported policy; it maps one observation or a batch to mean actions.

    Where observations were a Dict or Tuple in training, it takes such as well.

    Raises:
        ValueError: The file is not as it was written.
    """
    p, seal = _read(path)
    parts = seal.get("about", {}).get("observation") or []
    depth = sum(name.startswith("weight_") for name in p)

    def bend(x: np.ndarray) -> Any:
        if "relu" in p:
            return np.maximum(x, 0)
        # x sigmoid(x), in a form that cannot overflow.
        return x * (1 + np.tanh(x / 2)) / 2 if "silu" in p else np.tanh(x)

    def act(observation: Any) -> np.ndarray:
        if isinstance(parts, list) and isinstance(observation, Mapping | tuple):
            observation = flatten(parts, observation)
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


def _read(path: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of an exported policy, and what is written about them."""
    try:
        with safe_open(path, "np") as file:
            p = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            entries = file.metadata() or {}
        seal = json.loads(entries.get("pombu", "{}"))
        # Files of version 0.1 have no checksum, and another entry instead.
        if "format" in entries:
            return p, {}
        about = seal["about"]
        due = {"format": FORMAT, "about": about, "sha256": checksum(p, about)}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = f"it cannot be read: {type(error).__name__}"
        raise ValueError(f"{path} is damaged ({reason}): export it again.") from None
    if seal != due:
        raise ValueError(f"{path} is damaged (its checksum differs): export it again.")
    return p, seal


def flatten(parts: list[dict[str, Any]], observation: Any) -> np.ndarray:
    """A Dict or Tuple, or a batch in each of its entries, as training flattened it.

    Entry follows entry; one of n choices becomes n numbers of which one is 1.
    """
    flat = []
    for part in parts:
        entry = observation
        for key in part["path"]:
            entry = entry[key]
        x = np.asarray(entry)
        if "choices" not in part:
            own = len(part["shape"])
            flat.append(x.reshape(*x.shape[: x.ndim - own], part["size"]))
            continue
        x = x[..., None] if len(part["choices"]) == 1 else x
        for i, (count, first) in enumerate(
            zip(part["choices"], part["from"], strict=True)
        ):
            flat.append(np.eye(count)[x[..., i].astype(int) - first])
    return np.concatenate(flat, -1).astype(np.float32)
