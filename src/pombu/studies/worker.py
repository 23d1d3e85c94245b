"""One run of a study, in a process of its own.

`python -m pombu.studies.worker FOLDER CORES [ENVIRONMENT]` goes on with the run in the
folder, pinned to that many cores. Why it failed, if it does, is left in the folder.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pombu.errors import PombuError
from pombu.studies.cores import THREADS, claimed
from pombu.training.callbacks import Callback

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


def put_into_words(error: BaseException) -> str:
    """Why a run failed, in one line."""
    if isinstance(error, PombuError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def note_failure(folder: Path, sentence: str) -> None:
    """Leave the reason in the run folder, if the disk has room for it."""
    with contextlib.suppress(OSError):
        (folder / FAILURE).write_text(sentence + "\n")


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
    threading.Thread(target=stop_with_parent, daemon=True).start()
    with claimed(int(number)):
        try:
            finished = train(Path(folder), sys.stdout, rest[0] if rest else None)
        except Exception as error:
            sentence = put_into_words(error)
            print(sentence, flush=True)
            note_failure(Path(folder), sentence)
            return 1
    return 0 if finished else INTERRUPTED


def stop_with_parent() -> None:
    """Save and stop when the study that started this process is gone."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
