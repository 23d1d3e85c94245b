"""`pombu presets`: the presets, and every value in one of them."""

import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from pombu.algorithms import presets
from pombu.algorithms.registry import ALGORITHMS, find
from pombu.envs import CATALOGUE, resolve
from pombu.training import config_file


@dataclasses.dataclass(frozen=True)
class Command:
    """List the presets of an algorithm, side by side for one task.

    Any value can be overridden by the flag of its name in `pombu train`.

    Examples:
      pombu presets
      pombu presets --env Ant --horizon 1000
      pombu presets --env HalfCheetah --preset paper --json
    """

    env: str = "HalfCheetah"
    """The task."""
    algo: str = "pombu"
    """The algorithm."""
    preset: str | None = None
    """Show only this one."""
    horizon: int | None = None
    """Steps per episode; the paper has other values for 1000 than for 200."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the values."""
        find(self.algo)
        env = resolve(self.env)
        names = [self.preset] if self.preset else list(presets.names())
        columns = {
            name: presets.preset(self.algo, name, env, self.horizon) for name in names
        }
        columns = {k: config_file.to_json(config) for k, config in columns.items()}
        if self.json:
            print(json.dumps(columns))
        else:
            show(self.algo, env, columns)
        return 0


def show(algorithm: str, env: str, columns: dict[str, dict[str, Any]]) -> None:
    """Print one row per field and one column per preset."""
    table = Table(box=None, title=f"{algorithm} on {env}")
    for title in ("field", *columns):
        table.add_column(title, no_wrap=True)
    flat = {name: config_file.flat(config) for name, config in columns.items()}
    for field in next(iter(flat.values())):
        if field == "env.id":
            continue
        table.add_row(field, *(spell(values.get(field)) for values in flat.values()))
    console = Console()
    console.print(table)
    tasks = ", ".join(entry.name for entry in CATALOGUE)
    console.print(
        f"\nTasks: {tasks}. Algorithms: {', '.join(ALGORITHMS)}.", highlight=False
    )


def spell(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
