"""Describe, make and check the environment that a user named."""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pombu.envs.catalogue import (
    CATALOGUE,
    Entry,
    Env,
    attribute_of,
    close,
    copies_of,
    find_entry,
    make_foreign,
    register_factory,
    resolve,
)
from pombu.envs.config import EnvConfig, require_y
from pombu.envs.contract import (
    FUNCTIONS,
    Contract,
    LocomotionContract,
    Part,
    PointContract,
    known_functions,
)
from pombu.envs.environment import ActionBox
from pombu.envs.wrappers import (
    FlatObservation,
    NoisyObservation,
    StackedContract,
    StackedObservation,
    leaves_of,
)
from pombu.errors import UsageError

HORIZON_WITHOUT_LIMIT = 1000
"""Steps per episode of an environment that names no time limit of its own."""

TRANSPARENT = (
    FlatObservation,
    NoisyObservation,
    StackedObservation,
    gymnasium.wrappers.TimeLimit,
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.RecordEpisodeStatistics,
)
"""Wrappers behind which a contract still holds: they only watch, count, add noise or
repeat what was observed."""


@dataclass(frozen=True)
class Task:
    """Everything the learner needs from an environment."""

    config: EnvConfig
    observation_dim: int
    action_dim: int
    horizon: int
    action_box: ActionBox
    contract: Contract | None
    """None when the environment has none: reward, termination and starts are then
    learned from real data."""
    observation_shape: tuple[int, ...] | None = None
    """Of the environment's own observations; None is a flat one."""
    layout: spaces.Space[Any] | None = dataclasses.field(default=None, compare=False)
    """The environment's own observation space where it is no Box, such as a Dict: what
    pombu sees is flattened as Gymnasium does it."""
    names: tuple[str, ...] | None = None
    """Of the observed numbers, where the environment has any."""
    parts: list[dict[str, Any]] | None = dataclasses.field(default=None, compare=False)
    """`observation_parts` of a task that was read back and has no layout."""

    @property
    def known(self) -> frozenset[str]:
        """Which of reward, terminal and initial need not be learned."""
        return known_functions(self.contract)

    def cut(self, steps: int | None) -> "Task":
        """The same task with episodes of so many steps at most; None leaves them."""
        if steps is None or steps >= self.horizon:
            return self
        return dataclasses.replace(self, horizon=steps)

    @property
    def frame_dim(self) -> int:
        """Size of the newest of the observations that a state consists of."""
        return self.observation_dim // self.config.history

    @property
    def frame_names(self) -> tuple[str, ...]:
        """A name for each number of one observation; `entry 3` where it has none."""
        return self.names or tuple(f"entry {i}" for i in range(self.frame_dim))

    @property
    def observation_parts(self) -> list[dict[str, Any]] | None:
        """How a Dict or Tuple was flattened, as JSON; None where it is a Box."""
        if self.layout is None:
            return self.parts
        return [leaf.described for leaf in leaves_of(self.layout)]

    @property
    def described(self) -> dict[str, Any]:
        """Sizes, bounds and names as JSON, for `without_environment`."""
        return {
            "observation_dim": self.observation_dim,
            "horizon": self.horizon,
            "action_box": dataclasses.asdict(self.action_box),
            "observation_shape": self.observation_shape,
            "names": self.names,
            "known": sorted(self.known),
            "parts": self.observation_parts,
        }

    @classmethod
    def without_environment(cls, config: EnvConfig, kept: dict[str, Any]) -> "Task":
        """What `described` was taken of, to act in without making the environment.

        Its functions are known by name alone and cannot be called.
        """
        box = kept["action_box"]
        shapes = (box["shape"], kept["observation_shape"], kept["names"])
        shape, observed, names = (x if x is None else tuple(x) for x in shapes)
        low, high = tuple(box["low"]), tuple(box["high"])
        known = frozenset(kept["known"])
        return cls(
            config=config,
            observation_dim=kept["observation_dim"],
            action_dim=len(low),
            horizon=kept["horizon"],
            action_box=ActionBox(low, high, shape, box["dtype"]),
            contract=Part(None, known) if known else None,
            observation_shape=observed,
            names=names,
            parts=kept["parts"],
        )

    def make(self, render_mode: str | None = None) -> Env:
        """A fresh environment of this task."""
        return make(self.config, render_mode)


