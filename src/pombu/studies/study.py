"""A study: its jobs, and the loop that starts them on a backend until all are finished.

A job is what one run is asked for; it has a config and a run folder. What exists is
skipped, what was interrupted goes on, and what fails is named and stops nothing else.
"""

import contextlib
import dataclasses
import difflib
import fcntl
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pombu.algorithms.config import budget, is_foreign
from pombu.algorithms.registry import find, options, preset
from pombu.analysis.curves import STUDY_FILES
from pombu.envs import EnvConfig, load, resolve, short_name
from pombu.errors import PombuError, RunError, UsageError
from pombu.files import not_through_links, safe_name
from pombu.studies.backends import (
    FAILURE,
    PATIENCE,
    Backend,
    note_failure,
    read_failure,
)
from pombu.studies.progress import RunProgress, examine
from pombu.training import config_file
from pombu.training.algorithm import usual_share
from pombu.training.callbacks import StopRequest, stop_requests
from pombu.training.config_file import flat
from pombu.training.run import CONFIG, RunSpec, create, open_run, write_json

LONGEST_NAME = 150


class OverrideError(UsageError):
    """An override does not fit its algorithm's config."""

    def __init__(self, key: str, sentence: str) -> None:
        self.key = key
        super().__init__(sentence)


@dataclass(frozen=True)
class Job:
    """One run of a study: what is asked for, before a folder is chosen."""

    algorithm: str
    env: EnvConfig
    """The environment; its id may be a short name."""
    seed: int = 0
    preset: str = "fast"
    total_steps: int | None = None
    """Real steps; None takes as many as the preset plans."""
    overrides: tuple[tuple[str, Any], ...] = ()
    """Fields of the config by their dotted names, and their values."""

    @property
    def task(self) -> str:
        """The environment's id as it was given."""
        return self.env.id

    @property
    def name(self) -> str:
        """The run folder's name: the same job always has the same."""
        task = short_name(resolve(self.task))
        parts = [task, self.algorithm, self.preset, *self.env.labels]
        parts += [f"{key}{_spell(value)}" for key, value in self.overrides]
        name = safe_name("-".join(parts))
        if len(name) > LONGEST_NAME:
            name = name[:100] + "-" + hashlib.sha256(name.encode()).hexdigest()[:12]
        return f"{name}-seed{self.seed}"

    def config(self) -> Any:
        """The algorithm's resolved config.

        Raises:
            UsageError: The algorithm, task, preset or an override does not exist.
        """
        find(self.algorithm)
        config = preset(self.algorithm, self.preset, self.task, self.env.horizon)
        env = dataclasses.replace(self.env, id=resolve(self.task))
        return override(dataclasses.replace(config, env=env), self)

    def spec(self) -> RunSpec:
        """Everything a run folder says about what was asked for.

        Raises:
            UsageError: As for `config`, or PPO would end with a learning rate of 0.
        """
        config = self.config()
        steps = budget(config, lambda: load(config.env).horizon, self.total_steps)
        data = config_file.to_json(config)
        foreign = is_foreign(short_name(config.env.id))
        return RunSpec(
            self.algorithm,
            self.preset,
            self.seed,
            steps,
            data,
            evaluation_share=usual_share(load(config.env)) if foreign else None,
        )


@dataclass(frozen=True)
class Planned:
    """A job with its run folder and what the folder will say."""

    job: Job
    spec: RunSpec
    path: Path


def override(config: Any, job: Job) -> Any:
    """The config with a job's overrides, checked field by field."""
    data = config_file.to_json(config)
    for key, value in job.overrides:
        _set_option(job.algorithm, data, key, value)
        try:
            config = config_file.from_json(type(config), data, job.algorithm)
        except UsageError as error:
            raise OverrideError(key, str(error)) from None
    return config


def require_trusted(tasks: Iterable[str], trusted: Collection[str]) -> None:
    """Refuse code outside pombu that the user has not named.

    A file must not be able to run code, so `module:factory` is followed only if the
    user repeats it.
    """
    for task in tasks:
        if ":" in task and task not in trusted:
            raise UsageError(
                f"{task} is code outside pombu: if you trust it, add --trust {task}."
            )


