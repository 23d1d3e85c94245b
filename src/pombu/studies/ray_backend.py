"""A Ray cluster as the backend of a study: driver, worker, and the folders between.

Machines of a cluster may share no disk. The run folder arrives with the task, lives in
a scratch folder of the worker's machine and goes back, change by change, after every
iteration. What the study already has is therefore never lost with a worker. Changes are
files and the names of those that went away; nothing in them is code.
"""

import contextlib
import importlib
import importlib.util
import inspect
import logging
import os
import queue
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from pombu.data.episodes import EPISODES
from pombu.errors import RunError, UsageError
from pombu.files import write_atomic
from pombu.parallel import usable_cores
from pombu.studies.backends import (
    LOG,
    THREADS,
    BackendOptions,
    EndState,
    claimed_cores,
    failure_sentence,
    note_failure,
    train,
)
from pombu.training.callbacks import Callback, Progress
from pombu.training.checkpoint import CHECKPOINTS
from pombu.training.run import LOCK

Stamps = dict[str, tuple[int, int]]
"""Time of change and size of every file of a folder, by its relative path."""

LOOPBACK = "127.0.0.1"
REMOVE = 'rm -rf "$1"'
"""What to do with the copy of a run whose worker was killed."""
END = (
    # A number may be another process's by now.
    'for one in "$@"; do grep -q ray "/proc/$one/cmdline" && kill -9 "$one"; done '
    "2>/dev/null; "
    'echo "pombu: the study ended without a word, because its process was killed or '
    "Ray gave up (as when its dashboard agent dies): every finished iteration is kept, "
    'and the same command goes on from there." >&2'
)
"""What to do with Ray's processes on this machine when the study's was killed."""
CONNECT_SECONDS = 10.0
JOIN_SECONDS = 60.0


