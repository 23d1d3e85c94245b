"""pombu: sample-efficient, uncertainty-aware model-based reinforcement learning.

Importing pombu registers its tasks with Gymnasium. Names that compute are imported when
they are first used, so that the import itself stays quick and free of JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pombu.algorithms.registry import ALGORITHMS
from pombu.envs import EnvConfig as EnvConfig
from pombu.envs import Episode as Episode
from pombu.envs import Task as Task
from pombu.errors import PombuError as PombuError
from pombu.errors import RunError as RunError
from pombu.errors import UsageError as UsageError

if TYPE_CHECKING:
    # A class for every algorithm; `python -m tools.agent_types` writes them.
    from pombu._agents import *  # noqa: F403
    from pombu.algorithms.pombu.config import POMBUConfig as POMBUConfig
    from pombu.algorithms.registry import preset as preset
    from pombu.training.callbacks import Callback as Callback
    from pombu.training.callbacks import StopAfter as StopAfter
    from pombu.training.callbacks import StopAtReturn as StopAtReturn
    from pombu.uncertainty import q_uncertainty as q_uncertainty

__version__ = "0.1.0"

_LATER = {
    **{entry.agent: "pombu.agent.agents" for entry in ALGORITHMS.values()},
    "POMBUConfig": "pombu.algorithms.pombu.config",
    "preset": "pombu.algorithms.registry",
    "Callback": "pombu.training.callbacks",
    "StopAfter": "pombu.training.callbacks",
    "StopAtReturn": "pombu.training.callbacks",
    "q_uncertainty": "pombu.uncertainty",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'pombu' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
