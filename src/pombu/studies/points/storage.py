"""Outcomes on disk, so that a long experiment can stop and go on."""

import csv
import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pombu.studies import artifacts
from pombu.studies.points.outcome import Outcome
from pombu.studies.points.settings import PointSettings

SHARED = ("environments", "datasets")
"""Settings that say which datasets there are, not what one of them is."""


def save(outcome: Outcome, settings: PointSettings, folder: Path) -> None:
    """Write a table of the start states and a JSON file of everything else."""
    name = _name(outcome.environment, outcome.dataset)
    columns = {
        "error": outcome.error,
        "member_error": outcome.member_error,
        "member_variance": outcome.member_variance,
        **{f"sigma_{stage}": sigma for stage, sigma in outcome.sigma.items()},
    }
    artifacts.write_csv(
        folder / f"{name}.csv.gz",
        tuple(columns),
        ([f"{x:.8g}" for x in row] for row in np.stack([*columns.values()], axis=1)),
    )
    arrays = {"error", "member_error", "member_variance", "sigma"}
    scalars = {k: v for k, v in vars(outcome).items() if k not in arrays}
    artifacts.write_json(
        folder / f"{name}.json", {"settings": _identity(settings), **scalars}
    )


def restore(
    settings: PointSettings, environment: str, dataset: int, folder: Path
) -> Outcome | None:
    """The outcome of an earlier run with the same settings, if there is one."""
    name = _name(environment, dataset)
    described, table = folder / f"{name}.json", folder / f"{name}.csv.gz"
    if not (described.exists() and table.exists()):
        return None
    scalars = json.loads(described.read_text())
    if scalars.pop("settings") != _identity(settings):
        return None
    with gzip.open(table, "rt", newline="") as file:
        header, *rows = csv.reader(file)
    columns = dict(zip(header, np.array(rows, dtype=np.float64).T, strict=True))
    return Outcome(
        error=columns["error"],
        member_error=columns["member_error"],
        member_variance=columns["member_variance"],
        sigma={
            name.removeprefix("sigma_"): column
            for name, column in columns.items()
            if name.startswith("sigma_")
        },
        **{k: _tuples(v) for k, v in scalars.items()},
    )


def _name(environment: str, dataset: int) -> str:
    return f"{environment}-{dataset}"


def _identity(settings: PointSettings) -> dict[str, Any]:
    """The settings as they come back from JSON, without those that are shared."""
    kept = {k: v for k, v in asdict(settings).items() if k not in SHARED}
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
