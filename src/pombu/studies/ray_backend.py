"""A Ray cluster as the place where a study's runs happen."""

import importlib
import importlib.util
import inspect
import logging
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pombu.cores import usable_cores
from pombu.errors import RunError, UsageError
from pombu.studies.backends import Ending
from pombu.studies.parcels import pack, unpack
from pombu.studies.ray_worker import Report, train_remotely
from pombu.studies.worker import note_failure, put_into_words

if TYPE_CHECKING:
    from pombu.studies.places import Place

CONNECT_SECONDS = 10.0
JOIN_SECONDS = 60.0


class RayBackend:
    """Runs as Ray tasks; a run whose worker dies is taken up by another."""

    name = "ray"

    def __init__(self, place: "Place") -> None:
        """Join a cluster, or start one on this machine.

        Raises:
            UsageError: Ray is not installed, or no machine has the resources.
            RunError: No cluster answers.
        """
        self._ray = _import_ray(place)
        self._cores = place.cores_per_run
        self._gpus = place.gpus_per_run
        self._workers = place.workers
        self._retries = place.retries
        self._lost: Counter[Path] = Counter()
        self._running: dict[Path, Any] = {}
        self.pids: dict[Path, int] = {}
        """The worker process of each run that goes on."""
        self._connect(place)
        self._require_room()
        make = self._ray.remote(
            num_cpus=place.cores_per_run,
            num_gpus=place.gpus_per_run,
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
        parcel, _ = pack(path, {})
        self._running[path] = (
            self._task.remote(path.name, parcel, self._cores, self._gpus, trusted),
            trusted,
        )

    def poll(self) -> Mapping[Path, Ending]:
        """Take in what the workers have sent, and see how large the cluster is."""
        self.slots = self._count_slots()
        ended: dict[Path, Ending] = {}
        for path, (reports, trusted) in list(self._running.items()):
            try:
                ending = self._take(path, reports)
            except self._ray.exceptions.RayTaskError as error:
                note_failure(path, put_into_words(getattr(error, "cause", error)))
                ending = "failed"
            except self._ray.exceptions.RayError as error:
                ending = self._lose(path, trusted, error)
            except (OSError, RunError) as error:  # no room here for what was sent
                self._ray.cancel(reports, force=True)
                note_failure(path, put_into_words(error))
                ending = "failed"
            if ending:
                del self._running[path]
                ended[path] = ending
        return ended

    def stop(self) -> None:
        """Cancel the tasks: every finished iteration is here already."""
        for reports, _ in self._running.values():
            self._ray.cancel(reports, force=True)
        self._retries = -1

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._running.clear()
        self._ray.shutdown()

    def _take(self, path: Path, reports: Any) -> Ending | None:
        while self._ray.wait([reports], timeout=0)[0]:
            report: Report = self._ray.get(next(reports))
            self.pids[path] = report.pid
            unpack(report.parcel, path)
            if report.ending:
                return report.ending
        return None

    def _lose(self, path: Path, trusted: str | None, error: Exception) -> Ending | None:
        """A worker died: have the run go on elsewhere, unless that is hopeless."""
        if self._retries < 0:
            return "interrupted"
        self._lost[path] += 1
        if self._lost[path] > self._retries:
            kind = type(error).__name__
            note_failure(path, f"its Ray worker died {self._lost[path]} times ({kind})")
            return "failed"
        self.start(path, trusted)
        return None

    def _connect(self, place: "Place") -> None:
        options: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        }
        if place.address is None:
            number = (place.workers or 0) * place.cores_per_run or usable_cores()
            options |= {"num_cpus": number, "include_dashboard": False}
        try:
            self._ray.init(address=place.address or "local", **options)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise RunError(
                f"no Ray cluster could be joined at {place.address or 'this machine'} "
                f"({type(error).__name__}: {reason}): check the address and the token."
            ) from None

    def _count_slots(self) -> int:
        """As many runs as the cluster allows now, or as were asked for."""
        resources = self._ray.cluster_resources()
        have = int(resources.get("CPU", 0)) // self._cores
        if self._gpus:
            have = min(have, int(resources.get("GPU", 0) / self._gpus))
        return max(min(have, self._workers or have), 1)

    def _require_room(self) -> None:
        gpus = self._gpus
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(
            node.get("CPU", 0) >= self._cores and node.get("GPU", 0) >= gpus
            for node in nodes
        ):
            self._ray.shutdown()
            raise UsageError(
                f"no machine of the cluster has {self._cores} cores and {gpus:g} GPUs "
                "for one run: ask for less."
            )


def _import_ray(place: "Place") -> Any:
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "--backend ray needs Ray: install it with pip install 'pombu[ray]'."
        )
    if place.address is not None:
        _require_listener(place.address)
        _require_cluster(place.address)
    elif "ray" not in sys.modules:
        # Without a token anyone who reaches the ports could run code here. Ray looks
        # at this when it is imported; newer versions have it on by themselves.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
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
