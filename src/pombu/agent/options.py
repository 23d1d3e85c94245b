"""Options of an agent: keywords, nested dicts or dotted names, as one config."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pombu.algorithms import registry
from pombu.errors import UsageError
from pombu.training import config_file

ARGUMENTS = ("env", "preset", "seed", "config", "data", "tensorboard_log")
"""What an agent takes beside the options of its algorithm."""


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
    for key, value in _flat(options).items():
        if key not in known:
            raise UsageError(_unknown(algorithm, key, list(known)))
        *parents, last = key.split(".")
        part = data
        for parent in parents:
            part = part[parent]
        part[last] = _plain(value)
    return config_file.from_json(type(config), data, algorithm)


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by their dotted names; parts of a config are taken apart."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name}."))
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
