"""Named configurations for every algorithm and task.

`paper` follows the algorithm's paper. `fast` is what we recommend on a few cores: the
same algorithm with a cheaper schedule. `smoke` is tiny, for tests and for trying a
set-up. A module of this package has one function for each.
"""

import difflib
import importlib
from dataclasses import replace
from typing import Any

from pombu.envs import CATALOGUE, EnvConfig, Task, load, resolve, short_name
from pombu.errors import UsageError

_NAMES = ("paper", "fast", "smoke")
_ALGORITHMS = (
    *("pombu", "meppo", "metrpo", "slbo", "mbmpo", "pets", "steve", "sac", "ppo"),
)


def names() -> tuple[str, ...]:
    """All presets."""
    return _NAMES


def preset(algorithm: str, name: str, env: str, horizon: int | None = None) -> Any:
    """The configuration of an algorithm for a task, by the preset's name.

    An environment that is not pombu's is made once, to see how long its episodes are
    and which of reward and termination it knows; the others are to be learned.

    Args:
        algorithm: as on the command line.
        name: one of `names()`.
        env: a task's full or short name, a Gymnasium id, or `module:factory`.
        horizon: steps per episode, where it is not the task's own.
    """
    _require("algorithm", algorithm, _ALGORITHMS)
    _require("preset", name, _NAMES)
    module = importlib.import_module(f"pombu.presets.{algorithm}")
    full = resolve(env)
    environment = EnvConfig(id=full, horizon=horizon)
    values = getattr(module, name)
    if any(entry.id == full for entry in CATALOGUE):
        task = short_name(full)
        return replace(values(task, horizon), env=environment)
    foreign = load(environment)
    return replace(
        learn_the_unknown(values(full, foreign.horizon), foreign), env=environment
    )


def _require(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        near = difflib.get_close_matches(given, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them."
        raise UsageError(
            f"There is no {what} {given!r}; there are {', '.join(known)}: {hint}"
        )


def learn_the_unknown(config: Any, task: Task) -> Any:
    """A config that learns what the task does not know, where it learns a model."""
    model: Any = getattr(config, "model", None)
    fields = getattr(model, "__dataclass_fields__", {})
    unknown = {
        field: "learned"
        for field, function in (("reward", "reward"), ("termination", "terminal"))
        if field in fields and function not in task.known
    }
    return replace(config, model=replace(model, **unknown)) if unknown else config
