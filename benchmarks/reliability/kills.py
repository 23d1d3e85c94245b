"""Kills: before every file operation of a toy run, and at random in every algorithm.

A run that was killed and resumed must end like one that was not: the same metrics, the
same states, the same episodes, the same evaluation, and nothing left lying about.
"""

import builtins
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability import toy
from benchmarks.reliability.trial import Count, command, files_of
from pombu.algorithms import registry
from pombu.envs import load
from pombu.training import checkpoint
from pombu.training.metrics import deterministic, read_rows

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CALLS = ("fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate")
LONGEST = 600.0


class Tracer:
    """Counts file operations, and kills this process before the n-th one."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.done = 0

    def operation(self, halfway: Callable[[], Any] | None = None) -> None:
        """One operation is about to happen; its first half may be done already."""
        self.done += 1
        if self.done == self.kill_at:
            if halfway is not None:
                halfway()
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Watch this process from now on."""
        for name in CALLS:
            setattr(os, name, self._watched(getattr(os, name), sync=name == "fsync"))
        os.remove = os.unlink
        real_open, real_os_open = io.open, os.open

        def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real_open(file, mode, *rest, **named)
            self.operation()
            return Watched(real_open(file, mode, *rest, **named), self)

        def os_opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & WRITES:
                self.operation()
            return real_os_open(path, flags, *rest, **named)

        io.open = builtins.open = opened
        os.open = os_opened

    def _watched(self, real: Any, sync: bool) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.operation()
            # A kill leaves what the system has; only a power cut needs the disk.
            return None if sync else real(*arguments, **named)

        return call


class Watched:
    """A file whose writes are operations: before them, and when half is written."""

    def __init__(self, file: Any, tracer: Tracer) -> None:
        self._file, self._tracer = file, tracer

    def write(self, data: Any) -> int:
        """Write in two halves."""

        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._tracer.operation()
        self._tracer.operation(half)
        written: int = self._file.write(data)
        self._file.flush()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def forked(work: Callable[[], Any], kill_after: float | None = None) -> int | None:
    """Do something in a child; gives its exit code, negative for a signal.

    None is one that did not end in time.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work() or 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    limit = time.monotonic() + LONGEST
    kill = time.monotonic() + (LONGEST if kill_after is None else kill_after)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > min(limit, kill):
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            return code if kill_after is not None else None
        time.sleep(0.001 if kill_after is None else 0.02)


def contents(folder: Path) -> dict[str, Any]:
    """What must be the same in two runs."""
    found: dict[str, Any] = {}
    for path in files_of(folder):
        name = path.relative_to(folder).as_posix()
        if name in ("lock", "versions.json") or name.startswith("tensorboard"):
            continue
        if path.name == "metrics.csv":
            _, rows = read_rows(path)
            found[name] = [deterministic(row) for row in rows]
        elif path.name == "manifest.json":
            manifest = checkpoint.read_manifest(path.parent)
            found[name] = (manifest.iteration, manifest.score, manifest.shards)
        else:
            found[name] = path.read_bytes()
    return found


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Names of what differs; empty where nothing does."""
    names = {*expected, *found}
    return ", ".join(
        sorted(name for name in names if expected.get(name) != found.get(name))
    )


def at_every_operation(share: float) -> Count:
    """Kill a toy run before each of its file operations, and resume it.

    Every third is killed again while it resumes. The share is of the operations.
    """
    count = Count("kills before a file operation")
    task, chosen = load("Point2D"), random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        for every in (1, 2, 3):
            whole = Path(scratch) / f"whole-{every}"
            operations = _operations(whole, task, every)
            expected = contents(whole)
            for number in range(1, operations + 1):
                if chosen.random() >= share:
                    continue
                again = chosen.randint(1, operations) if number % 3 == 0 else 0
                folder = Path(scratch) / "run"
                _kill_and_resume(count, folder, task, every, (number, again), expected)
                shutil.rmtree(folder, ignore_errors=True)
    return count


def _operations(folder: Path, task: Any, every: int) -> int:
    """How many file operations an uninterrupted run has."""
    told = folder.with_suffix(".count")

    def work() -> None:
        tracer = Tracer(0)
        tracer.install()
        toy.train(folder, task, every)
        told.write_text(str(tracer.done))

    if forked(work) != 0:
        raise RuntimeError("the uninterrupted run failed")
    return int(told.read_text())


def _kill_and_resume(
    count: Count,
    folder: Path,
    task: Any,
    every: int,
    kills: tuple[int, int],
    expected: dict[str, Any],
) -> None:
    def work(kill_at: int) -> None:
        Tracer(kill_at).install()
        toy.train(folder, task, every)

    what = f"checkpoints every {every}, killed before operation {kills}"
    done = 0
    for kill_at in kills:
        # A second one may come too late, after all that was left to do.
        done += bool(kill_at) and forked(lambda at=kill_at: work(at)) == -signal.SIGKILL
    code, odd = forked(lambda: toy.train(folder, task, every)), ""
    kind = "hung" if code is None else "unexpected" if code else "same"
    if code == 0:
        odd = difference(expected, contents(folder))
        kind = "silent" if odd else kind
    count.add(kind, f"{what}: exit code {code}; {odd} differ", done)


def at_random(share: float) -> Count:
    """Kill the smoke run of every algorithm at random moments, and resume it."""
    count = Count("kills at random moments of every algorithm")
    moments = random.Random(1)
    names = list(registry.ALGORITHMS)
    kills = max(round(2 * share), 1)
    for name in names[: max(round(len(names) * min(10 * share, 1)), 1)]:
        with tempfile.TemporaryDirectory() as scratch:
            whole, folder = Path(scratch) / "whole", Path(scratch) / "run"
            begin = time.monotonic()
            code = forked(lambda name=name, whole=whole: _train(name, whole))
            seconds = time.monotonic() - begin
            if code != 0:
                count.add("unexpected", f"{name} did not train: {code}")
                continue
            expected = contents(whole)
            hits = tries = 0
            while hits < kills and tries < 4 * kills:
                tries += 1
                begin, after = time.monotonic(), moments.uniform(0.3, 0.9) * seconds
                code = forked(lambda name=name, run=folder: _train(name, run), after)
                hits += code == -signal.SIGKILL
                if code == 0 and hits:
                    break  # the rest went by before the next kill
                if code == 0:
                    # Its programs are compiled by now, so it was faster than expected.
                    seconds = time.monotonic() - begin
                    shutil.rmtree(folder)
            code = forked(lambda name=name, run=folder: _train(name, run))
            kind = "hung" if code is None else "unexpected" if code else "same"
            odd = "" if code != 0 else difference(expected, contents(folder))
            kind = "silent" if odd else kind
            count.add(kind, f"{name}: exit code {code}; {odd} differ", hits)
    return count


def _train(name: str, folder: Path) -> int:
    """Train by the command line, or go on."""
    if folder.exists():
        answer = command(["resume", str(folder)], LONGEST)
    else:
        flags = ["--env", "Point2D", "--horizon", "10", "--preset", "smoke"]
        flags += ["--algo", name, "--total-steps", "60", "--out", str(folder)]
        answer = command(["train", *flags], LONGEST)
    if answer.kind or answer.code:
        print(name, answer.said, file=sys.stderr, flush=True)
    return answer.code or (1 if answer.kind else 0)
