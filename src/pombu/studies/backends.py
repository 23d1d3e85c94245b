"""What a study asks of the place where its runs happen, and this machine as one."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pombu.cores import usable_cores
from pombu.errors import UsageError
from pombu.studies import cores
from pombu.studies.worker import FAILURE, INTERRUPTED, LOG, note_failure

Ending = Literal["finished", "interrupted", "failed"]


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

    def poll(self) -> Mapping[Path, Ending]:
        """The runs that have ended since the last call."""

    def stop(self) -> None:
        """Ask every run to save itself and stop."""

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
        threads = {name: str(self._cores) for name in cores.THREADS}
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

    def poll(self) -> Mapping[Path, Ending]:
        """Collect the processes that have exited."""
        ended: dict[Path, Ending] = {}
        for path, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[path]
            _let_go(process)
            ended[path] = _ending(path, code)
        return ended

    def stop(self) -> None:
        """Send SIGTERM, on which a run saves itself."""
        for process in self._running.values():
            process.terminate()

    def close(self) -> None:
        """Kill what has not stopped."""
        for process in self._running.values():
            process.kill()
            process.wait()
            _let_go(process)
        self._running.clear()


def _ending(path: Path, code: int) -> Ending:
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
