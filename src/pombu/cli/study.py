"""`pombu study`: many runs from one file, here or on a Ray cluster."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from pombu.cli import parsing
from pombu.studies.backends import BackendOptions
from pombu.studies.progress import RunProgress


@dataclasses.dataclass(frozen=True)
class Study:
    """Train every run of a study file: algorithms x tasks x seeds x overrides.

    Runs that exist are skipped, interrupted ones resume, failed ones are named and do
    not stop the rest; the same command again goes on where it was stopped.

    Examples:
      pombu study study.toml
      pombu study study.toml --workers 2 --cores-per-run 4
      pombu study study.toml --backend ray --address 10.0.0.1:6379
      pombu study status study.toml
    """

    file: Annotated[Path, tyro.conf.Positional]
    """The study file (see the guide on studies)."""
    out: Path | None = None
    """Folder for the runs; None takes the file's `out`, or runs/ and its name."""
    backend: Annotated[BackendOptions, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=BackendOptions
    )
    """Where the runs happen."""
    trust: tuple[str, ...] = ()
    """Tasks of the form module:factory whose code may be run."""
    json: bool = False
    """Print one JSON object at the end; progress goes to standard error."""

    def run(self) -> int:
        """Run the study to its end."""
        from pombu.studies.progress import watcher
        from pombu.studies.study import plan, run_study
        from pombu.studies.study_file import read_study

        study = read_study(self.file, self.trust)
        folder = self.out or study_folder(self.file, study.out)
        planned = plan(study.jobs(), folder)
        view = watcher(Console(stderr=self.json))
        try:
            outcome = run_study(planned, folder, self.backend.open(), view, self.trust)
        finally:
            view.close()
        if self.json:
            print(json.dumps(as_json(folder, outcome.runs)))
        else:
            print(last_words(folder, outcome.runs))
        if outcome.signal is not None:
            return 128 + outcome.signal
        return 0 if outcome.finished else 1


@dataclasses.dataclass(frozen=True)
class Status:
    """Show how far the runs of a study are, whether or not it is at work.

    Examples:
      pombu study status
      pombu study status study.toml
      pombu study status runs/study
    """

    study: Annotated[Path, tyro.conf.Positional] = Path("study.toml")
    """The study file, or the folder of its runs."""
    out: Path | None = None
    """The --out with which the study was started."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Print the table."""
        from pombu.studies.progress import line, table
        from pombu.studies.study import status
        from pombu.studies.study_file import read_out

        folder = self.out or self.study
        if self.out is None and not folder.is_dir():
            folder = study_folder(self.study, read_out(self.study))
        runs, slots = status(folder)
        console = Console()
        if self.json:
            print(json.dumps(as_json(folder, runs)))
        elif console.is_terminal:
            console.print(table(runs, slots, console.width))
            for run in runs:
                if run.failure:
                    console.print(f"{run.name} failed: {run.failure}", markup=False)
        else:
            print("\n".join(map(line, runs)))
        return 0


def parse_study(arguments: Sequence[str]) -> Any:
    """`pombu study status` is a command of its own."""
    if arguments and arguments[0] == "status":
        return parsing.parse(Status, "study status", arguments[1:])
    return parsing.parse(Study, "study", arguments)


def study_folder(file: Path, out: str | None) -> Path:
    """Where the runs of a study file are."""
    return Path(out) if out else Path("runs") / file.stem


def as_json(folder: Path, runs: Sequence[RunProgress]) -> dict[str, Any]:
    """A study for programs."""
    return {"folder": str(folder), "runs": [dataclasses.asdict(run) for run in runs]}


def last_words(folder: Path, runs: Sequence[RunProgress]) -> str:
    """How a study ended, and what to do next."""
    failed = [run for run in runs if run.state == "failed"]
    open_runs = [run for run in runs if run.state not in ("finished", "failed")]
    lines = [f"{run.name} failed: {run.failure}" for run in failed]
    if open_runs:
        lines.append(
            f"Stopped with {len(open_runs)} runs to go: the same command goes on."
        )
    elif failed:
        lines.append(
            f"{len(failed)} of {len(runs)} runs failed; the same command tries them "
            f"again. The others are in {folder}."
        )
    else:
        lines.append(
            f"Done: {len(runs)} runs are in {folder}. Next: pombu plot {folder}"
        )
    return "\n".join(lines)
