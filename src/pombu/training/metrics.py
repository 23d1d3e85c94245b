"""`metrics.csv`: one row per iteration, on the disk when the iteration ends.

Columns that depend on the machine end in `_seconds` or `_memory`; all others are the
same whenever the run is repeated. A metric that an iteration did not measure is left
empty.
"""

import csv
import io
import math
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pombu.errors import RunError
from pombu.files import (
    DamagedFileError,
    json_digest,
    not_through_links,
    write_atomic,
    writing,
)

MACHINE_DEPENDENT = ("_seconds", "_memory")

Row = dict[str, float]


class NonFiniteError(RunError):
    """A metric is not a finite number, so the run cannot be trusted any further."""


class NothingLearnedError(RunError):
    """An iteration imagined nothing that could be learned from."""


class MetricsFile:
    """Appends rows to a CSV file whose header grows when a new metric appears."""

    def __init__(self, path: Path) -> None:
        """Append to `path`, which need not exist."""
        self.path = path
        columns, rows = read_rows(path) if path.exists() else ([], [])
        self._columns = list(columns)
        self.checksum = checksum_of(rows)

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row and wait until it is on the disk."""
        if new := [name for name in row if name not in self._columns]:
            earlier = self.rows()
            self._columns += new
            self._rewrite(earlier)
        with (
            writing(self.path),
            open(self.path, "ab", opener=not_through_links) as file,
        ):
            file.write(self._lines([row]))
            file.flush()
            os.fsync(file.fileno())
        self.checksum = _extended(self.checksum, row)

    def rows(self) -> list[Row]:
        """All rows so far."""
        return read_rows(self.path)[1] if self.path.exists() else []

    def drop_after(self, iteration: int) -> None:
        """Drop rows beyond an iteration, and half a row that a crash left."""
        if self.path.exists():
            kept = [row for row in self.rows() if row["iteration"] <= iteration]
            self._rewrite(kept)
            self.checksum = checksum_of(kept)

    def _rewrite(self, rows: Iterable[Row]) -> None:
        header = ",".join(self._columns) + "\n"
        write_atomic(self.path, header.encode() + self._lines(rows))

    def _lines(self, rows: Iterable[Mapping[str, float]]) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writerows(map(_text, rows))
        return text.getvalue().encode()


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """The header and the whole rows of a metrics file.

    Raises:
        DamagedFileError: A line is no row of numbers.
    """
    rows = []
    try:
        text = path.read_text()
        # Only a line that ends was written completely.
        reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
        header = next(reader, [])
        for cells in reader:
            pairs = zip(header, cells, strict=True)
            rows.append({name: _number(cell) for name, cell in pairs if cell})
    except (ValueError, csv.Error) as error:
        raise DamagedFileError(path, f"row {len(rows) + 1}: {error}") from None
    return header, rows


def checksum_of(rows: Iterable[Mapping[str, float]]) -> str:
    """The checksum of rows, which does not depend on columns that came later.

    It is made row by row, so that one more row costs the same however many there are.
    """
    checksum = ""
    for row in rows:
        checksum = _extended(checksum, row)
    return checksum


def _extended(checksum: str, row: Mapping[str, float]) -> str:
    return json_digest([checksum, _text(row)])


def require_rows(
    path: Path, rows: Iterable[Row], iteration: int, checksum: str
) -> None:
    """Refuse rows that are not those of the checkpoint of an iteration.

    Raises:
        DamagedFileError: A number was changed, or a row is missing.
    """
    if checksum_of(r for r in rows if r.get("iteration", 0) <= iteration) != checksum:
        raise DamagedFileError(
            path,
            f"its rows up to iteration {iteration} are not those that the checkpoint "
            "knows: restore it from a copy, or remove it to go on without them",
        )


def deterministic(row: Mapping[str, float]) -> Row:
    """The part of a row that does not depend on the machine."""
    return {k: v for k, v in row.items() if not k.endswith(MACHINE_DEPENDENT)}


def require_finite(metrics: Mapping[str, float], iteration: int) -> None:
    """Stop the run when a metric is infinite or not a number.

    Raises:
        NonFiniteError: Names the metrics.
    """
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    if bad:
        named = ", ".join(f"{name} = {value}" for name, value in bad.items())
        raise NonFiniteError(
            f"iteration {iteration} gave {named}, so the run was stopped: lower the "
            "learning rates or clip rewards (the guide on NaNs explains how to look)."
        )


def require_learning(metrics: Mapping[str, float], iteration: int) -> None:
    """Stop the run when every imagined trajectory of an iteration was masked.

    Then the last batch promised exactly nothing, and advantages had no spread at all.

    Raises:
        NothingLearnedError: Says how many, and what to look at.
    """
    masked = metrics.get("masked_trajectories", 0.0)
    empty = metrics.get("return_model") == 0.0
    flat = metrics.get("advantage_std", math.inf) < 1e-7
    if masked and empty and flat:
        raise NothingLearnedError(
            f"iteration {iteration} learned nothing, because all {masked:g} imagined "
            "trajectories ran beyond imagination.runaway or were not finite; the state "
            "is saved: raise that limit, collect more real steps per iteration, or "
            "see what the guide on NaNs says about masked trajectories."
        )


def _text(row: Mapping[str, float]) -> dict[str, str]:
    """Numbers in the shortest form that reads back exactly."""
    return {
        name: str(int(value)) if isinstance(value, int) else repr(float(value))
        for name, value in row.items()
    }


def _number(cell: str) -> float:
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)


def peak_memory() -> float:
    """The most memory this process has used, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