def config_of(env: str | EnvConfig | Callable[..., Any] | Env) -> EnvConfig:
    """What the user gave for an environment, as a config.

    A function or class of a module is named by it. Anything else, such as a lambda or
    an environment itself, is known to this process alone (`register_factory`).
    """
    if isinstance(env, EnvConfig):
        return env
    if isinstance(env, str):
        return EnvConfig(id=env)
    if isinstance(env, gymnasium.Env):
        return EnvConfig(
            id=register_factory(copies_of(env), type(env.unwrapped).__name__)
        )
    if not callable(env):
        raise UsageError(
            f"The environment is a {type(env).__name__}: give an id, `module:factory`, "
            "a gymnasium.Env, or a function or class that makes one."
        )
    name = getattr(env, "__qualname__", "")
    module = sys.modules.get(getattr(env, "__module__", None) or "")
    if name and attribute_of(module, name) is env:
        return EnvConfig(id=f"{env.__module__}:{name}")
    inner = getattr(env, "func", env)
    return EnvConfig(id=register_factory(env, getattr(inner, "__name__", "factory")))


def load(config: EnvConfig | str, **overrides: Any) -> Task:
    """Describe the environment; `overrides` replace fields of the config."""
    if isinstance(config, str):
        config = EnvConfig(id=config)
    config = dataclasses.replace(config, **overrides)
    config = dataclasses.replace(config, id=resolve(config.id))
    env = make(config)
    try:
        box = action_box(config.id, env.action_space)
        return Task(
            config=config,
            observation_dim=int(np.prod(env.observation_space.shape or ())),
            action_dim=box.dim,
            horizon=_time_limit(env) or HORIZON_WITHOUT_LIMIT,
            action_box=box,
            contract=_stacked(_contract(env), env, config.history),
            observation_shape=_observation_shape(env) if config.history == 1 else None,
            layout=_layout(env),
            names=_names(env, config.history),
        )
    finally:
        # What there was to learn of the environment is learned.
        close(env)


def make(config: EnvConfig, render_mode: str | None = None) -> Env:
    """Make the environment: flat float32 observations with a time limit.

    Noise and history are added where the config asks for them.
    """
    name = resolve(config.id)
    entry = find_entry(name)
    if entry is not None:
        env = _make_own(entry, config, render_mode)
    else:
        env = _make_foreign(name, config, render_mode)
    return env if config.history == 1 else StackedObservation(env, config.history)


def _make_foreign(name: str, config: EnvConfig, render_mode: str | None) -> Env:
    if config.alive_bonus is not None or not config.observe_y:
        raise UsageError(
            "alive_bonus and observe_y are options of pombu's own tasks "
            f"({', '.join(entry.name for entry in CATALOGUE)}), not of {name}: leave "
            "them out."
        )
    env = make_foreign(name, config.horizon, render_mode)
    for kind in ("observation_space", "action_space"):
        if getattr(env, kind, None) is None:
            raise UsageError(
                f"{name} has no {kind}: set self.{kind} in the environment's __init__."
            )
    _require_observation_box(name, env.observation_space)
    action_box(name, env.action_space)
    limit = _time_limit(env)
    if limit is not None and config.horizon is not None and config.horizon > limit:
        raise UsageError(
            f"{name} has a time limit of its own of {limit} steps, and the horizon is "
            f"{config.horizon}: raise the limit there, or ask for at most that."
        )
    horizon = config.horizon or limit or HORIZON_WITHOUT_LIMIT
    if limit is None or horizon < limit:
        env = gymnasium.wrappers.TimeLimit(env, horizon)
    env = FlatObservation(env)
    if config.observation_noise:
        env = NoisyObservation(env, config.noise)
    return env


def _make_own(entry: Entry, config: EnvConfig, render_mode: str | None) -> Env:
    options: dict[str, Any] = {
        "observation_noise": config.observation_noise,
        "noise_kind": config.noise_kind,
    }
    if config.alive_bonus is not None:
        options["alive_bonus"] = config.alive_bonus
    require_y(entry.name, config.observe_y)
    if not config.observe_y:
        options["observe_y"] = False
    return gymnasium.make(
        entry.id,
        max_episode_steps=config.horizon,
        disable_env_checker=True,
        render_mode=render_mode,
        **options,
    )


def _time_limit(env: Env) -> int | None:
    """The tightest time limit among the environment's wrappers."""
    limits = []
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            limits.append(layer._max_episode_steps)
        layer = layer.env
    return min(limits, default=None)


def _observation_shape(env: Env) -> tuple[int, ...] | None:
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, FlatObservation):
            return layer.env.observation_space.shape
        layer = layer.env
    return layer.observation_space.shape


