"""Real environments: tasks, their contracts, and episodes collected in them.

Importing this package registers the tasks with Gymnasium.
"""

import ctypes
import os
import sys

from pombu.envs.catalogue import CATALOGUE as CATALOGUE
from pombu.envs.catalogue import register as register
from pombu.envs.checker import Finding as Finding
from pombu.envs.checker import Report as Report
from pombu.envs.checker import check as check
from pombu.envs.collection import CollectionError as CollectionError
from pombu.envs.collection import Episode as Episode
from pombu.envs.collection import collect as collect
from pombu.envs.collection import collect_rounds as collect_rounds
from pombu.envs.config import EnvConfig as EnvConfig
from pombu.envs.contract import Contract as Contract
from pombu.envs.contract import without_termination as without_termination
from pombu.envs.environment import ActionBox as ActionBox
from pombu.envs.history import stack_episode as stack_episode
from pombu.envs.lookup import in_one_line as in_one_line
from pombu.envs.lookup import resolve as resolve
from pombu.envs.lookup import short_name as short_name
from pombu.envs.noise import NoiseKind as NoiseKind
from pombu.envs.task import Task as Task
from pombu.envs.task import config_of as config_of
from pombu.envs.task import load as load
from pombu.envs.task import make as make
from pombu.envs.unnamed import HERE as HERE
from pombu.envs.wrappers import flatten_rows as flatten_rows


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
