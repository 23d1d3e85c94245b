"""pombu's own tasks as values, and their registration with Gymnasium.

Six are the paper's; Hopper is its benchmark's as well (mbbl's `gym_hopper`).

Listing the tasks must be quick, so nothing here imports MuJoCo or JAX.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import gymnasium


@dataclass(frozen=True)
class LocomotionSpec:
    """A MuJoCo task: sizes, starts and reward of the paper's table and its code."""

    asset: str
    """Gymnasium's model file."""

    rest: tuple[float, ...]
    """Positions (qpos) around which episodes start."""

    nv: int
    """Number of velocities (qvel)."""

    nu: int
    """Number of actuators, each in [-1, 1]."""

    unobserved: int
    """Leading positions left out of the observation [qpos, qvel]."""

    frame_skip: int
    """Physics steps per action."""

    position_noise: float
    """Half width of the uniform start noise on every position."""

    velocity_noise: float
    """Half width (uniform) or standard deviation (normal) of the start velocities."""

    normal_velocity: bool
    """Whether start velocities are normal rather than uniform."""

    control_cost: float
    """Weight of the squared action in the reward."""

    height_at: int | None = None
    """Index in qpos of the height that the reward looks at."""

    target_height: float = 0.0
    """Height without a penalty."""

    height_cost: float = 0.0
    """Weight of the squared distance to the target height."""

    quaternion_at: int | None = None
    """Index in qpos where the root's orientation begins."""

    @property
    def nq(self) -> int:
        """Number of positions (qpos)."""
        return len(self.rest)

    @property
    def observation_dim(self) -> int:
        """Number of observation entries."""
        return self.nq - self.unobserved + self.nv

    @property
    def velocity_index(self) -> int:
        """Where the observation holds the forward velocity."""
        return self.nq - self.unobserved

    @property
    def height_index(self) -> int | None:
        """Where the observation holds the height, if the reward looks at it."""
        return None if self.height_at is None else self.height_at - self.unobserved


LOCOMOTION = {
    "Swimmer": LocomotionSpec(
        asset="swimmer.xml",
        rest=(0.0,) * 5,
        nv=5,
        nu=2,
        unobserved=2,
        frame_skip=4,
        position_noise=0.1,
        velocity_noise=0.1,
        normal_velocity=False,
        control_cost=1e-4,
    ),
    "HalfCheetah": LocomotionSpec(
        asset="half_cheetah.xml",
        rest=(0.0,) * 9,
        nv=9,
        nu=6,
        unobserved=1,
        frame_skip=5,
        position_noise=0.1,
        velocity_noise=0.1,
        normal_velocity=True,
        control_cost=0.1,
    ),
    "Ant": LocomotionSpec(
        asset="ant.xml",
        rest=(0.0, 0.0, 0.75, 1.0) + (0.0,) * 11,
        nv=14,
        nu=8,
        unobserved=1,
        frame_skip=5,
        position_noise=0.1,
        velocity_noise=0.1,
        normal_velocity=True,
        control_cost=0.1,
        height_at=2,
        target_height=0.57,
        height_cost=3.0,
        quaternion_at=3,
    ),
    # The asset with feet of different friction, as in the paper; v5's feet are alike.
    "Walker2d": LocomotionSpec(
        asset="walker2d.xml",
        rest=(0.0, 1.25) + (0.0,) * 7,
        nv=9,
        nu=6,
        unobserved=1,
        frame_skip=4,
        position_noise=0.005,
        velocity_noise=0.005,
        normal_velocity=False,
        control_cost=0.1,
        height_at=1,
        target_height=1.3,
        height_cost=3.0,
    ),
    "Hopper": LocomotionSpec(
        asset="hopper.xml",
        rest=(0.0, 1.25) + (0.0,) * 4,
        nv=6,
        nu=3,
        unobserved=1,
        frame_skip=4,
        position_noise=0.005,
        velocity_noise=0.005,
        normal_velocity=False,
        control_cost=0.1,
        height_at=1,
        target_height=1.3,
        height_cost=3.0,
    ),
}


def locomotion_spec(name: str, observe_y: bool = True) -> LocomotionSpec:
    """The spec of one MuJoCo task; `observe_y=False` hides Ant's sideways position."""
    spec = LOCOMOTION[name]
    if observe_y:
        return spec
    return dataclasses.replace(spec, unobserved=spec.unobserved + 1)


@dataclass(frozen=True)
class Entry:
    """One registered task."""

    name: str
    """Short name on the command line."""

    observation_dim: int
    action_dim: int
    horizon: int
    reward: str
    """The formula in words a reader of the paper knows."""

    entry_point: str
    options: dict[str, Any]

    @property
    def id(self) -> str:
        """The Gymnasium id."""
        return f"pombu/{self.name}-v0"


def _point(dimensions: int) -> Entry:
    return Entry(
        name=f"Point{dimensions}D",
        observation_dim=dimensions,
        action_dim=dimensions,
        horizon=30,
        reward="-|s + a|^2",
        entry_point="pombu.envs.point:PointEnv",
        options={"dimensions": dimensions},
    )


def _locomotion(name: str) -> Entry:
    spec = LOCOMOTION[name]
    reward = f"v_x - {spec.control_cost:g} |a|^2"
    if spec.height_at is not None:
        reward += f" - {spec.height_cost:g} (z - {spec.target_height:g})^2"
    return Entry(
        name=name,
        observation_dim=spec.observation_dim,
        action_dim=spec.nu,
        horizon=200,
        reward=reward,
        entry_point="pombu.envs.locomotion:LocomotionEnv",
        options={"name": name},
    )


CATALOGUE = (_point(2), _point(3), *(_locomotion(name) for name in LOCOMOTION))


def register() -> None:
    """Register every task of the catalogue once."""
    for entry in CATALOGUE:
        if entry.id not in gymnasium.registry:
            gymnasium.register(
                id=entry.id,
                entry_point=entry.entry_point,
                max_episode_steps=entry.horizon,
                kwargs=entry.options,
            )
