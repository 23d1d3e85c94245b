"""Commands for many runs: `pombu study`, `pombu tune` and `pombu reproduce`."""

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from pombu.cli import parsing
from pombu.errors import UsageError
from pombu.paper import Profile
from pombu.studies.backends import BackendOptions
from pombu.studies.progress import RunProgress

if TYPE_CHECKING:
    from pombu.studies.tuning import Found

ALL = "all"


@dataclasses.dataclass(frozen=True)
class Study:
    """Train every run of a study file: algorithms x tasks x seeds x overrides.

    Runs that exist are skipped, interrupted ones resume, failed ones are named and do
    not stop the rest; the same command again goes on where it was stopped. Runs that a
    folder of the file's `skip` holds already are named, and not done again.

    Examples:
      pombu study study.toml
      pombu study studies/e-long.toml --part pombu-halfcheetah
      pombu study study.toml --workers 2 --cores-per-run 4
      pombu study study.toml --backend ray --address 10.0.0.1:6379
      pombu study status study.toml
    """

    file: Annotated[Path, tyro.conf.Positional]
    """The study file (see the guide on studies)."""
    out: Path | None = None
    """Folder for the runs; None takes the file's `out`, or runs/ and its name."""
    part: str | None = None
    """One of the file's `parts`; None is the whole study."""
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
        from pombu.studies.held import find_held, find_settled
        from pombu.studies.progress import display_on
        from pombu.studies.study import plan, run_study
        from pombu.studies.study_file import read_study

        study = read_study(self.file, self.trust).part(self.part)
        folder = self.out or _study_folder(self.file, study.out)
        planned = plan(study.jobs(), folder)
        folders = filter(Path.is_dir, map(Path, study.skip))
        held = find_held(planned, find_settled(folders))
        planned = [one for one in planned if one.path not in held]
        view = display_on(Console(stderr=self.json))
        try:
            for path, (where, steps) in held.items():
                view.say(f"{path.name} is skipped: {where} has {steps:,} steps of it")
            outcome = run_study(planned, folder, self.backend.open(), view, self.trust)
        finally:
            view.close()
        if self.json:
            skipped = {path.name: str(where) for path, (where, _) in held.items()}
            print(json.dumps({**_as_json(folder, outcome.runs), "skipped": skipped}))
        elif held and not planned:
            print("Done: every run is held elsewhere already.")
        else:
            print(closing_lines(folder, outcome.runs))
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
    trust: tuple[str, ...] = ()
    """Taken so that the study's own flags can be repeated; no task's code is run."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Print the table."""
        from pombu.studies.progress import line, table
        from pombu.studies.study import status
        from pombu.studies.study_file import read_out

        folder = self.out or self.study
        if self.out is None and not folder.is_dir():
            folder = _study_folder(self.study, read_out(self.study))
        runs, slots = status(folder)
        console = Console()
        if self.json:
            print(json.dumps(_as_json(folder, runs)))
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


@dataclasses.dataclass(frozen=True)
class Tune:
    """Search for good options with Optuna, as a tuning file says.

    The same command again goes on where it was stopped or killed. What was found is a
    config file, best.toml, for `pombu train --config`; beside it are a table of all
    trials and a picture of which options mattered. Needs the extra `tune`.

    Examples:
      pombu tune tune.toml
      pombu tune tune.toml --minutes 60 --workers 2
      pombu tune tune.toml --trials 100
      pombu train --config runs/tune/best.toml --seed 10
    """

    file: Annotated[Path, tyro.conf.Positional]
    """The tuning file (see the guide on tuning)."""
    trials: int | None = None
    """Trials in all, those of earlier calls included; None takes the file's."""
    minutes: float | None = None
    """Stop after so long, with everything saved; None takes the file's."""
    out: Path | None = None
    """Folder for everything; None takes the file's `out`, or runs/ and its name."""
    backend: Annotated[BackendOptions, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=BackendOptions
    )
    """Where the runs happen."""
    trust: tuple[str, ...] = ()
    """Tasks of the form module:factory whose code may be run."""
    json: bool = False
    """Print one JSON object at the end; progress goes to standard error."""

    def run(self) -> int:
        """Search until the limits are reached."""
        from pombu.studies.progress import display_on
        from pombu.studies.tuning import Limits, require_optuna, tune
        from pombu.studies.tuning_file import read_tuning

        require_optuna()
        for name in ("trials", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"--{name} is {value}: it must be above 0.")
        tuning = read_tuning(self.file, self.trust)
        folder = self.out or _study_folder(self.file, tuning.out)
        limits = Limits(self.trials or tuning.trials, self.minutes or tuning.minutes)
        view = display_on(Console(stderr=self.json))
        try:
            found = tune(tuning, folder, limits, self.backend.open(), view, self.trust)
        finally:
            view.close()
        best = None
        if found.best is not None:
            best = {"trial": found.best.number, "value": found.best.value}
        if self.json:
            content = {"trials": found.trials, "unfinished": found.unfinished}
            print(json.dumps({"folder": str(folder), **content, "best": best}))
        else:
            print(_tuned(folder, found, tuning.objective))
        if found.signal is not None:
            return 128 + found.signal
        return 0 if best else 1


