"""Find, make and describe the environment that a user named."""

import dataclasses
import difflib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pombu.envs.action_box import ActionBox
from pombu.envs.catalogue import CATALOGUE
from pombu.envs.config import EnvConfig
from pombu.envs.contract import Contract
from pombu.envs.wrappers import FlatObservation, NoisyObservation
from pombu.errors import PombuError, UsageError

HORIZON_WITHOUT_LIMIT = 1000
"""Steps per episode of an environment that names no time limit of its own."""

Env = gymnasium.Env[Any, Any]


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

    def make(self, render_mode: str | None = None) -> Env:
        """A fresh environment of this task."""
        return make(self.config, render_mode)


def resolve(name: str) -> str:
    """The full name of an environment: a Gymnasium id or `module:factory`."""
    for entry in CATALOGUE:
        if name in {entry.name, entry.id}:
            return entry.id
    if ":" in name or _registered(name):
        return name
    known = [entry.name for entry in CATALOGUE]
    candidates = {key.lower(): key for key in [*gymnasium.registry, *known]}
    near = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.5)
    hint = f"did you mean {candidates[near[0]]!r}?" if near else "see `pombu envs`."
    raise UsageError(
        f"There is no environment {name!r}; pombu takes one of {', '.join(known)}, a "
        f"Gymnasium id or module:factory; {hint}"
    )


def make(config: EnvConfig, render_mode: str | None = None) -> Env:
    """Make the environment: flat float32 observations, a time limit, noise if asked."""
    name = resolve(config.id)
    for entry in CATALOGUE:
        if entry.id == name:
            return _make_own(entry.name, name, config, render_mode)
    if config.alive_bonus is not None or not config.observe_y:
        raise UsageError(
            f"alive_bonus and observe_y are options of pombu's own tasks, not of {name}: "
            "leave them out."
        )
    _quiet_mujoco()
    env = _make_foreign(name, config.horizon, render_mode)
    _require_box(name, "observation", env.observation_space)
    _require_finite_actions(name, env.action_space)
    env = FlatObservation(env)
    if config.observation_noise:
        env = NoisyObservation(env, config.observation_noise)
    return env


def load(config: EnvConfig | str, **overrides: Any) -> Task:
    """Describe the environment; `overrides` replace fields of the config."""
    if isinstance(config, str):
        config = EnvConfig(id=config)
    config = dataclasses.replace(config, **overrides)
    config = dataclasses.replace(config, id=resolve(config.id))
    env = make(config)
    try:
        box = env.action_space
        assert isinstance(box, spaces.Box)
        low, high = box.low.ravel().tolist(), box.high.ravel().tolist()
        return Task(
            config=config,
            observation_dim=int(np.prod(env.observation_space.shape or (1,))),
            action_dim=len(low),
            horizon=_time_limit(env) or HORIZON_WITHOUT_LIMIT,
            action_box=ActionBox(tuple(low), tuple(high)),
            contract=_contract(env),
        )
    finally:
        env.close()


def _make_own(short: str, name: str, config: EnvConfig, render_mode: str | None) -> Env:
    options: dict[str, Any] = {"observation_noise": config.observation_noise}
    if config.alive_bonus is not None:
        options["alive_bonus"] = config.alive_bonus
    if not config.observe_y:
        if short != "Ant":
            raise UsageError(
                f"observe_y=False hides Ant's sideways position and {short} observes "
                "none: leave the option out."
            )
        options["observe_y"] = False
    return gymnasium.make(
        name,
        max_episode_steps=config.horizon,
        disable_env_checker=True,
        render_mode=render_mode,
        **options,
    )


def _make_foreign(name: str, horizon: int | None, render_mode: str | None) -> Env:
    try:
        if not _registered(name) and (factory := _factory(name)) is not None:
            env = factory()
            if not isinstance(env, gymnasium.Env):
                raise UsageError(
                    f"{name} returned {type(env).__name__}, but pombu needs a "
                    "gymnasium.Env: return one from the factory."
                )
        else:
            env = gymnasium.make(
                name,
                max_episode_steps=horizon,
                disable_env_checker=True,
                render_mode=render_mode,
            )
    except PombuError:
        raise
    except Exception as error:
        raise UsageError(
            f"{name} could not be made ({type(error).__name__}: {error}); check that "
            "what it needs is installed and that it takes no required arguments."
        ) from error
    limit = _time_limit(env)
    steps = horizon or limit or HORIZON_WITHOUT_LIMIT
    if limit is None or steps < limit:
        env = gymnasium.wrappers.TimeLimit(env, steps)
    return env


def _factory(name: str) -> Callable[[], Env] | None:
    """The callable behind `module:factory`; None if the module registers that id."""
    module_name, _, attribute = name.partition(":")
    # A console script does not look into the working directory, where the user's file is.
    sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(
            f"The module of {name!r} could not be imported ({type(error).__name__}: "
            f"{error}); give module:factory with a module that Python finds from here."
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    if attribute in gymnasium.registry:
        return None
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(
            f"Module {module_name!r} has no function {attribute!r}; give module:factory "
            "where factory() returns a Gymnasium environment."
        )
    return factory  # type: ignore[no-any-return]


def _registered(name: str) -> bool:
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError):
        return False
    return True


def _quiet_mujoco() -> None:
    try:
        from pombu.envs.mujoco_models import quiet_mujoco
    except ImportError:
        return
    quiet_mujoco()


def _time_limit(env: Env) -> int | None:
    """The tightest time limit among the environment's wrappers and its spec."""
    limits = []
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            limits.append(layer._max_episode_steps)
        layer = layer.env
    return min(limits, default=None)


def _contract(env: Env) -> Contract | None:
    if not env.has_wrapper_attr("contract"):
        return None
    contract = env.get_wrapper_attr("contract")
    if not isinstance(contract, Contract):
        raise UsageError(
            f"The environment's contract is a {type(contract).__name__} without all of "
            "reward, terminal and initial: give it these three methods."
        )
    return contract


def _require_box(name: str, kind: str, space: spaces.Space[Any]) -> None:
    if isinstance(space, spaces.Box) and space.dtype is not None:
        return
    helps = {
        spaces.Dict: "gymnasium.wrappers.FlattenObservation",
        spaces.Tuple: "gymnasium.wrappers.FlattenObservation",
        spaces.Discrete: "gymnasium.wrappers.FlattenObservation (one-hot)",
    }
    wrapper = (
        "a gymnasium.ActionWrapper that turns a Box into its actions"
        if kind == "action"
        else helps.get(type(space), "gymnasium.wrappers.TransformObservation")
    )
    raise UsageError(
        f"{name} has the {kind} space {space}, but pombu takes a Box of numbers: wrap it "
        f"with {wrapper} and pass module:factory."
    )


def _require_finite_actions(name: str, space: spaces.Space[Any]) -> None:
    _require_box(name, "action", space)
    assert isinstance(space, spaces.Box)
    if not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"{name} has the action space {space}, but pombu takes a Box of floats: wrap "
            "it with gymnasium.wrappers.TransformAction and pass module:factory."
        )
    if not space.is_bounded("both"):
        raise UsageError(
            f"{name} has the action space {space} with infinite bounds, but pombu maps "
            "actions to finite ones: wrap it with gymnasium.wrappers.RescaleAction or "
            "TransformAction and pass module:factory."
        )
