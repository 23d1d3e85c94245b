"""Pinning a run to cores of its own.

JAX and its neighbours size their thread pools by a process's CPU affinity, so several
runs on one machine must each keep to their own cores.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that libraries read their number of threads from."""


def available() -> list[int]:
    """The cores that this process may use; empty where the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return []


@contextlib.contextmanager
def claimed(number: int) -> Iterator[tuple[int, ...]]:
    """Pin this process to cores that no other run of this user's has claimed.

    A claim is a lock on a small file and dies with its process. Where too few cores are
    free, some are shared: slower, and the numbers stay the same.
    """
    every = available()
    if not every:
        yield ()
        return
    with contextlib.ExitStack() as claims:
        free: list[int] = []
        for core in every:
            if len(free) < number and _claim(claims, core):
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


def _claim(claims: contextlib.ExitStack, core: int) -> bool:
    """Lock a core's file, if no one has."""
    folder = Path(tempfile.gettempdir()) / f"pombu-cores-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        file = claims.enter_context((folder / str(core)).open("w"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
