"""The MuJoCo tasks, built directly on Gymnasium's model files."""

import copy
import logging
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

import gymnasium
import mujoco
import numpy as np
import numpy.typing as npt
from mujoco import rollout

from pombu.envs.catalogue import locomotion_spec
from pombu.envs.config import Noise, NoiseKind, require_bonus, require_noise, require_y
from pombu.envs.contract import LocomotionContract
from pombu.envs.environment import Array64, TaskEnv
from pombu.errors import RunError
from pombu.parallel import usable_cores

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


def joint_names(model: mujoco.MjModel) -> tuple[list[str], list[str]]:
    """What positions and velocities belong to: `rootz`, `rootz velocity`.

    Free and ball joints have several of both.
    """
    positions, velocities = [""] * model.nq, [""] * model.nv
    for joint in range(model.njnt):
        name = model.joint(joint).name or f"joint {joint}"
        following = joint + 1 < model.njnt
        for found, begins, end, suffix in (
            (positions, model.jnt_qposadr, model.nq, ""),
            (velocities, model.jnt_dofadr, model.nv, " velocity"),
        ):
            begin = int(begins[joint])
            size = (int(begins[joint + 1]) if following else end) - begin
            for i in range(size):
                number = f"[{i}]" if size > 1 else ""
                found[begin + i] = f"{name}{number}{suffix}"
    return positions, velocities


def _compile(root: ElementTree.Element) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, "unicode"))


class LocomotionPhysics:
    """MuJoCo as a function of [qpos, qvel] and action.

    The solver starts cold at every control step: a warm start would be hidden memory,
    and `mujoco.rollout` could not step a batch with exactly equal results.
    """

    def __init__(self, contract: LocomotionContract) -> None:
        self.contract = contract
        self.model = load_model(contract.spec.asset)
        self.data = mujoco.MjData(self.model)
        self._pool: rollout.Rollout | None = None
        self._pool_data: list[mujoco.MjData] = []

    @property
    def noise(self) -> Noise:
        """The noise on observations."""
        return self.contract.noise

    def start(self, rng: np.random.Generator) -> Array64:
        """Rest with noise on every position and velocity."""
        spec = self.contract.spec
        position_noise = rng.uniform(-1, 1, spec.nq) * spec.position_noise
        if spec.normal_velocity:
            velocity = rng.standard_normal(spec.nv)
        else:
            velocity = rng.uniform(-1, 1, spec.nv)
        velocity *= spec.velocity_noise
        return np.asarray(self.contract.start_state(position_noise, velocity))

    def advance(self, state: Array64, action: Array64) -> Array64:
        """One control step of `frame_skip` physics steps."""
        nq = self.contract.spec.nq
        data = self.data
        data.qpos[:], data.qvel[:] = state[:nq], state[nq:]
        data.ctrl[:] = action
        data.qacc_warmstart[:] = 0
        mujoco.mj_step(self.model, data, nstep=self.contract.spec.frame_skip)
        return np.concatenate([data.qpos, data.qvel])

    def advance_all(self, states: Array64, actions: Array64) -> Array64:
        """One control step of every row, on as many threads as there are cores."""
        if self._pool is None:
            threads = min(usable_cores(), len(states))
            self._pool = rollout.Rollout(nthread=threads)
            self._pool_data = [mujoco.MjData(self.model) for _ in range(threads)]
        time = np.zeros((len(states), 1))
        trajectory, _ = self._pool.rollout(
            self.model,
            self._pool_data,
            np.concatenate([time, states], axis=1),
            np.repeat(actions[:, None], self.contract.spec.frame_skip, axis=1),
        )
        return np.ascontiguousarray(trajectory[:, -1, 1:])

    def observe(self, state: Array64) -> Array64:
        """[qpos, qvel] without the leading positions that the paper leaves out."""
        return state[..., self.contract.spec.unobserved :]

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _renderer(model: mujoco.MjModel) -> mujoco.Renderer:
    try:
        return mujoco.Renderer(model, height=480, width=480)
    except Exception as error:
        raise RunError(
            f"MuJoCo cannot render on this machine ({type(error).__name__}: {error}): "
            "without a display install libegl1 and set MUJOCO_GL=egl, or libosmesa6 "
            "and MUJOCO_GL=osmesa."
        ) from error


class LocomotionEnv(TaskEnv):
    """Swimmer, HalfCheetah, Ant, Walker2d or Hopper with the paper's form of reward."""

    physics: LocomotionPhysics

    def __init__(
        self,
        name: str,
        observation_noise: float = 0.0,
        alive_bonus: float = 0.0,
        observe_y: bool = True,
        noise_kind: NoiseKind = "gaussian",
        render_mode: str | None = None,
    ) -> None:
        require_noise(observation_noise, noise_kind)
        require_bonus(alive_bonus)
        require_y(name, observe_y)
        spec = locomotion_spec(name, observe_y)
        noise = Noise(observation_noise, noise_kind)
        physics = LocomotionPhysics(LocomotionContract(spec, alive_bonus, noise))
        super().__init__(
            physics,
            observation_dim=spec.observation_dim,
            action_bound=1.0,
            action_dim=spec.nu,
            steps_per_second=1 / (spec.frame_skip * physics.model.opt.timestep),
            render_mode=render_mode,
        )
        self._renderer: mujoco.Renderer | None = None

    @property
    def observation_names(self) -> list[str]:
        """The joints whose positions and velocities are observed."""
        positions, velocities = joint_names(self.physics.model)
        return [*positions[self.physics.contract.spec.unobserved :], *velocities]

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The scene from the camera that tracks the body."""
        if self.render_mode is None:
            return None
        model, data = self.physics.model, self.physics.data
        if self._renderer is None:
            self._renderer = _renderer(model)
        nq = model.nq
        data.qpos[:], data.qvel[:] = self.state[:nq], self.state[nq:]
        mujoco.mj_forward(model, data)
        self._renderer.update_scene(data, camera="track")
        return np.asarray(self._renderer.render())

    def close(self) -> None:
        """Free the renderer and the physics."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        super().close()