def plan(jobs: Iterable[Job], folder: Path) -> list[Planned]:
    """Give every job its folder; the same job asked for twice is one run.

    Raises:
        UsageError: Two jobs would share a folder, or a folder holds another run.
    """
    planned: dict[Path, Planned] = {}
    for job in dict.fromkeys(jobs):
        one = Planned(job, job.spec(), folder / job.name)
        other = planned.setdefault(one.path, one)
        if other.spec != one.spec:
            raise UsageError(
                f"two runs of the study would share the folder {one.path} and differ "
                f"in {difference(other.spec, one.spec)}: give them different settings."
            )
    for one in planned.values():
        require_same(one)
    return list(planned.values())


def longest(jobs: Iterable[Job]) -> list[Job]:
    """One job where several differ in their steps alone: the longest answers all."""
    found: dict[object, Job] = {}
    for job in jobs:
        experiment = (job.algorithm, job.preset, job.seed, job.config())
        other = found.get(experiment)
        if other is None or (job.total_steps or 0) > (other.total_steps or 0):
            found[experiment] = job
    return list(found.values())


def require_same(planned: Planned) -> None:
    """Refuse a folder in which there is something else than this job's run."""
    path = planned.path
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / CONFIG).exists():
        raise UsageError(
            f"{path} exists and is no run folder: choose another folder for the runs."
        )
    wanted, found = planned.spec, open_run(path).spec
    where = difference(
        wanted, dataclasses.replace(found, total_steps=wanted.total_steps)
    )
    if where:
        raise UsageError(
            f"{path} holds another run, which differs in {where}: choose another "
            "folder for the runs, or remove it."
        )


def difference(one: RunSpec, other: RunSpec) -> str:
    """The settings in which two runs differ, by name; empty where they are alike."""
    first, second = _settings(one), _settings(other)
    keys = dict.fromkeys([*first, *second])
    differ = [key for key in keys if first.get(key) != second.get(key)]
    return ", ".join(differ[:3]) + (" and more" if len(differ) > 3 else "")


def _settings(spec: RunSpec) -> dict[str, Any]:
    asked = ("algorithm", "preset", "seed", "total_steps")
    return {**{name: getattr(spec, name) for name in asked}, **flat(spec.config)}


def _set_option(algorithm: str, data: dict[str, Any], key: str, value: Any) -> None:
    known = options(algorithm)
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
        raise OverrideError(key, f"{algorithm} has no option {key}: {hint}")
    *parents, last = key.split(".")
    for parent in parents:
        data = data[parent]
    data[last] = value


