"""pombu: sample-efficient, uncertainty-aware model-based reinforcement learning.

Importing pombu registers its tasks with Gymnasium. Names that compute are imported when
they are first used, so that the import itself stays quick and free of JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pombu._version import __version__ as __version__
from pombu.envs import EnvConfig as EnvConfig
from pombu.envs import Episode as Episode
from pombu.envs import Task as Task
from pombu.errors import PombuError as PombuError
from pombu.errors import RunError as RunError
from pombu.errors import UsageError as UsageError

if TYPE_CHECKING:
    from pombu.agent.agents import MBMPO as MBMPO
    from pombu.agent.agents import MEPPO as MEPPO
    from pombu.agent.agents import METRPO as METRPO
    from pombu.agent.agents import PETS as PETS
    from pombu.agent.agents import POMBU as POMBU
    from pombu.agent.agents import PPO as PPO
    from pombu.agent.agents import SAC as SAC
    from pombu.agent.agents import SLBO as SLBO
    from pombu.agent.agents import STEVE as STEVE
    from pombu.config import POMBUConfig as POMBUConfig
    from pombu.presets import preset as preset
    from pombu.training.callbacks import Callback as Callback
    from pombu.training.callbacks import StopAfter as StopAfter
    from pombu.training.callbacks import StopAtReturn as StopAtReturn
    from pombu.uncertainty import q_uncertainty as q_uncertainty

_LATER = {
    "MBMPO": "pombu.agent.agents",
    "MEPPO": "pombu.agent.agents",
    "METRPO": "pombu.agent.agents",
    "PETS": "pombu.agent.agents",
    "POMBU": "pombu.agent.agents",
    "PPO": "pombu.agent.agents",
    "SAC": "pombu.agent.agents",
    "SLBO": "pombu.agent.agents",
    "STEVE": "pombu.agent.agents",
    "POMBUConfig": "pombu.config",
    "preset": "pombu.presets",
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