def _tuned(folder: Path, found: "Found", objective: str) -> str:
    """What a search has come to, and what to do next."""
    lines = []
    if found.unfinished:
        lines.append(
            f"Stopped with {found.unfinished} trials under way: the same command goes "
            "on with them."
        )
    if found.best is None:
        lines.append(f"None of {found.trials} trials is complete; see {folder}.")
    else:
        lines.append(
            f"Best of {found.trials} trials: trial {found.best.number}, {objective} "
            f"{found.best.value:.4g}. All of them are in {folder / 'trials.csv'}."
        )
        lines.append(
            f"Next: pombu train --config {folder / 'best.toml'} --seed N, with seeds "
            "that it was not tuned on."
        )
    return "\n".join(lines)


def _study_folder(file: Path, out: str | None) -> Path:
    """Where the runs of a study file are."""
    return Path(out) if out else Path("runs") / file.stem


def _as_json(folder: Path, runs: Sequence[RunProgress]) -> dict[str, Any]:
    """A study for programs."""
    return {"folder": str(folder), "runs": [dataclasses.asdict(run) for run in runs]}


def closing_lines(folder: Path, runs: Sequence[RunProgress]) -> str:
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


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Repeat one of the paper's experiments and write its pictures and data.

    Every reproduction leaves PNG and PDF pictures, the data behind them with the
    paper's own numbers beside ours, its settings (config.json) and the versions it ran
    with (versions.json) in its folder. Runs that exist are used. Those that are missing
    are trained, but where --from names runs: then what there is is drawn, and --train
    trains the rest. Without a name, the reproductions are listed.

    Examples:
        pombu reproduce
        pombu reproduce appendix-c
        pombu reproduce figure-3 --profile smoke --out try/figure-3
        pombu reproduce figure-2 --from runs/cheetah-0 runs/cheetah-1
        pombu reproduce all --profile fast --from results
        pombu reproduce all --profile smoke --out try
    """

    name: Annotated[str, tyro.conf.Positional] = ""
    """Which experiment, such as figure-1, or all; empty lists them."""
    profile: Profile | None = None
    """smoke: seconds, for a first look; fast: affordable on two cores; paper: the
    paper's scale. Each experiment has its own default, shown in the list."""
    out: Path | None = None
    """Folder to write to, which may exist; reproductions/NAME if not given."""
    sources: Annotated[tuple[Path, ...], tyro.conf.arg(name="from")] = ()
    """Run folders, or folders that hold some at any depth, but not in one called
    exploration; they are only read."""
    runs: Path = Path("runs/reproduce")
    """Folder for the runs that are trained; all experiments share them."""
    train: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Train what is missing although `--from` names runs; without `--from` it is
    trained anyway."""
    no_train: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw what there is in the folder of runs, and say what is not."""
    total_steps: int | None = None
    """Real steps of every run; None takes the profile's."""
    seeds: int | None = None
    """Seeds of every arm, from 0 on; None takes the profile's."""
    backend: Annotated[BackendOptions, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=BackendOptions
    )
    """Where the runs happen."""
    json: bool = False
    """Print the headline numbers as one JSON object."""

    def run(self) -> int:
        """List the reproductions, or do one."""
        from pombu.paper.reproduce import find

        if not self.name:
            return self._list()
        self._require_sizes()
        if self.name == ALL:
            profile = self.profile or "fast"
        else:
            profile = self.profile or find(self.name).default
        own = "" if self.name == ALL else self.name
        out = self.out or Path("reproductions") / own
        try:
            out.mkdir(parents=True, exist_ok=True)
            # Better now than after hours of training.
            tempfile.TemporaryFile(dir=out).close()
        except OSError as error:
            raise UsageError(
                f"cannot write to {out} ({error.strerror}); choose another folder with "
                "--out."
            ) from None
        return self._reproduce(profile, out)

    @property
    def trains(self) -> bool:
        """Whether what is missing is trained: where runs are named, only if asked."""
        return self.train or not (self.no_train or self.sources)

    def _require_sizes(self) -> None:
        for name in ("total_steps", "seeds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}: it must be at least 1.")
        if self.train and self.no_train:
            raise UsageError("--train and --no-train are both given: give one.")

    def _reproduce(self, profile: Profile, out: Path) -> int:
        from pombu.paper.panel_runs import Request
        from pombu.paper.reproduce import find, reproduce_all, reproduce_one
        from pombu.studies.progress import display_on

        request = Request(
            profile,
            out,
            self.runs,
            self.sources,
            self.trains,
            self.total_steps,
            self.seeds,
            self.backend,
        )
        view = display_on(Console(stderr=True))
        try:
            if self.name == ALL:
                numbers, missing = reproduce_all(request, view)
            else:
                numbers, missing = reproduce_one(find(self.name), request, view)
        finally:
            view.close()
        if self.json:
            found = {"out": str(out), "numbers": numbers, "missing": missing}
            print(json.dumps(found))
        else:
            for what in missing:
                print(f"missing: {what}")
            print(f"wrote {out}")
        return 1 if missing and self.trains else 0

    def _list(self) -> int:
        from pombu.paper.reproduce import find, names

        items = [find(name) for name in names()]
        if self.json:
            table = {
                i.name: {"summary": i.summary, "default": i.default} for i in items
            }
            print(json.dumps(table))
        else:
            width = 2 + max(len(item.name) for item in items)
            for item in items:
                print(f"{item.name:<{width}}{item.summary} [default: {item.default}]")
        return 0
