"""Gymnasium's model files, loaded without noise on the console or log files."""

import copy
import logging
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

import gymnasium
import mujoco

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"

DEFAULT_DENSITY = 1000.0
"""MuJoCo's density of a geom whose file names none."""

logger = logging.getLogger("pombu.mujoco")


def quiet_mujoco() -> None:
    """Send MuJoCo's warnings to Python's logging instead of MUJOCO_LOG.TXT."""
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(logger.debug)


def load_model(asset: str) -> mujoco.MjModel:
    """Compile one of Gymnasium's model files.

    An unstable simulation is left to give NaN, which collection reports, where MuJoCo
    would by default jump back to the rest position in silence. The `settotalmass` of
    half_cheetah.xml, which MuJoCo deprecates, is replaced by the density that gives the
    same mass.
    """
    quiet_mujoco()
    return copy.copy(_compiled(asset))


@lru_cache
def _compiled(asset: str) -> mujoco.MjModel:
    root = ElementTree.parse(ASSETS / asset).getroot()
    total_mass = None
    for compiler in root.iter("compiler"):
        total_mass = compiler.attrib.pop("settotalmass", None)
    model = _compile(root)
    if total_mass is not None:
        density = DEFAULT_DENSITY * float(total_mass) / model.body_mass.sum()
        for geom in root.iterfind("default/geom"):
            geom.set("density", repr(float(density)))
        model = _compile(root)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return model


def _compile(root: ElementTree.Element) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, "unicode"))
