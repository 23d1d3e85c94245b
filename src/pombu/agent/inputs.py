"""What a user hands to an agent, checked: arrays, numbers of steps, options.

Options are keywords, nested dicts or dotted names, and become one config.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pombu.algorithms import registry
from pombu.errors import UsageError
from pombu.training import config_file

MOST_STEPS = 10**12
ARGUMENTS = ("env", "preset", "seed", "config", "data", "tensorboard_log")
"""What an agent takes beside the options of its algorithm."""


def as_rows(
    name: str, given: Any, shapes: Sequence[tuple[int, ...] | None]
) -> tuple[np.ndarray, bool]:
    """One array or a batch of them as rows [n, dim], and whether it was only one.

    Args:
        name: what it is called in an error.
        given: anything that NumPy makes an array of numbers of.
        shapes: that a single one may have, the flat one first.

    Raises:
        UsageError: It has another shape, or is not made of finite numbers.
    """
    accepted = [shape for shape in shapes if shape is not None]
    dim = accepted[0][0]
    try:
        rows = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise UsageError(
            f"The {name} is {given!r:.80}: give an array of {dim} numbers, or a batch "
            f"[n, {dim}]."
        ) from None
    single = rows.shape in accepted or (dim == 1 and rows.shape == ())
    if rows.size == 0 or not (single or rows.shape[1:] in accepted):
        raise UsageError(
            f"The {name} has shape {rows.shape}; give one of shape "
            f"{' or '.join(map(str, dict.fromkeys(accepted)))}, or a batch of them."
        )
    if not np.isfinite(rows).all():
        raise UsageError(
            f"The {name} has entries that are not finite: give finite ones."
        )
    return rows.reshape(-1, dim), single


def whole(name: str, given: Any, least: int, most: int) -> int:
    """A whole number within bounds; 1e4 is one as well.

    Raises:
        UsageError: It is none.
    """
    try:
        number = int(given)
        if number == given and least <= number <= most and given is not True:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(
        f"{name} is {given!r}; it must be a whole number from {least} to {most}."
    )


def as_numpy(given: Any) -> Any:
    """A tensor of PyTorch, wherever it lies, as an array; anything else as it is."""
    return given.detach().cpu().numpy() if hasattr(given, "detach") else given


def array_like(given: Any, found: np.ndarray) -> Any:
    """An array of the library that the given one is of."""
    if isinstance(given, jax.Array):
        return jnp.asarray(found)
    if hasattr(given, "new_tensor"):
        return given.new_tensor(found)
    return found


def with_options(algorithm: str, config: Any, options: Mapping[str, Any]) -> Any:
    """A config with some of its fields changed.

    Args:
        algorithm: whose config it is.
        config: where all other values come from.
        options: `alpha=0.5`, `policy={"hidden": (256, 256)}`, `{"policy.hidden": ...}`
            or a part of a config, such as `model=ModelConfig(members=3)`.

    Raises:
        UsageError: There is no such option, or it does not take such a value.
    """
    data = config_file.to_json(config)
    known = config_file.flat(data)
    for key, value in flat_options(options).items():
        if key not in known:
            raise UsageError(_unknown(algorithm, key, list(known)))
        *parents, last = key.split(".")
        part = data
        for parent in parents:
            part = part[parent]
        part[last] = _plain(value)
    return config_file.from_json(type(config), data, algorithm)


def flat_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by their dotted names; parts of a config are taken apart."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Mapping):
            found.update(flat_options(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def _plain(value: Any) -> Any:
    """A value as a config has it; NumPy's numbers and arrays become Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def _unknown(algorithm: str, key: str, known: list[str]) -> str:
    """What to say of an option that does not exist."""
    own = [name for name in known if not name.startswith("env.")]
    candidates = [*own, *ARGUMENTS, *{name.split(".")[0] for name in own}]
    if key.startswith("env."):
        candidates = own = [name for name in known if name.startswith("env.")]
    # Somebody may know the name of a field and not which part it belongs to.
    last = key.split(".")[-1]
    elsewhere = [name for name in own if name.split(".")[-1] == last]
    near = elsewhere or difflib.get_close_matches(key, candidates, n=1, cutoff=0.65)
    hint = f" (did you mean {' or '.join(near[:3])}?)" if near else ""
    return (
        f"{algorithm} has no option {key!r}{hint}; it has "
        f"{', '.join(sorted({name.split('.')[0] for name in own}))}, and "
        f"{registry.find(algorithm).config} lists the fields of each part."
    )
