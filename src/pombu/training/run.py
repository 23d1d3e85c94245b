"""The run folder: everything about one training run, readable without pombu.

config.json      what was asked for: algorithm, seed, steps and the resolved config
versions.json    with which versions, machine and source, once per start
metrics.csv      one row per iteration
checkpoints/     the last few and the best
episodes/        every real episode
observation.json how observations that are Dicts or Tuples were flattened
task.json        sizes, bounds and names of the environment
evaluation.json  returns of the final policy
tensorboard/     events, where asked for
"""

import contextlib
import dataclasses
import datetime
import fcntl
import glob
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pombu.data.episodes import EPISODES
from pombu.errors import (
    Amount,
    Count,
    Range,
    RunError,
    UsageError,
    Whole,
    require_ranges,
    require_seed,
)
from pombu.files import (
    DamagedFileError,
    changes,
    json_digest,
    not_through_links,
    parse_json,
    require_no_links,
    sealed,
    set_aside,
    temporary_name,
    unsealed,
    write_atomic,
)
from pombu.parallel import usable_cores
from pombu.training import checkpoint, config_file
from pombu.training.metrics import Row, read_rows, require_rows

CONFIG = "config.json"
VERSIONS = "versions.json"
METRICS = "metrics.csv"
EVALUATION = "evaluation.json"
OBSERVATION = "observation.json"
TASK = "task.json"
TENSORBOARD = "tensorboard"
LOCK = "lock"
STALE_SECONDS = 3600.0
"""After this time a folder that is still being created was left by a killed process."""

PACKAGES = (
    "pombu",
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "numpy",
    "gymnasium",
    "mujoco",
    "safetensors",
    "sbx-rl",
    "flax",
    "tfp-nightly",
    "stable-baselines3",
    "torch",
    "matplotlib",
)
"""Packages that a run's numbers depend on."""


class InUseError(UsageError):
    """Another process is at work in a run folder."""


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """What a run was asked to do."""

    algorithm: str
    preset: str
    seed: int
    total_steps: Annotated[int, Range("[0, 1e12]")]
    """Real steps to take in all; 0 only where a run learns offline."""
    config: dict[str, Any]
    """The algorithm's resolved config, as JSON."""
    checkpoint_every: Count = 1
    keep_checkpoints: Count = 3
    tensorboard: bool = False
    wandb: bool = False
    evaluation_share: Amount | None = None
    """Steps of evaluations per real step, at most; None sets no limit."""
    last_iteration: Count | None = None
    """Iterations after which the run is done, whatever steps it has taken; None is
    done once it has taken all of them."""
    offline: Whole = 0
    """First iterations, which learn from stored episodes alone."""
    evaluate: bool = True
    """Whether the policy is ever measured in the real environment."""

    def is_done(self, iteration: int, real_steps: int) -> bool:
        """Whether a run that has come so far is at its end."""
        if iteration < self.offline:
            return False
        enough = self.last_iteration is not None and iteration >= self.last_iteration
        return enough or real_steps >= self.total_steps

    def __post_init__(self) -> None:
        require_ranges(self)
        require_seed(self.seed)
        if not (self.total_steps or self.offline):
            raise UsageError(
                "total_steps is 0; it must be a whole number from 1 on, unless the run "
                "learns from data alone (--offline)."
            )

    @property
    def experiment(self) -> dict[str, Any]:
        """What tells it from other runs; without tuples, because JSON has none."""
        config = config_file.flat(self.config)
        return {"algorithm": self.algorithm, "seed": self.seed, "config": config}

    @property
    def bound(self) -> dict[str, Any]:
        """What a checkpoint depends on beside its algorithm, by dotted names."""
        return {"seed": self.seed, **config_file.flat(self.config)}


