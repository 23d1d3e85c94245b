"""Backends of a study: their protocol, this machine as one, and the options of all.

`LocalBackend` runs `python -m pombu.studies.backends FOLDER CORES [ENVIRONMENT]`, which
goes on with the run in the folder, pinned to that many cores: JAX and its neighbours
size their thread pools by a process's CPU affinity. Why a run failed, if it does, is
left in the folder.
"""

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TextIO, runtime_checkable

from pombu.errors import PombuError, UsageError
from pombu.files import not_through_links, require_no_links
from pombu.parallel import usable_cores
from pombu.training.callbacks import Callback

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that libraries read their number of threads from."""
FAILURE = "failure.txt"
LOG = "log.txt"
PATIENCE = 600.0
"""Seconds that a run has to save itself after a request to stop."""
POLL = 2.0
INTERRUPTED = 3
"""Exit code of a run that was asked to stop, and has saved itself."""

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
        command = [sys.executable, "-m", "pombu.studies.backends", str(path)]
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
            _close_input(process)
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
            _close_input(process)
        self._running.clear()


def _end_state(path: Path, code: int) -> EndState:
    if code in (INTERRUPTED, -signal.SIGTERM):
        return "interrupted"
    if code and not (path / FAILURE).exists():
        note_failure(path, _exit_reason(path, code))
    return "failed" if code else "finished"


def _exit_reason(path: Path, code: int) -> str:
    """What to say about a process that could not say it itself."""
    if code < 0:
        name = signal.Signals(-code).name
        memory = " (perhaps for want of memory)" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}; {path / LOG} has its words."
    return f"its process ended with exit code {code}; {path / LOG} has its words."


def _close_input(process: "subprocess.Popen[bytes]") -> None:
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


def train(
    folder: Path, log: TextIO, trusted: str | None, callbacks: Sequence[Callback] = ()
) -> bool:
    """Go on with a run; whether it is finished."""
    # JAX counts its threads by the affinity, so nothing of it before this process is
    # pinned.
    from rich.console import Console

    from pombu.agent.runs import algorithm_of
    from pombu.training.display import PlainLines
    from pombu.training.loop import learn
    from pombu.training.run import InUseError, open_run

    run = open_run(folder)
    algorithm = algorithm_of(run, trusted)
    lines = PlainLines(Console(file=log, width=200))
    end = time.monotonic() + PATIENCE
    while True:
        try:
            result = learn(
                algorithm, run.spec.seed, run.spec.total_steps, [lines, *callbacks], run
            )
        except InUseError as error:
            # A worker of a study that was killed still saves itself.
            if time.monotonic() > end:
                raise
            print(error, "Waiting for it.", file=log, flush=True)
            time.sleep(POLL)
        else:
            return result.finished


def failure_sentence(error: BaseException) -> str:
    """Why a run failed, in one line."""
    if isinstance(error, PombuError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def note_failure(folder: Path, sentence: str) -> None:
    """Leave the reason in the run folder, if the disk is not full."""
    with (
        contextlib.suppress(OSError),
        open(folder / FAILURE, "w", opener=not_through_links) as file,
    ):
        file.write(sentence + "\n")


def read_failure(folder: Path) -> str:
    """Why a run failed, as far as the folder says."""
    try:
        reason = (folder / FAILURE).read_text().strip()
    except OSError:
        reason = ""
    return reason or "the reason could not be written; is the disk full?"


def main(arguments: Sequence[str]) -> int:
    """Train in this process, which a study has started; gives its exit code."""
    folder, number, *rest = arguments
    for name in THREADS:
        os.environ[name] = number
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with claimed_cores(int(number)):
        try:
            finished = train(Path(folder), sys.stdout, rest[0] if rest else None)
        except Exception as error:
            sentence = failure_sentence(error)
            print(sentence, flush=True)
            note_failure(Path(folder), sentence)
            return 1
    return 0 if finished else INTERRUPTED


def _stop_with_parent() -> None:
    """Save and stop when the study that started this process is gone."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def available_cores() -> list[int]:
    """The cores that this process may use; empty where the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return []


@contextlib.contextmanager
def claimed_cores(number: int) -> Iterator[tuple[int, ...]]:
    """Pin this process to cores that no other run of this user's has claimed.

    A claim is a lock on a small file and dies with its process. Where too few cores are
    free, some are shared: slower, and the numbers stay the same, because they depend on
    how many cores there are and not on which.
    """
    every = available_cores()
    if not every:
        yield ()
        return
    with contextlib.ExitStack() as claims:
        free: list[int] = []
        for core in every:
            if len(free) < number and _claim_core(claims, core):
                free.append(core)
        taken = [core for core in every if core not in free]
        # Those who must share begin at different cores, so that none is crowded.
        turn = os.getpid() % max(len(taken), 1)
        mine = (free + taken[turn:] + taken[:turn])[:number]
        os.sched_setaffinity(0, mine)
        try:
            yield tuple(mine)
        finally:
            os.sched_setaffinity(0, every)


def _claim_core(claims: contextlib.ExitStack, core: int) -> bool:
    """Lock a core's file, if no one has and the folder of these files is ours."""
    folder = Path(tempfile.gettempdir()) / f"pombu-cores-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_own_folder(folder):
            return False
        file = claims.enter_context(
            open(folder / str(core), "w", opener=not_through_links)  # noqa: SIM115
        )
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_own_folder(folder: Path) -> bool:
    """Whether it is no link and nobody else's: anyone may write where it lies."""
    status = folder.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.getuid()
        and not status.st_mode & 0o022
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