def _layout(env: Env) -> spaces.Space[Any] | None:
    """The observation space that was flattened, if it was no Box."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, FlatObservation):
            space = layer.env.observation_space
            return None if isinstance(space, spaces.Box) else space
        layer = layer.env
    return None


def _names(env: Env, history: int) -> tuple[str, ...] | None:
    """What the environment calls the numbers that it shows.

    They are the keys of a Dict, an attribute `observation_names` of the environment, or
    the joints of a MuJoCo model whose environment says what it shows of them.
    """
    size = int(np.prod(env.observation_space.shape or ())) // history
    layout = _layout(env)
    if layout is not None:
        given: Any = [name for leaf in leaves_of(layout) for name in leaf.names]
    else:
        layer: Any = env
        while isinstance(layer, gymnasium.Wrapper) and not isinstance(
            vars(layer).get("observation_names"), list | tuple
        ):
            layer = layer.env
        given = getattr(layer, "observation_names", None) or _joints(layer)
    # A wrapper may show something else than what is named inside it.
    if not isinstance(given, list | tuple) or len(given) != size:
        return None
    return tuple(map(str, given))


def _joints(env: Any) -> list[str]:
    """Names by `observation_structure`, as Gymnasium's MuJoCo environments have it."""
    structure = getattr(env, "observation_structure", None)
    model = getattr(env, "model", None)
    if not isinstance(structure, dict) or not hasattr(model, "jnt_qposadr"):
        return []
    from pombu.envs.locomotion import joint_names

    known = dict(zip(("qpos", "qvel"), joint_names(model), strict=True))
    found: list[str] = []
    for part, size in structure.items():
        if part.startswith("skipped_"):
            whole = part.removeprefix("skipped_")
            known[whole] = known.get(whole, [])[size:]
        elif len(known.get(part, ())) == size:
            found += known[part]
        else:
            found += [f"{part}[{i}]" for i in range(size)]
    return found


def _contract(env: Env) -> Contract | None:
    """The attribute `contract` of the environment or of one of its wrappers.

    A wrapper that may change observations, actions or rewards hides the contracts of
    what it wraps.
    """
    layer = env
    while isinstance(layer, TRANSPARENT) and not hasattr(layer, "contract"):
        layer = layer.env
    contract = getattr(layer, "contract", None)
    if contract is None or isinstance(contract, PointContract | LocomotionContract):
        return contract
    known = frozenset(n for n in FUNCTIONS if callable(getattr(contract, n, None)))
    if not known:
        raise UsageError(
            f"The environment's contract is a {type(contract).__name__} without any of "
            "reward, terminal and initial: give it one of these methods or leave the "
            "attribute out."
        )
    return Part(contract, known)


def _stacked(contract: Contract | None, env: Env, history: int) -> Contract | None:
    """The contract for states that hold so many observations."""
    if contract is None or history == 1:
        return contract
    frame_dim = int(np.prod(env.observation_space.shape or ())) // history
    return StackedContract(contract, frame_dim, history)


def _require_observation_box(name: str, space: spaces.Space[Any]) -> None:
    flat = spaces.flatten_space(space) if _is_numeric(space) else space
    if not isinstance(flat, spaces.Box):
        raise UsageError(
            f"{name} has the observation space {space}, but pombu takes numbers: a "
            "Box, or a Dict or Tuple of such; wrap it with a "
            "gymnasium.ObservationWrapper and pass module:factory."
        )
    _require_entries(name, "observation", flat)


def _is_numeric(space: spaces.Space[Any]) -> bool:
    """Whether a space holds numbers and choices alone, at any depth."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return all(map(_is_numeric, parts))
    numbers = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return isinstance(space, numbers)


def _require_entries(name: str, kind: str, space: spaces.Box) -> None:
    if 0 in space.shape:
        raise UsageError(
            f"{name} has the {kind} space {space} without any entries: give it at "
            "least one."
        )


def action_box(name: str, space: spaces.Space[Any]) -> ActionBox:
    """The bounds of a Box of floats that has them; raise for any other space."""
    if not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)):
        raise UsageError(
            f"{name} has the action space {space}, but pombu takes a Box of floats: "
            "wrap it with a gymnasium.ActionWrapper that turns a float vector into its "
            "actions and pass module:factory."
        )
    _require_entries(name, "action", space)
    if not space.is_bounded("both"):
        raise UsageError(
            f"{name} has the action space {space} with infinite bounds, but pombu maps "
            "policy actions to finite ones: wrap it with "
            "gymnasium.wrappers.TransformAction, whose action space is a finite Box, "
            "and pass module:factory."
        )
    low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
    return ActionBox(tuple(low), tuple(high), space.shape, str(space.dtype))