@dataclasses.dataclass(frozen=True)
class Run:
    """An existing run folder."""

    path: Path
    spec: RunSpec

    @property
    def named(self) -> str:
        """The run as a command must name it: code outside pombu is named again."""
        env = self.spec.config.get("env")
        name = str(env.get("id")) if isinstance(env, dict) else ""
        return f"{self.path} --env {name}" if ":" in name else str(self.path)

    @property
    def metrics(self) -> Path:
        """One row per iteration."""
        return self.path / METRICS

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes off the folder; the lock dies with this process.

        Raises:
            InUseError: Another process has it.
            UsageError: Something in it is a link to elsewhere.
            RunError: It cannot be written to.
        """
        folders = (checkpoint.CHECKPOINTS, EPISODES)
        require_no_links(self.path, *(self.path / name for name in folders))
        try:
            file = open(self.path / LOCK, "a+", opener=not_through_links)  # noqa: SIM115
        except OSError as error:
            raise RunError(
                f"could not write into {self.path} ({error.strerror}): make the folder "
                "writable."
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise InUseError(
                    f"{self.path} is in use by process {file.read().strip()}: wait for "
                    "it to end, or choose another folder."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def record_start(self) -> None:
        """Add this process's versions and machine to those of earlier starts."""
        path = self.path / VERSIONS
        try:
            earlier = self.starts()
        except DamagedFileError:
            # It only tells of the past: a damaged one must not end the run.
            set_aside(path)
            earlier = []
        write_json(path, list(map(sealed, [*earlier, provenance()])))

    def starts(self) -> list[dict[str, Any]]:
        """What `versions.json` says of every start, oldest first.

        Raises:
            DamagedFileError: It is not as it was written.
        """
        path = self.path / VERSIONS
        if not path.exists():
            return []
        content = _read_json(path)
        if not isinstance(content, list):
            raise DamagedFileError(path, "it is no list of starts")
        return [unsealed(path, start) for start in content]

    def write_evaluation(self, measured: Mapping[str, Any]) -> None:
        """Keep the returns of the final policy."""
        write_json(self.path / EVALUATION, sealed(measured))

    def evaluation(self) -> dict[str, Any] | None:
        """What `evaluation.json` says; None until the run has ended.

        Raises:
            DamagedFileError: It is not as it was written.
        """
        path = self.path / EVALUATION
        return unsealed(path, _read_json(path)) if path.exists() else None

    def record_task(self, described: dict[str, Any]) -> None:
        """Keep what a policy must know of the environment, which may be code."""
        if not (self.path / TASK).exists():
            write_json(self.path / TASK, sealed(described))

    def task(self) -> dict[str, Any] | None:
        """What `record_task` kept; None in runs of version 0.1.

        Raises:
            DamagedFileError: It is not as it was written.
        """
        path = self.path / TASK
        return unsealed(path, _read_json(path)) if path.exists() else None

    def record_observation(self, parts: list[dict[str, Any]] | None) -> None:
        """Keep how observations are flattened, where they are.

        Raises:
            UsageError: The environment has another layout than it had in this run.
        """
        path = self.path / OBSERVATION
        if path.exists():
            self.require_observation(parts)
        elif parts is not None:
            write_json(path, parts)

    def require_observation(self, parts: list[dict[str, Any]] | None) -> None:
        """Refuse an environment whose observations are flattened in another way.

        Raises:
            UsageError: Says so.
        """
        path = self.path / OBSERVATION
        if not path.exists():
            return
        try:
            kept = parse_json(path.read_bytes())
        except ValueError as error:
            raise UsageError(
                f"{path} cannot be read ({error}): restore it, or remove it if the "
                "environment is as it was."
            ) from None
        if kept != parts:
            raise UsageError(
                f"{path} lays observations out in another way than the environment "
                "does now, so what was learned would take one entry for another: give "
                "the environment as it was."
            )

    def rows(self) -> list[Row]:
        """The rows of `metrics.csv`, compared with the newest checkpoint's checksum.

        Raises:
            DamagedFileError: They are not those that were written.
        """
        rows = read_rows(self.metrics)[1] if self.metrics.exists() else []
        saved = checkpoint.newest(self.path)
        if rows and saved is not None and saved.metrics_checksum is not None:
            require_rows(self.metrics, rows, saved.iteration, saved.metrics_checksum)
        return rows

    def require_same(self, spec: RunSpec) -> None:
        """Refuse to mix the runs of two agents in one folder."""
        ours, theirs = spec.experiment, self.spec.experiment
        for name in ours:
            if ours[name] != theirs[name]:
                raise UsageError(
                    f"{self.path} holds an agent with another {name}: choose another "
                    "folder, so that neither of them is lost."
                )

    def extend(self, total_steps: int) -> "Run":
        """The same run with another number of real steps to take."""
        # It spoke of the end of a shorter run.
        (self.path / EVALUATION).unlink(missing_ok=True)
        return self._asked(total_steps=total_steps, last_iteration=None)

    def share_evaluation(self, share: float | None) -> "Run":
        """The same run with another share of its steps for evaluation from now on."""
        return self._asked(evaluation_share=share)

    def measure(self, evaluate: bool) -> "Run":
        """The same run, measured in the real environment from now on, or not."""
        return self._asked(evaluate=evaluate)

    def _asked(self, **changed: Any) -> "Run":
        run = Run(self.path, dataclasses.replace(self.spec, **changed))
        write_json(self.path / CONFIG, _spec_json(run.spec))
        return run


