"""Backends of a study: their protocol, this machine as one, and the options of all."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pombu.errors import UsageError
from pombu.files import require_no_links
from pombu.parallel import usable_cores
from pombu.studies.worker import FAILURE, INTERRUPTED, LOG, THREADS, note_failure

EndState = Literal["finished", "interrupted", "failed"]


@runtime_checkable
class Backend(Protocol):
    """Where runs happen. A run is the folder that describes it."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def slots(self) -> int:
        """How many runs fit side by side."""

    def start(self, path: Path, trusted: str | None) -> None:
        """Go on with the run in this folder, from its last checkpoint if it has one."""

    def poll(self) -> Mapping[Path, EndState]:
        """The runs that have ended since the last call."""

    def stop(self, paths: Collection[Path] | None = None) -> None:
        """Ask these runs to save themselves and stop; None is every run."""

    def close(self) -> None:
        """End everything that is still there."""


class LocalBackend:
    """One process per run on this machine, each pinned to cores of its own."""

    name = "local"

    def __init__(self, workers: int | None = None, cores_per_run: int = 1) -> None:
        """Run `workers` side by side; None is as many as the cores allow."""
        have = usable_cores()
        if cores_per_run < 1 or (workers is not None and workers < 1):
            raise UsageError(
                f"workers is {workers} and cores-per-run is {cores_per_run}: give at "
                "least 1 of each."
            )
        if cores_per_run > have:
            raise UsageError(
                f"cores-per-run is {cores_per_run}, and this machine offers {have}: "
                "give fewer."
            )
        self.slots = workers or have // cores_per_run
        self._cores = cores_per_run
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, path: Path, trusted: str | None) -> None:
        """Start a process; what it says is added to the folder's log."""
        command = [sys.executable, "-m", "pombu.studies.worker", str(path)]
        command += [str(self._cores), *([trusted] if trusted else [])]
        threads = {name: str(self._cores) for name in THREADS}
        require_no_links(path)
        with (path / LOG).open("ab") as log:
            self._running[path] = subprocess.Popen(
                command,
                # Its end tells the worker that this process is gone.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **threads},
                # Ctrl-C is for the study, which passes it on.
                start_new_session=True,
            )

    def poll(self) -> Mapping[Path, EndState]:
        """Collect the processes that have exited."""
        ended: dict[Path, EndState] = {}
        for path, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[path]
            _let_go(process)
            ended[path] = _end_state(path, code)
        return ended

    def stop(self, paths: Collection[Path] | None = None) -> None:
        """Send SIGTERM, on which a run saves itself."""
        for path, process in self._running.items():
            if paths is None or path in paths:
                process.terminate()

    def close(self) -> None:
        """Kill what has not stopped."""
        for process in self._running.values():
            process.kill()
            process.wait()
            _let_go(process)
        self._running.clear()


def _end_state(path: Path, code: int) -> EndState:
    if code in (INTERRUPTED, -signal.SIGTERM):
        return "interrupted"
    if code and not (path / FAILURE).exists():
        note_failure(path, _unspoken(path, code))
    return "failed" if code else "finished"


def _unspoken(path: Path, code: int) -> str:
    """What to say about a process that could not say it itself."""
    if code < 0:
        name = signal.Signals(-code).name
        memory = " (perhaps for want of memory)" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}; {path / LOG} has its words."
    return f"its process ended with exit code {code}; {path / LOG} has its words."


def _let_go(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


@dataclass(frozen=True)
class BackendOptions:
    """Options that `pombu study` and `pombu reproduce` share."""

    backend: Literal["local", "ray"] = "local"
    """local: processes on this machine, pinned to cores. ray: a Ray cluster."""
    workers: int | None = None
    """Runs side by side; None is as many as the cores allow."""
    cores_per_run: int = 1
    """Cores that each run has for itself."""
    gpus_per_run: float = 0.0
    """GPUs, or a share of one, for each run on Ray."""
    address: str | None = None
    """An existing Ray cluster, such as 10.0.0.1:6379 or auto; None starts one here."""
    retries: int = 3
    """How often a run is taken up again whose Ray worker has died."""

    def open(self) -> Backend:
        """The backend, ready to start runs.

        Raises:
            UsageError: The options do not fit together or this machine.
            RunError: The cluster cannot be reached.
        """
        for name, least in (("workers", 1), ("cores_per_run", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}: it must be at least {least}.")
        if self.gpus_per_run < 0:
            raise UsageError(
                f"--gpus-per-run is {self.gpus_per_run:g}: it must be 0 or more."
            )
        if self.backend == "ray":
            from pombu.studies.ray_backend import RayBackend

            return RayBackend(self)
        if self.address is not None or self.gpus_per_run:
            raise UsageError(
                "--address and --gpus-per-run are for Ray: add --backend ray, or leave "
                "them out."
            )
        return LocalBackend(self.workers, self.cores_per_run)