@dataclass(frozen=True)
class FolderChanges:
    """Changes of a run folder, by paths relative to it."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerReport:
    """What a worker sends back."""

    changes: FolderChanges
    pid: int
    end_state: Literal["finished", "failed"] | None = None
    """How the run ended; None while it goes on."""


class RayBackend:
    """Runs as Ray tasks; a run whose worker dies is taken up by another."""

    name = "ray"

    def __init__(self, options: BackendOptions) -> None:
        """Join a cluster, or start one on this machine.

        Raises:
            UsageError: Ray is not installed, or no machine has the resources.
            RunError: No cluster answers.
        """
        self._ray = _import_ray(options)
        self._cores = options.cores_per_run
        self._gpus = options.gpus_per_run
        self._workers = options.workers
        self._retries = options.retries
        self._lost: Counter[Path] = Counter()
        self._stopped: set[Path] = set()
        self._running: dict[Path, Any] = {}
        self.pids: dict[Path, int] = {}
        """The worker process of each run that goes on."""
        before = set(descendants(os.getpid()))
        self._connect(options)
        own = () if options.address else set(descendants(os.getpid())) - before
        self._node = [pid for pid in own if "raylet/raylet" in command_of(pid)]
        self._guard = contextlib.ExitStack()
        self._guard.enter_context(after_this_process(END, *map(str, own)))
        self._require_resources()
        make = self._ray.remote(
            num_cpus=options.cores_per_run,
            num_gpus=options.gpus_per_run,
            num_returns="streaming",
            max_retries=0,
            # A process per run, as on one machine: threads are counted at its start.
            max_calls=1,
        )
        # Ray wants the generator itself, not a wrapper that checks its types.
        self._task = make(inspect.unwrap(train_remotely))

        self.slots = self._count_slots()

    def start(self, path: Path, trusted: str | None) -> None:
        """Send the run folder to a worker."""
        self._stopped.discard(path)
        changes, _ = read_changes(path, {})
        self._running[path] = (
            self._task.remote(path.name, changes, self._cores, self._gpus, trusted),
            trusted,
        )

    def poll(self) -> Mapping[Path, EndState]:
        """Take in what the workers have sent, and see how large the cluster is.

        Raises:
            RunError: Ray's node on this machine, started by this process, has ended.
        """
        # Ray itself would wait, or end this process without a word.
        if not all(map(command_of, self._node)):
            raise RunError(
                "Ray's node on this machine has ended, as when its dashboard agent is "
                "killed or memory is short: every finished iteration is kept, and the "
                "same command goes on from there."
            )
        self.slots = self._count_slots()
        ended: dict[Path, EndState] = {}
        for path, (reports, trusted) in list(self._running.items()):
            try:
                end_state = self._take(path, reports)
            except self._ray.exceptions.RayTaskError as error:
                note_failure(path, failure_sentence(getattr(error, "cause", error)))
                end_state = "failed"
            except self._ray.exceptions.RayError as error:
                end_state = self._lose(path, trusted, error)
            except (OSError, RunError) as error:  # the disk is full
                self._ray.cancel(reports, force=True)
                note_failure(path, failure_sentence(error))
                end_state = "failed"
            if end_state:
                del self._running[path]
                ended[path] = end_state
        return ended

    def stop(self, paths: Collection[Path] | None = None) -> None:
        """Cancel the tasks: every finished iteration is here already."""
        for path, (reports, _) in self._running.items():
            if paths is None or path in paths:
                self._stopped.add(path)
                self._ray.cancel(reports, force=True)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._running.clear()
        self._ray.shutdown()
        self._guard.close()

    def _take(self, path: Path, reports: Any) -> EndState | None:
        while self._ray.wait([reports], timeout=0)[0]:
            report: WorkerReport = self._ray.get(next(reports))
            self.pids[path] = report.pid
            apply_changes(report.changes, path)
            if report.end_state:
                return report.end_state
        return None

    def _lose(
        self, path: Path, trusted: str | None, error: Exception
    ) -> EndState | None:
        """A worker died: have the run go on elsewhere, unless that is hopeless."""
        if path in self._stopped:
            return "interrupted"
        self._lost[path] += 1
        if self._lost[path] > self._retries:
            kind = type(error).__name__
            note_failure(path, f"its Ray worker died {self._lost[path]} times ({kind})")
            return "failed"
        self.start(path, trusted)
        return None

    def _connect(self, options: BackendOptions) -> None:
        arguments: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        }
        if options.address is None:
            number = (options.workers or 0) * options.cores_per_run or usable_cores()
            arguments |= {"num_cpus": number, "include_dashboard": False}
            # A cluster of this machine's own is nobody else's to reach.
            arguments["_node_ip_address"] = LOOPBACK
        try:
            self._ray.init(address=options.address or "local", **arguments)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise RunError(
                "no Ray cluster could be joined at "
                f"{options.address or 'this machine'} "
                f"({type(error).__name__}: {reason}): check the address and the token."
            ) from None

    def _count_slots(self) -> int:
        """As many runs as the cluster allows now, or as were asked for."""
        resources = self._ray.cluster_resources()
        have = int(resources.get("CPU", 0)) // self._cores
        if self._gpus:
            have = min(have, int(resources.get("GPU", 0) / self._gpus))
        return max(min(have, self._workers or have), 1)

    def _require_resources(self) -> None:
        gpus = self._gpus
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(
            node.get("CPU", 0) >= self._cores and node.get("GPU", 0) >= gpus
            for node in nodes
        ):
            self.close()
            raise UsageError(
                f"no machine of the cluster has {self._cores} cores and {gpus:g} GPUs "
                "for one run: ask for less."
            )


def _import_ray(options: BackendOptions) -> Any:
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "--backend ray needs Ray: install it with pip install 'pombu[ray]'."
        )
    if options.address is not None:
        _require_listener(options.address)
        _require_cluster(options.address)
    elif "ray" not in sys.modules:
        # Without a token anyone who reaches the ports could run code here. Ray looks
        # at this when it is imported; newer versions have it on by themselves.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if os.environ["RAY_AUTH_MODE"] == "token" and not (
            os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
        ):
            # Otherwise Ray leaves one in ~/.ray that everyone can read.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return importlib.import_module("ray")


def _require_listener(address: str) -> None:
    """Find out in seconds that no one listens, for which Ray takes a minute."""
    if address in ("auto", "local"):
        return
    if address.startswith("ray://"):
        raise UsageError(
            f"{address!r} is the address of Ray Client, which cannot stream results: "
            "run this on a machine of the cluster with --address auto, or give "
            "host:port of its head."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"{address!r} is no address of a Ray cluster: give host:port, such as "
            "10.0.0.1:6379, or auto for the one on this machine."
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        _refuse(address, str(error))


def _require_cluster(address: str) -> None:
    """Find out in a process of its own whether Ray joins: it waits without end, and
    noisily, for something that listens and is no cluster."""
    joining = f"import ray; ray.init({address!r}, logging_level='ERROR')"
    try:
        done = subprocess.run(
            [sys.executable, "-c", joining],
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _refuse(address, f"what listens there gave no answer in {JOIN_SECONDS:g} s")
    if done.returncode:
        *_, last = ["Ray gave up", *done.stderr.split("\n")[:-1]]
        _refuse(address, last[:300])


def _refuse(address: str, reason: str) -> NoReturn:
    raise RunError(
        f"no Ray cluster answers at {address} ({reason}): check the address and the "
        "token, or leave --address out to start one here."
    ) from None


def train_remotely(
    name: str, changes: FolderChanges, cores: int, gpus: float, trusted: str | None
) -> Iterator[WorkerReport]:
    """Go on with a run that was sent here; yields a report after every iteration."""
    if 0 < gpus < 1:
        # Otherwise the first of those who share a GPU would take most of its memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.2f}")
    for variable in THREADS:
        os.environ[variable] = str(cores)
    with (
        tempfile.TemporaryDirectory(prefix="pombu-") as scratch,
        after_this_process(REMOVE, scratch),
        claimed_cores(cores),
    ):
        folder = Path(scratch) / name
        folder.mkdir()
        apply_changes(changes, folder)
        for inner in (CHECKPOINTS, EPISODES):
            # Empty folders are not sent.
            (folder / inner).mkdir(exist_ok=True)
        yield WorkerReport(FolderChanges(), os.getpid())
        sender = _Sender(folder)
        # The run has a thread of its own, because only this one can yield.
        threading.Thread(target=sender.train, args=(trusted,), daemon=True).start()
        while True:
            report = sender.reports.get()
            yield report
            if report.end_state:
                return


@contextlib.contextmanager
def after_this_process(script: str, *arguments: str) -> Iterator[None]:
    """Have a shell script run if this process dies inside, however that happens.

    The shell waits at a pipe whose other end dies with this process. It is nobody's
    child, so that Ray, which kills the children of its workers, lets it be.
    """
    waiting = f'exec 3<&0; (read word <&3; [ -n "$word" ] || {{ {script}; }}) &'
    shell = subprocess.Popen(
        ["/bin/sh", "-c", waiting, "sh", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    shell.wait()
    assert shell.stdin is not None
    try:
        yield
    finally:
        with contextlib.suppress(OSError), shell.stdin as pipe:
            pipe.write(b"done\n")


def command_of(pid: int) -> str:
    """A process's command line; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def descendants(ancestor: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            # The name, which may hold anything, is in brackets.
            fields = entry.read_text().rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
    found, front = [], [ancestor]
    while front:
        front = [child for child, parent in parents.items() if parent in front]
        found += front
    return found


