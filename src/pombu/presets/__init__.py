"""Named configurations for every algorithm and task.

`paper` follows the algorithm's paper. `fast` is what we recommend on a few cores: the
same algorithm with a cheaper schedule. `smoke` is tiny, for tests and for trying a
set-up. A module of this package has one function for each.
"""

import difflib
import importlib
from dataclasses import replace
from typing import Any

from pombu.envs import EnvConfig, resolve
from pombu.errors import UsageError

_NAMES = ("paper", "fast", "smoke")


def names() -> tuple[str, ...]:
    """All presets."""
    return _NAMES


def preset(algorithm: str, name: str, env: str, horizon: int | None = None) -> Any:
    """The configuration of an algorithm for a task, by the preset's name.

    Args:
        algorithm: as on the command line.
        name: one of `names()`.
        env: a task's full or short name; tasks of your own get general values.
        horizon: steps per episode, where it is not the task's own.
    """
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them."
        raise UsageError(
            f"There is no preset {name!r}; there are {', '.join(_NAMES)}: {hint}"
        )
    module = importlib.import_module(f"pombu.presets.{algorithm}")
    full = resolve(env)
    task = full.removeprefix("pombu/").removesuffix("-v0")
    config = getattr(module, name)(task, horizon)
    return replace(config, env=EnvConfig(id=full, horizon=horizon))
