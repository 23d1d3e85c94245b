"""Rendering on machines without a display."""

import ctypes
import os
import sys


def choose_renderer() -> None:
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
