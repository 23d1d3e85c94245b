"""pombu's own tasks as values, and what the name that a user typed means.

Six tasks are the paper's; Hopper is its benchmark's as well (mbbl's `gym_hopper`).
Listing the tasks must be quick, so nothing here imports MuJoCo or JAX before it must.

A config names its environment. What has no name in a module (lambdas, closures,
partials, instances) gets one that holds within this process: another one can load a run
by giving the environment again in Python, and the command line cannot.
"""

import contextlib
import copy
import dataclasses
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from pombu.errors import PombuError, UsageError

HERE = "python:"
"""How names that hold only within this process begin."""
_FACTORIES: dict[str, Callable[..., Any]] = {}


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
        entry_point="pombu.envs.environment:PointEnv",
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


Env = gymnasium.Env[Any, Any]


def close(env: Env) -> None:
    """Close an environment that is no longer needed, whatever it does then."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


def find_entry(name: str) -> Entry | None:
    """The task of pombu with this id or short name."""
    for entry in CATALOGUE:
        if name in (entry.name, entry.id):
            return entry
    return None


def short_name(name: str) -> str:
    """A full name for labels and folders, without what names have in common."""
    return name.removeprefix("pombu/").removesuffix("-v0")


def resolve(name: str) -> str:
    """The full name of an environment: a Gymnasium id or `module:factory`."""
    if not isinstance(name, str):
        raise UsageError(
            f"The environment's name is {name!r:.80}: give a task of pombu, a "
            "Gymnasium id, or `module:factory`."
        )
    entry = find_entry(name)
    if entry is not None:
        return entry.id
    if ":" in name or _registered(name):
        return name
    own = [entry.name for entry in CATALOGUE]
    if os.path.exists(f"{name.replace('.', '/')}.py"):
        raise UsageError(
            f"There is no environment {name!r}, but a module of that name: give "
            f"{name}:factory, where factory() returns a Gymnasium environment."
        )
    known = {key.lower(): key for key in [*gymnasium.registry, *own]}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}?" if near else "`pombu envs` lists tasks."
    raise UsageError(
        f"There is no environment {name!r}; pombu takes one of {', '.join(own)}, a "
        f"Gymnasium id, or module:factory: {hint}"
    )


def make_foreign(name: str, horizon: int | None, render_mode: str | None) -> Env:
    """Make an environment that is not pombu's own, unwrapped by pombu."""
    _quiet_mujoco()
    try:
        factory = None if _registered(name) else _factory(name)
        if factory is not None:
            return _call(name, factory, render_mode)
        # Not every environment takes a render_mode: only a video needs one.
        rendering = {} if render_mode is None else {"render_mode": render_mode}
        return gymnasium.make(
            name, max_episode_steps=horizon, disable_env_checker=True, **rendering
        )
    except PombuError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{name} could not be made ({in_one_line(error)}): check that what it "
            "needs is installed and that it takes no required arguments."
        ) from error


def _call(name: str, factory: Callable[..., Any], render_mode: str | None) -> Env:
    renders = render_mode is not None and _takes_render_mode(factory)
    env = factory(render_mode=render_mode) if renders else factory()
    if not isinstance(env, gymnasium.Env):
        raise UsageError(
            f"{name} returned {type(env).__name__}, but pombu needs a gymnasium.Env: "
            "return one from the factory."
        )
    return env


def _takes_render_mode(factory: Callable[..., Any]) -> bool:
    try:
        taken = inspect.signature(factory).parameters
    except ValueError:  # something built in, which does not say what it takes
        return False
    anything = any(one.kind == one.VAR_KEYWORD for one in taken.values())
    return anything or "render_mode" in taken


def _factory(name: str) -> Callable[..., Any] | None:
    """The callable behind `module:factory`; None if the module registers that id."""
    if name.startswith(HERE):
        return _registered_factory(name)
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        raise UsageError(
            f"{name!r} names a file: give the module, "
            f"{module_name.removesuffix('.py').replace('/', '.')}:{attribute}."
        )
    # A console script does not look into the working directory for the user's files.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"The module of {name!r} could not be imported ({in_one_line(error)}): "
            "give module:factory with a module that Python finds from here."
        ) from error
    if attribute in gymnasium.registry:
        return None
    factory = attribute_of(module, attribute)
    if not callable(factory):
        raise UsageError(
            f"Module {module_name!r} has no function {attribute!r}: give "
            "module:factory where factory() returns a Gymnasium environment."
        )
    found: Callable[..., Any] = factory
    return found


def attribute_of(module: Any, dotted: str) -> Any:
    """What a module calls by a name, such as `Maker.make`; None where it does not."""
    found = module
    for part in dotted.split("."):
        found = getattr(found, part, None)
    return found


def _registered(name: str) -> bool:
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError):
        return False
    return True


def _quiet_mujoco() -> None:
    """Many foreign environments are MuJoCo's too, with its log file."""
    try:
        from pombu.envs.locomotion import quiet_mujoco
    except ImportError:
        return
    quiet_mujoco()


def in_one_line(error: BaseException) -> str:
    """An exception in one line."""
    try:
        said = " ".join(str(error).split())
    except Exception:  # one that fails to say what it is
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def register_factory(factory: Callable[..., Any], name: str) -> str:
    """A name for a factory; the same one for the same factory."""
    for known, other in _FACTORIES.items():
        if other is factory:
            return known
    plain = f"{HERE}{name.strip('<>') or 'factory'}"
    key, number = plain, 2
    while key in _FACTORIES:
        key, number = f"{plain}-{number}", number + 1
    _FACTORIES[key] = factory
    return key


def _registered_factory(name: str) -> Callable[..., Any]:
    """The factory behind such a name.

    Raises:
        UsageError: It was given in another process.
    """
    if name not in _FACTORIES:
        raise UsageError(
            f"{name!r} stands for an environment that was made in a Python program and "
            "has no name of its own: load the run there, with env= and what it was "
            "made with."
        )
    return _FACTORIES[name]


def copies_of(env: gymnasium.Env[Any, Any]) -> Callable[..., Any]:
    """A factory of environments like a given one: copies, or made by its spec."""

    def make(render_mode: str | None = None) -> Any:
        if render_mode is not None and env.spec is not None:
            return gymnasium.make(env.spec, render_mode=render_mode)
        try:
            twin = copy.deepcopy(env)
            if render_mode is not None:
                twin.unwrapped.render_mode = render_mode
            return twin
        except Exception as error:
            if env.spec is not None:
                return gymnasium.make(env.spec)
            raise UsageError(
                f"{type(env.unwrapped).__name__} cannot be copied "
                f"({type(error).__name__}), and pombu needs several: give a function "
                "that makes one, such as `lambda: MyEnv()`."
            ) from error

    return make
