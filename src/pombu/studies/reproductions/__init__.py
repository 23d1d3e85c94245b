"""The paper's experiments, one file each, found by name.

A file ``figure_1.py`` here is what ``pombu reproduce figure-1`` runs. It holds

- ``SUMMARY``: one line for the list of reproductions;
- ``DEFAULT``: the profile that is used unless another is asked for;
- ``reproduce(profile, out) -> dict``: does the work, writes pictures (PNG and PDF),
  data (CSV or JSON), config.json and versions.json into the folder ``out``, and gives
  the headline numbers back.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pombu.errors import UsageError

Profile = Literal["smoke", "fast", "paper"]


@dataclass(frozen=True)
class Reproduction:
    """One of the paper's experiments."""

    name: str
    summary: str
    default: Profile
    reproduce: Callable[[Profile, Path], dict[str, Any]]


def names() -> tuple[str, ...]:
    """All reproductions, in alphabetical order."""
    modules = pkgutil.iter_modules(__path__)
    return tuple(sorted(module.name.replace("_", "-") for module in modules))


def find(name: str) -> Reproduction:
    """The reproduction of that name."""
    if name not in names():
        raise UsageError(
            f"there is no reproduction '{name}'; there are {', '.join(names())}."
        )
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return Reproduction(name, module.SUMMARY, module.DEFAULT, module.reproduce)
