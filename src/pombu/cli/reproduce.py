"""`pombu reproduce`: the paper's experiments, one command each."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from pombu.errors import UsageError
from pombu.paper.experiments import Profile
from pombu.paper.reproduce import find, names
from pombu.studies.backends import BackendOptions

ALL = "all"


@dataclass(frozen=True)
class Reproduce:
    """Repeat one of the paper's experiments and write its pictures and data.

    Every reproduction leaves PNG and PDF pictures, the data behind them with the
    paper's own numbers beside ours, its settings (config.json) and the versions it ran
    with (versions.json) in its folder. Runs that exist are used, those that are missing
    are trained. Without a name, the reproductions are listed.

    Examples:
        pombu reproduce
        pombu reproduce appendix-c
        pombu reproduce figure-3 --profile smoke --out try/figure-3
        pombu reproduce figure-2 --from runs/cheetah-0 runs/cheetah-1 --no-train
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
    """Run folders, or folders that hold some at any depth; they are only read."""
    runs: Path = Path("runs/reproduce")
    """Folder for the runs that are trained; all experiments share them."""
    train: bool = True
    """Train what is missing; `--no-train` draws what there is, and says what is not."""
    total_steps: int | None = None
    """Real steps of every run; None takes the profile's."""
    seeds: int | None = None
    """Seeds of every arm, from 0 on; None takes the profile's."""
    backend: Annotated[BackendOptions, tyro.conf.OmitArgPrefixes] = field(
        default_factory=BackendOptions
    )
    """Where the runs happen."""
    json: bool = False
    """Print the headline numbers as one JSON object."""

    def run(self) -> int:
        """List the reproductions, or do one."""
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

    def _require_sizes(self) -> None:
        for name in ("total_steps", "seeds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}: it must be at least 1.")

    def _reproduce(self, profile: Profile, out: Path) -> int:
        from pombu.paper.panel_runs import Request
        from pombu.paper.reproduce import reproduce_all, reproduce_one
        from pombu.studies.progress import watcher

        request = Request(
            profile,
            out,
            self.runs,
            self.sources,
            self.train,
            self.total_steps,
            self.seeds,
            self.backend,
        )
        view = watcher(Console(stderr=True))
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
        return 1 if missing and self.train else 0

    def _list(self) -> int:
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