class _Sender(Callback):
    """Sends what changed in the folder after every iteration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: queue.Queue[WorkerReport] = queue.Queue()
        self._known: Stamps = read_changes(folder, {})[1]

    def train(self, trusted: str | None) -> None:
        """Train to the end, and say how it was."""
        end_state: Literal["finished", "failed"] = "finished"
        try:
            with (self.folder / LOG).open("a", buffering=1) as log:
                train(self.folder, log, trusted, [self])
        except Exception as error:
            end_state = "failed"
            note_failure(self.folder, failure_sentence(error))
        self._send(end_state)

    def on_iteration(self, progress: Progress) -> None:
        """Send what the iteration has changed; it is saved by now."""
        self._send(None)

    def _send(self, end_state: Literal["finished", "failed"] | None) -> None:
        changes, self._known = read_changes(self.folder, self._known)
        self.reports.put(WorkerReport(changes, os.getpid(), end_state))


def read_changes(folder: Path, known: Stamps) -> tuple[FolderChanges, Stamps]:
    """What changed in a folder since it looked like `known`, and how it looks now."""
    stamps = _stamps(folder)
    changed = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    files = {name: (folder / name).read_bytes() for name in changed}
    gone = tuple(name for name in known if name not in stamps)
    return FolderChanges(files, gone), stamps


def apply_changes(changes: FolderChanges, folder: Path) -> None:
    """Apply changes; a crash midway leaves no half of a checkpoint.

    A new checkpoint appears with all of its files at once.
    """
    new = sorted(
        {
            path.parent
            for name in changes.files
            if (path := _inside(folder, name)).parent.parent.name == CHECKPOINTS
            and not path.parent.exists()
        }
    )
    for name, content in changes.files.items():
        path = _inside(folder, name)
        if path.parent in new:
            path = _aside(path.parent) / path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    for checkpoint in new:
        _aside(checkpoint).rename(checkpoint)
    for name in changes.gone:
        path = _inside(folder, name)
        path.unlink(missing_ok=True)
        if path.parent != folder and not any(path.parent.iterdir()):
            path.parent.rmdir()


def _aside(checkpoint: Path) -> Path:
    """Where a checkpoint is put together; what a crash leaves there is cleaned up."""
    return checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}.tmp")


def _stamps(folder: Path) -> Stamps:
    found: Stamps = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if name == LOCK or name.endswith(".tmp"):
                continue
            status = path.stat()
            relative = path.relative_to(folder).as_posix()
            found[relative] = (status.st_mtime_ns, status.st_size)
    return found


def _inside(folder: Path, name: str) -> Path:
    """The file of that name, which must not lead out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name} leads out of {folder}")
    return path
