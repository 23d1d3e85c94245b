"""`pombu check-env`: does an environment do what pombu will assume of it?"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from pombu.cli.parsing import ENV_OPTIONS, EnvOptions
from pombu.envs import Report, check, load

COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class Command:
    """Take real steps in an environment and compare them with its contract.

    Compared are reward, termination, start distribution, bounds, dtypes and determinism
    under a seed. For an environment without a contract it says what pombu will do
    instead. The exit code is 1 if anything failed.

    Examples:
      pombu check-env HalfCheetah
      pombu check-env Ant --alive-bonus 1 --horizon 1000
      pombu check-env Pendulum-v1 --steps 1000
      pombu check-env my_module:make_env --json
    """

    env: Annotated[str, tyro.conf.Positional]
    """Task of pombu, Gymnasium id, or module:factory."""

    options: Annotated[EnvOptions, tyro.conf.arg(name="")] = ENV_OPTIONS

    steps: int = 300
    """Real steps to compare."""

    seed: int = 0
    """Seed of the first episode."""

    json: bool = False
    """Print JSON for other programs instead of a table."""

    def run(self) -> int:
        """Check, print, and tell by the exit code whether anything failed."""
        report = check(load(self.options.of(self.env)), self.steps, self.seed)
        if self.json:
            verdict = {"passed": report.passed, **dataclasses.asdict(report)}
            print(json.dumps(verdict, indent=2))
        else:
            print_report(report)
        return 0 if report.passed else 1


def print_report(report: Report) -> None:
    """The findings for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in report.findings:
        colour = COLOURS[finding.verdict]
        verdict = f"[{colour}]{finding.verdict}[/{colour}]"
        table.add_row(verdict, finding.subject, finding.detail)
    console = Console()
    console.print(f"{report.id}, {report.steps} random steps", highlight=False)
    console.print(table)
