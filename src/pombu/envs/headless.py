"""Rendering on machines without a display."""

import ctypes
import os
import sys


def choose_renderer() -> None:
    """Make MuJoCo render through EGL where there is no display but there is EGL."""
    displays = {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if sys.platform != "linux" or displays or "MUJOCO_GL" in os.environ:
        return
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return
    os.environ["MUJOCO_GL"] = "egl"
