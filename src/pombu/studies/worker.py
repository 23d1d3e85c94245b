"""One run of a study, in a process of its own that is pinned to cores of its own.

`python -m pombu.studies.worker FOLDER CORES [ENVIRONMENT]` goes on with the run in the
folder, pinned to that many cores: JAX and its neighbours size their thread pools by a
process's CPU affinity. Why a run failed, if it does, is left in the folder.
"""

import contextlib
import fcntl
import os
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from pombu.errors import PombuError
from pombu.files import not_through_links
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
    """Train in this process; gives its exit code."""
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
