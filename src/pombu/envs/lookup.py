"""From the name that a user typed to the environment that it means."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium

from pombu.envs.catalogue import CATALOGUE, Entry
from pombu.envs.unnamed import HERE, recall
from pombu.errors import PombuError, UsageError

Env = gymnasium.Env[Any, Any]


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
        return gymnasium.make(
            name,
            max_episode_steps=horizon,
            disable_env_checker=True,
            render_mode=render_mode,
        )
    except PombuError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{name} could not be made ({in_one_line(error)}): check that what it "
            "needs is installed and that it takes no required arguments."
        ) from error


def _call(name: str, factory: Callable[..., Any], render_mode: str | None) -> Env:
    try:
        renders = "render_mode" in inspect.signature(factory).parameters
    except ValueError:  # something built in, which does not say what it takes
        renders = False
    env = factory(render_mode=render_mode) if renders else factory()
    if not isinstance(env, gymnasium.Env):
        raise UsageError(
            f"{name} returned {type(env).__name__}, but pombu needs a gymnasium.Env: "
            "return one from the factory."
        )
    return env


def _factory(name: str) -> Callable[..., Any] | None:
    """The callable behind `module:factory`; None if the module registers that id."""
    if name.startswith(HERE):
        return recall(name)
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
    factory: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(
            f"Module {module_name!r} has no function {attribute!r}: give "
            "module:factory where factory() returns a Gymnasium environment."
        )
    return factory


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
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
