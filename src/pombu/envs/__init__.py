"""Real environments: tasks, their contracts, and episodes collected in them.

Importing this package registers the tasks with Gymnasium.
"""

import ctypes
import os
import sys

from pombu.envs.catalogue import CATALOGUE, register, resolve, short_name
from pombu.envs.checker import Finding, Report, check
from pombu.envs.collection import CollectionError, Episode, collect, collect_rounds
from pombu.envs.config import EnvConfig
from pombu.envs.contract import Contract, without_termination
from pombu.envs.environment import ActionBox
from pombu.envs.task import Task, load, make

__all__ = [
    "CATALOGUE",
    "ActionBox",
    "CollectionError",
    "Contract",
    "EnvConfig",
    "Episode",
    "Finding",
    "Report",
    "Task",
    "check",
    "collect",
    "collect_rounds",
    "load",
    "make",
    "resolve",
    "short_name",
    "without_termination",
]


def _choose_renderer() -> None:
    """Make MuJoCo render through EGL where there is no display but there is EGL.

    MuJoCo reads the choice when it is imported, and its default needs a display.
    """
    chosen = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")
    if sys.platform != "linux" or any(map(os.environ.get, chosen)):
        return
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return
    os.environ["MUJOCO_GL"] = "egl"


_choose_renderer()
register()