def create(path: Path, spec: RunSpec) -> Run:
    """Make a new run folder; it appears with its config already in it.

    Raises:
        UsageError: There is something at `path` already.
        RunError: The place cannot be written to.
    """
    path = Path(path)
    require_free(path)
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        temporary.mkdir()
        (temporary / checkpoint.CHECKPOINTS).mkdir()
        (temporary / EPISODES).mkdir()
        write_json(temporary / CONFIG, _spec_json(spec))
        temporary.rename(path)
    except OSError as error:
        # Another process may have taken the place in the meantime.
        require_free(path)
        raise RunError(
            f"could not create {path} ({error.strerror}): choose another --out."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Run(path, spec)


def _remove_stale(path: Path) -> None:
    """Remove what processes left that were killed while they created this folder."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if time.time() - stale.lstat().st_mtime > STALE_SECONDS:
            shutil.rmtree(stale, ignore_errors=True)


def require_free(path: Path) -> None:
    """Refuse a place where something is already.

    Raises:
        UsageError: Says what to do instead.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if (path / CONFIG).exists():
        named = str(path)
        with contextlib.suppress(UsageError):  # a damaged one holds its place too
            named = open_run(path).named
        raise UsageError(
            f"{path} already holds a run: choose another --out, or go on with it by "
            f"`pombu resume {named}`."
        )
    raise UsageError(f"{path} exists already: choose another --out.")


def open_run(path: Path) -> Run:
    """Read the config of an existing run folder.

    Raises:
        UsageError: There is no run at `path`, or its config cannot be used.
    """
    path = Path(path)
    file = path / CONFIG
    try:
        content = parse_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{path} is not a run folder (it has no {CONFIG}): give the folder that "
            "`pombu train --out` named."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({error}).") from None
    if not isinstance(content, dict) or content.pop("format", None) != 1:
        raise UsageError(f"{file} was not written by this version of pombu.")
    checksum = content.pop("sha256", None)
    if checksum not in (None, json_digest(content)):
        raise UsageError(_config_changed(path, content))
    return Run(path, config_file.from_json(RunSpec, content, str(file)))


def _config_changed(path: Path, content: dict[str, Any]) -> str:
    """What to say of a config whose checksum differs, with the change if it is known.

    A checkpoint has a copy of what it depends on, but not of the number of steps.
    """
    saved = checkpoint.newest(path)
    config = content.get("config")
    if saved is not None and saved.config is not None and isinstance(config, dict):
        now = {"seed": content.get("seed"), **config_file.flat(config)}
        if changed := changes(saved.config, now):
            return checkpoint.config_changed(path, changed)
    return (
        f"{path / CONFIG} is not as pombu wrote it (its checksum differs): restore it; "
        "`pombu resume --total-steps` gives a run more steps, and other values need a "
        "run of their own."
    )


def _read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError):
        raise DamagedFileError(path, "it cannot be read") from None


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people and programs, atomically."""
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def _spec_json(spec: RunSpec) -> dict[str, Any]:
    content = dataclasses.asdict(spec)
    return {"format": 1, **sealed(content)}


def provenance() -> dict[str, Any]:
    """Everything about this process that a reader of the run may want to know."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        # Where the program lies is this machine's own affair.
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "packages": versions(),
        "git": _git_state(Path(__file__).parent),
    }


def versions() -> dict[str, str]:
    """Installed versions of the packages that a run's numbers depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the source and whether it was changed; None outside a git checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
