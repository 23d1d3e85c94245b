"""Gymnasium's model files, loaded without noise on the console or log files."""

import logging
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import gymnasium

if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
    # MuJoCo picks its OpenGL backend when imported, and its default needs a display.
    os.environ.setdefault("MUJOCO_GL", "egl")

import mujoco

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"

logger = logging.getLogger("pombu.mujoco")


def quiet_mujoco() -> None:
    """Send MuJoCo's warnings to Python's logging instead of MUJOCO_LOG.TXT."""
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(logger.debug)


def load_model(asset: str) -> mujoco.MjModel:
    """Compile one of Gymnasium's model files.

    The deprecated `settotalmass` of half_cheetah.xml is replaced by the density that
    gives the same mass, so the file keeps its meaning when MuJoCo drops the attribute.
    """
    quiet_mujoco()
    root = ElementTree.parse(ASSETS / asset).getroot()
    total_mass = root.find("compiler").attrib.pop("settotalmass", None)
    model = _compile(root)
    if total_mass is None:
        return model
    water = 1000.0
    density = water * float(total_mass) / model.body_mass.sum()
    root.find("default/geom").set("density", repr(float(density)))
    return _compile(root)


def _compile(root: ElementTree.Element) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, "unicode"))