def _spell(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "x".join(map(_spell, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


STATUS, LOCK = STUDY_FILES
POLL = 0.2


@runtime_checkable
class Display(Protocol):
    """Shows a user how the study goes."""

    def show(self, runs: Sequence[RunProgress], slots: int) -> None:
        """Something may have changed."""

    def say(self, text: str) -> None:
        """A sentence for the user."""


@dataclass(frozen=True)
class Outcome:
    """How a study ended."""

    runs: tuple[RunProgress, ...]
    signal: int | None = None
    """The signal that stopped it."""

    @property
    def failed(self) -> tuple[RunProgress, ...]:
        """The runs that failed."""
        return tuple(run for run in self.runs if run.state == "failed")

    @property
    def finished(self) -> bool:
        """Whether every run is."""
        return all(run.state == "finished" for run in self.runs)


def run_study(
    planned: Sequence[Planned],
    folder: Path,
    backend: Backend,
    display: Display,
    trusted: Collection[str] = (),
) -> Outcome:
    """Train every planned run to its end, in `folder`.

    Raises:
        UsageError: Another study works in the folder.
        RunError: The folder cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder))
        stack.callback(backend.close)
        request = stack.enter_context(stop_requests(display.say))
        loop = _Loop(planned, folder, backend, display, trusted, request)
        return loop.run()


class _Loop:
    """One call of `run_study`."""

    def __init__(
        self,
        planned: Sequence[Planned],
        folder: Path,
        backend: Backend,
        display: Display,
        trusted: Collection[str],
        request: StopRequest,
    ) -> None:
        self.planned = {one.path: one for one in planned}
        self.folder = folder
        self.backend = backend
        self.display = display
        self.trusted = trusted
        self.request = request
        self.others = _noted(folder)
        """Runs that other studies have had in this folder."""
        self.running: set[Path] = set()
        self.failures: dict[Path, str] = {}
        self.waiting = [
            one
            for one in planned
            if examine(one.path, one.spec.total_steps).state != "finished"
        ]

    def run(self) -> Outcome:
        """Until nothing waits and nothing runs, or someone asks to stop."""
        self._note()
        while (self.waiting or self.running) and not self.request:
            while self.waiting and len(self.running) < self.backend.slots:
                self._start(self.waiting.pop(0))
            self._collect()
            self.display.show(self.progress(), self.backend.slots)
            time.sleep(POLL)
        if self.request:
            self._stop()
        self._note()
        runs = self.progress()
        self.display.show(runs, self.backend.slots)
        return Outcome(tuple(runs), self.request.signal)

    def progress(self) -> list[RunProgress]:
        """Every run as it is now."""
        return [
            self._failed(examine(path, one.spec.total_steps, path in self.running))
            for path, one in self.planned.items()
        ]

    def _start(self, one: Planned) -> None:
        try:
            prepare(one)
            task = str(one.spec.config["env"]["id"])
            self.backend.start(one.path, task if task in self.trusted else None)
        except (PombuError, OSError) as error:
            note_failure(one.path, str(error))
            self._fail(one.path, str(error))
            return
        self.running.add(one.path)
        self._note()

    def _collect(self) -> None:
        for path, end_state in self.backend.poll().items():
            self.running.discard(path)
            if end_state == "failed":
                self._fail(path, read_failure(path))
            self._note()

    def _fail(self, path: Path, reason: str) -> None:
        self.failures[path] = reason
        self.display.say(f"{path.name} failed: {reason}")

    def _failed(self, run: RunProgress) -> RunProgress:
        """A failure is known even where a full disk keeps no note of it."""
        reason = self.failures.get(self.folder / run.name)
        if reason is None or run.state == "finished":
            return run
        return dataclasses.replace(run, state="failed", failure=reason)

    def _stop(self) -> None:
        self.backend.stop()
        end = time.monotonic() + PATIENCE
        while self.running and time.monotonic() < end:
            self._collect()
            self.display.show(self.progress(), self.backend.slots)
            time.sleep(POLL)

    def _note(self) -> None:
        """Leave for `pombu study status` what the run folders cannot tell."""
        content = {
            "backend": self.backend.name,
            "slots": self.backend.slots,
            "running": sorted(path.name for path in self.running),
            "runs": {
                **self.others,
                **{p.name: one.spec.total_steps for p, one in self.planned.items()},
            },
        }
        # A full disk must not stop the runs that can still write.
        with contextlib.suppress(RunError):
            write_json(self.folder / STATUS, content)


def status(folder: Path) -> tuple[list[RunProgress], int]:
    """The runs of a study that was started in `folder`, and how many go side by side.

    Raises:
        UsageError: No study was started there.
    """
    try:
        content: Mapping[str, Any] = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError):
        raise UsageError(
            f"no study was started in {folder} (it has no {STATUS}): start one with "
            "`pombu study FILE`."
        ) from None
    running = set(content["running"]) if _is_locked(folder) else set()
    runs = [
        examine(folder / name, steps, name in running)
        for name, steps in content["runs"].items()
    ]
    return runs, int(content["slots"])


def _noted(folder: Path) -> dict[str, int]:
    """The steps of runs that a study has left in a folder, as far as it says."""
    try:
        runs = json.loads((folder / STATUS).read_bytes())["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {name: steps for name, steps in runs.items() if (folder / name).is_dir()}


def prepare(one: Planned) -> None:
    """Create the run folder, or extend it, with the steps that are asked for."""
    if not (one.path / CONFIG).exists():
        create(one.path, one.spec)
        return
    run = open_run(one.path)
    (one.path / FAILURE).unlink(missing_ok=True)
    if run.spec.total_steps != one.spec.total_steps:
        with run.locked():
            run.extend(one.spec.total_steps)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second study out of the folder; the lock dies with this process."""
    if (folder / CONFIG).exists():
        raise UsageError(
            f"{folder} is the folder of a run, and a study has one for each of its "
            "runs: choose another --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a", opener=not_through_links)  # noqa: SIM115
    except OSError as error:
        raise RunError(
            f"could not write into {folder} ({error.strerror}): choose another --out."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another study is at work in {folder}: wait for it, or choose another "
                "--out."
            ) from None
        yield


def _is_locked(folder: Path) -> bool:
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
