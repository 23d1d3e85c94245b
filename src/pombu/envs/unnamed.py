"""Environments that have no name in a module: lambdas, closures, partials, instances.

A config names its environment. What has no name gets one here that holds within this
process: another one can load a run by giving the environment again in Python, and the
command line cannot.
"""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium

from pombu.errors import UsageError

HERE = "python:"
"""How names that hold only within this process begin."""

_REMEMBERED: dict[str, Callable[..., Any]] = {}


def remember(factory: Callable[..., Any], name: str) -> str:
    """A name for a factory; the same one for the same factory."""
    for known, other in _REMEMBERED.items():
        if other is factory:
            return known
    plain = f"{HERE}{name.strip('<>') or 'factory'}"
    key, number = plain, 2
    while key in _REMEMBERED:
        key, number = f"{plain}-{number}", number + 1
    _REMEMBERED[key] = factory
    return key


def recall(name: str) -> Callable[..., Any]:
    """The factory behind such a name.

    Raises:
        UsageError: It was given in another process.
    """
    if name not in _REMEMBERED:
        raise UsageError(
            f"{name!r} stands for an environment that was made in a Python program and "
            "has no name of its own: load the run there, with env= and what it was "
            "made with."
        )
    return _REMEMBERED[name]


def copies_of(env: gymnasium.Env[Any, Any]) -> Callable[..., Any]:
    """A factory of environments like a given one: copies, or made by its spec."""

    def make() -> Any:
        try:
            return copy.deepcopy(env)
        except Exception as error:
            if env.spec is not None:
                return gymnasium.make(env.spec)
            raise UsageError(
                f"{type(env.unwrapped).__name__} cannot be copied "
                f"({type(error).__name__}), and pombu needs several: give a function "
                "that makes one, such as `lambda: MyEnv()`."
            ) from error

    return make
