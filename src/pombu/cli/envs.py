"""`pombu envs`: the paper's tasks at a glance."""

import json
from dataclasses import dataclass

from pombu.envs.catalogue import CATALOGUE

NOTES = (
    "\ns is the state, a the action, v_x the forward velocity, z the height. "
    "HalfCheetah is short for the Gymnasium id pombu/HalfCheetah-v0, and so on. An "
    "alive bonus of 1 gives the reward behind the published numbers of Ant and "
    "Walker2d. Any Gymnasium id or module:factory works as well: try "
    "`pombu check-env Pendulum-v1`."
)


@dataclass(frozen=True)
class Command:
    """List the tasks with observation and action sizes, horizon and reward formula.

    Any other Gymnasium id, or `module:factory`, can be given where a task is named;
    `pombu check-env` tells what pombu will make of it.

    Examples:
      pombu envs
      pombu envs --json
      pombu train --env HalfCheetah
      pombu train --env Pendulum-v1
    """

    json: bool = False
    """Print JSON for other programs instead of a table."""

    def run(self) -> int:
        """Print the list."""
        if self.json:
            print(as_json())
        else:
            print_table()
        return 0


def as_json() -> str:
    """The catalogue as JSON."""
    tasks = [
        {
            "name": entry.name,
            "id": entry.id,
            "observations": entry.observation_dim,
            "actions": entry.action_dim,
            "horizon": entry.horizon,
            "reward": entry.reward,
        }
        for entry in CATALOGUE
    ]
    return json.dumps(tasks, indent=2)


def print_table() -> None:
    """The catalogue for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    table.add_column("task", no_wrap=True)
    for heading in ("observations", "actions", "horizon"):
        table.add_column(heading, justify="right")
    table.add_column("reward per step", no_wrap=True)
    for entry in CATALOGUE:
        sizes = (entry.observation_dim, entry.action_dim, entry.horizon)
        table.add_row(entry.name, *map(str, sizes), entry.reward)
    console = Console()
    console.print(table)
    console.print(NOTES, highlight=False)
