"""Output files of an analysis: pictures, tables and JSON."""

import csv
import dataclasses
import gzip
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write the figure as PNG and as PDF; the same figure gives the same bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    figure.savefig(paths[0], metadata={"Software": None})
    figure.savefig(paths[1], metadata={"CreationDate": None, "Producer": None})
    return paths


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> Path:
    """Write a table; a name that ends in .gz is compressed, without a time stamp."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write JSON; numbers that are not finite become null, as JSON has none."""
    path.write_text(json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")
    return path


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as it stands in a Markdown page."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value
