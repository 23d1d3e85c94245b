"""The paper's experiments, one file each, found by name.

A file ``figure_1.py`` here is what ``pombu reproduce figure-1`` runs. It holds

- ``SUMMARY``: one line for the list of reproductions;
- ``DEFAULT``: the profile that is used unless another is asked for;
- either ``ITEM``: panels of runs to compare and how to draw them
  (`pombu.studies.experiments`);
- or ``reproduce_from(request) -> dict``, for what is computed from runs that exist;
- or ``reproduce(profile, out) -> dict``: does the work, writes pictures (PNG and PDF),
  data (CSV or JSON), config.json and versions.json into the folder ``out``, and gives
  the headline numbers back; unless it is one of the `PAGES`, ``tell(numbers) -> str``
  beside it says them in one line of the overview.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pombu.errors import UsageError
from pombu.studies.experiments import Item
from pombu.studies.experiments import Profile as Profile

PAGES = ("costs", "overview", "uncertainty-page")
"""Not the paper's experiments, but pages about those that were done."""


@dataclass(frozen=True)
class Reproduction:
    """One of the paper's experiments."""

    name: str
    summary: str
    default: Profile
    reproduce: Callable[[Profile, Path], dict[str, Any]] | None
    """Does the whole work; None where there is one of the two below."""
    tell: Callable[[dict[str, Any]], str] | None
    """Its numbers in one line."""
    reproduce_from: Callable[[Any], dict[str, Any]] | None
    """The same, from a whole request with its runs."""
    item: Item | None


def names() -> tuple[str, ...]:
    """All reproductions, in alphabetical order."""
    modules = pkgutil.iter_modules(__path__)
    return tuple(sorted(module.name.replace("_", "-") for module in modules))


def find(name: str) -> Reproduction:
    """The reproduction of that name."""
    if name not in names():
        raise UsageError(
            f"there is no reproduction '{name}'; there are {', '.join(names())}, and "
            "all."
        )
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return Reproduction(
        name,
        module.SUMMARY,
        module.DEFAULT,
        getattr(module, "reproduce", None),
        getattr(module, "tell", None),
        getattr(module, "reproduce_from", None),
        getattr(module, "ITEM", None),
    )
