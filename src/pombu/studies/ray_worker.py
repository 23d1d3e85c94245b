"""One run inside a Ray task.

The run folder arrives in a parcel, lives in a scratch folder of the worker's machine
and goes back, change by change, after every iteration. What the study already has is
therefore never lost with a worker.
"""

import os
import queue
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pombu.data.episodes import EPISODES
from pombu.studies.cores import THREADS, claimed
from pombu.studies.parcels import Parcel, Stamps, pack, unpack
from pombu.studies.worker import LOG, note_failure, put_into_words, train
from pombu.training.callbacks import Callback, Progress
from pombu.training.checkpoint import CHECKPOINTS


@dataclass(frozen=True)
class Report:
    """What a worker sends back."""

    parcel: Parcel
    pid: int
    ending: Literal["finished", "failed"] | None = None
    """How the run ended; None while it goes on."""


def train_remotely(
    name: str, parcel: Parcel, cores: int, gpus: float, trusted: str | None
) -> Iterator[Report]:
    """Go on with the run in the parcel; yields a report after every iteration."""
    if 0 < gpus < 1:
        # Otherwise the first of those who share a GPU would take most of its memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.2f}")
    for variable in THREADS:
        os.environ[variable] = str(cores)
    with tempfile.TemporaryDirectory(prefix="pombu-") as scratch, claimed(cores):
        folder = Path(scratch) / name
        folder.mkdir()
        unpack(parcel, folder)
        for inner in (CHECKPOINTS, EPISODES):
            # Empty folders are not sent.
            (folder / inner).mkdir(exist_ok=True)
        yield Report(Parcel(), os.getpid())
        sender = _Sender(folder)
        # The run has a thread of its own, because only this one can yield.
        threading.Thread(target=sender.train, args=(trusted,), daemon=True).start()
        while True:
            report = sender.reports.get()
            yield report
            if report.ending:
                return


class _Sender(Callback):
    """Packs the folder after every iteration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: queue.Queue[Report] = queue.Queue()
        self._known: Stamps = pack(folder, {})[1]

    def train(self, trusted: str | None) -> None:
        """Train to the end, and say how it was."""
        ending: Literal["finished", "failed"] = "finished"
        try:
            with (self.folder / LOG).open("a", buffering=1) as log:
                train(self.folder, log, trusted, [self])
        except Exception as error:
            ending = "failed"
            note_failure(self.folder, put_into_words(error))
        self._send(ending)

    def on_iteration(self, progress: Progress) -> None:
        """Send what the iteration has changed; it is saved by now."""
        self._send(None)

    def _send(self, ending: Literal["finished", "failed"] | None) -> None:
        parcel, self._known = pack(self.folder, self._known)
        self.reports.put(Report(parcel, os.getpid(), ending))
