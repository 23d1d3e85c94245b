"""The study loop: start runs on a backend until all of a study are finished.

What exists is skipped, what was interrupted goes on, and what fails is named and stops
nothing else.
"""

import contextlib
import dataclasses
import fcntl
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pombu.analysis.curves import STUDY_FILES
from pombu.errors import PombuError, RunError, UsageError
from pombu.files import not_through_links
from pombu.studies.backends import Backend
from pombu.studies.jobs import Planned
from pombu.studies.progress import RunProgress, examine
from pombu.studies.worker import FAILURE, PATIENCE, note_failure, read_failure
from pombu.training.loop import StopRequest, stop_requests
from pombu.training.run import CONFIG, create, open_run, write_json

STATUS, LOCK = STUDY_FILES
POLL = 0.2


@runtime_checkable
class Watcher(Protocol):
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
    watcher: Watcher,
    trusted: Collection[str] = (),
) -> Outcome:
    """Train every planned run to its end, in `folder`.

    Raises:
        UsageError: Another study works in the folder.
        RunError: The folder cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_locked(folder))
        stack.callback(backend.close)
        request = stack.enter_context(stop_requests(watcher.say))
        loop = _Loop(planned, folder, backend, watcher, trusted, request)
        return loop.run()


class _Loop:
    """One call of `run_study`."""

    def __init__(
        self,
        planned: Sequence[Planned],
        folder: Path,
        backend: Backend,
        watcher: Watcher,
        trusted: Collection[str],
        request: StopRequest,
    ) -> None:
        self.planned = {one.path: one for one in planned}
        self.folder = folder
        self.backend = backend
        self.watcher = watcher
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
            self.watcher.show(self.progress(), self.backend.slots)
            time.sleep(POLL)
        if self.request:
            self._stop()
        self._note()
        runs = self.progress()
        self.watcher.show(runs, self.backend.slots)
        return Outcome(tuple(runs), self.request.signal)

    def progress(self) -> list[RunProgress]:
        """Every run as it is now."""
        return [
            self._failed(examine(path, one.spec.total_steps, path in self.running))
            for path, one in self.planned.items()
        ]

    def _start(self, one: Planned) -> None:
        try:
            _prepare(one)
            task = str(one.spec.config["env"]["id"])
            self.backend.start(one.path, task if task in self.trusted else None)
        except (PombuError, OSError) as error:
            note_failure(one.path, str(error))
            self._fail(one.path, str(error))
            return
        self.running.add(one.path)
        self._note()

    def _collect(self) -> None:
        for path, ending in self.backend.poll().items():
            self.running.discard(path)
            if ending == "failed":
                self._fail(path, read_failure(path))
            self._note()

    def _fail(self, path: Path, reason: str) -> None:
        self.failures[path] = reason
        self.watcher.say(f"{path.name} failed: {reason}")

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
            self.watcher.show(self.progress(), self.backend.slots)
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
        # A full disk must not stop the runs that still find room.
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


def _prepare(one: Planned) -> None:
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
def _locked(folder: Path) -> Iterator[None]:
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
