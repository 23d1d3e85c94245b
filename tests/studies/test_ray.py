"""A study on Ray: a real cluster on loopback, a killed worker, and bad addresses."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pombu.cli import main
from pombu.envs import EnvConfig
from pombu.errors import RunError, UsageError
from pombu.studies import ray_backend
from pombu.studies.backends import BackendOptions, LocalBackend
from pombu.studies.progress import RunProgress
from pombu.studies.ray_backend import (
    FolderChanges,
    RayBackend,
    WorkerReport,
    apply_changes,
    read_changes,
    train_remotely,
)
from pombu.studies.study import Job, plan, run_study
from pombu.training.metrics import deterministic, read_rows
from pombu.training.run import create

JOBS = [
    Job(
        algorithm,
        EnvConfig("Point2D"),
        seed,
        "smoke",
        180,
        overrides=(("updates", 1), ("model.max_steps", 5)),
    )
    for algorithm in ("pombu", "meppo")
    for seed in (0, 1)
]


def test_a_folder_travels_change_by_change(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "checkpoints" / "000001").mkdir(parents=True)
    (source / "checkpoints" / "000001" / "state").write_bytes(b"1")
    (source / "config.json").write_text("{}")
    (source / "lock").write_text("4")
    (source / ".x.tmp").write_text("half")
    target.mkdir()
    changes, known = read_changes(source, {})
    assert set(changes.files) == {"config.json", "checkpoints/000001/state"}
    apply_changes(changes, target)

    (source / "checkpoints" / "000001" / "state").unlink()
    (source / "checkpoints" / "000002").mkdir()
    (source / "checkpoints" / "000002" / "state").write_bytes(b"2")
    changes, known = read_changes(source, known)
    assert changes.gone == ("checkpoints/000001/state",)
    assert set(changes.files) == {"checkpoints/000002/state"}
    apply_changes(changes, target)
    assert not (target / "checkpoints" / "000001").exists()
    assert (target / "checkpoints" / "000002" / "state").read_bytes() == b"2"
    assert read_changes(source, known)[0] == FolderChanges()


def test_changes_cannot_leave_their_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leads out"):
        apply_changes(FolderChanges({"../escaped": b""}), tmp_path)


def test_a_worker_reports_why_a_run_failed(tmp_path: Path) -> None:
    job = Job(
        "meppo",
        EnvConfig("Point2D"),
        0,
        "smoke",
        60,
        overrides=(("policy.minibatch", 10**6),),
    )
    create(tmp_path / job.name, job.spec())
    changes, _ = read_changes(tmp_path / job.name, {})
    before = os.sched_getaffinity(0)
    begun, ended = train_remotely(job.name, changes, 1, 0.0, None)
    assert begun.end_state is None
    assert begun.pid == os.getpid()
    assert ended.end_state == "failed"
    assert b"minibatch of 1000000" in ended.changes.files["failure.txt"]
    assert os.sched_getaffinity(0) == before


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def test_an_address_where_no_one_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RunError, match=f"no Ray cluster answers at {address}"):
        BackendOptions(backend="ray", address=address).open()
    with pytest.raises(UsageError, match="is no address of a Ray cluster"):
        BackendOptions(backend="ray", address="somewhere").open()
    (tmp_path / "study.toml").write_text(
        'algorithms = ["meppo"]\ntasks = ["Point2D"]\npreset = "smoke"\n'
    )
    command = ["study", str(tmp_path / "study.toml"), "--out", str(tmp_path / "runs")]
    assert main([*command, "--backend", "ray", "--address", address]) == 1
    error = capsys.readouterr().err
    assert f"no Ray cluster answers at {address}" in error
    assert error.count("\n") == 1


def test_what_listens_and_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pombu.studies.ray_backend.JOIN_SECONDS", 3.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RunError, match=f"answers at {address} .*no answer in 3 s"):
            BackendOptions(backend="ray", address=address).open()


class Started:
    """Stands for Ray: keeps how it was started."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    def init(self, **arguments: Any) -> None:
        self.arguments = arguments


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_a_cluster_of_its_own_listens_on_loopback(address: str | None) -> None:
    backend, ray = RayBackend.__new__(RayBackend), Started()
    vars(backend).update(_ray=ray)
    backend._connect(BackendOptions(backend="ray", address=address))
    expected = "127.0.0.1" if address is None else None
    assert ray.arguments.get("_node_ip_address") == expected


@pytest.mark.parametrize("given", [None, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_the_token_is_left_in_no_file(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would write one that everyone can read, were there none."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "mine")
        monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv(given, "mine")
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr("importlib.import_module", lambda name: name)
    assert ray_backend._import_ray(BackendOptions(backend="ray")) == "ray"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    if given is None:
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    else:
        assert os.environ[given] == "mine"
        assert ("RAY_AUTH_TOKEN" in os.environ) == (given == "RAY_AUTH_TOKEN")


class FullDisk:
    """Stands for Ray: one run has sent a report, for which there is no room here."""

    exceptions = SimpleNamespace(RayError=LookupError, RayTaskError=KeyError)
    """Stand-ins for Ray's own, of which none is raised."""

    def __init__(self) -> None:
        self.cancelled: list[object] = []

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def wait(self, reports: list[object], timeout: float) -> tuple[list[object]]:
        return (reports,)

    def get(self, report: WorkerReport) -> WorkerReport:
        return report

    def cancel(self, task: object, force: bool) -> None:
        self.cancelled.append(task)


def test_a_full_disk_here_fails_one_run_and_not_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(changes: FolderChanges, folder: Path) -> None:
        raise RunError(f"could not write {folder} (No space left on device)")

    monkeypatch.setattr("pombu.studies.ray_backend.apply_changes", refuse)
    backend = RayBackend.__new__(RayBackend)
    disk, task = FullDisk(), iter([WorkerReport(FolderChanges(), 7)])
    vars(backend).update(_ray=disk, _cores=1, _gpus=0.0, _workers=2)
    vars(backend).update(_running={tmp_path: (task, None)}, pids={}, _node=[])
    assert backend.poll() == {tmp_path: "failed"}
    assert disk.cancelled == [task]
    assert "No space left" in (tmp_path / "failure.txt").read_text()
    assert backend.poll() == {}


GUARDED = """
import sys, time
from pombu.studies.ray_backend import after_this_process
with after_this_process(*sys.argv[2:]):
    print("inside", flush=True)
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_killed_worker_leaves_is_removed(tmp_path: Path, killed: bool) -> None:
    copy = tmp_path / "a copy of a run"
    copy.mkdir()
    (copy / "config.json").touch()
    seconds = "60" if killed else "0"
    command = [sys.executable, "-c", GUARDED, seconds, ray_backend.REMOVE, str(copy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        if killed:
            process.kill()
    assert gone(copy, 10.0 if killed else 1.0) == killed


def gone(path: Path, seconds: float) -> bool:
    """Whether a file or folder goes away within some time."""
    end = time.monotonic() + seconds
    while path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not path.exists()


def test_rays_processes_end_with_a_killed_study_and_it_is_said() -> None:
    """Others that have one of their numbers by then do not."""
    rays = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)  # ray"]
    )
    other = subprocess.Popen(["sleep", "60"])
    assert {rays.pid, other.pid} <= set(ray_backend.descendants(os.getpid()))
    command = [sys.executable, "-c", GUARDED, "60", ray_backend.END]
    command += [str(rays.pid), str(other.pid)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    process.stdout.readline()
    process.kill()
    _, said = process.communicate(timeout=20)
    assert rays.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()
    assert said.startswith("pombu: the study ended without a word")
    assert "same command goes on" in said
    assert said.count("\n") == 1


STUDY_ON_RAY = """
import os, sys, time
from pombu.errors import RunError
from pombu.studies.backends import BackendOptions
from pombu.studies.ray_backend import descendants
backend = BackendOptions(backend="ray", workers=1).open()
print(*descendants(os.getpid()), flush=True)
try:
    while True:
        backend.poll()
        time.sleep(0.2)
except RunError as error:
    print(f"pombu: {error}", file=sys.stderr)
    backend.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("who", ["driver", "agent"])
def test_nothing_of_ray_outlives_the_study(who: str) -> None:
    """A killed driver, and a dashboard agent that dies and takes Ray along."""
    command = [sys.executable, "-c", STUDY_ON_RAY]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    pids = [int(one) for one in process.stdout.readline().split()]
    assert pids, process.communicate(timeout=120)
    if who == "driver":
        process.kill()
    else:
        (agent,) = [p for p in pids if "dashboard_agent" in ray_backend.command_of(p)]
        os.kill(agent, signal.SIGKILL)
    _, said = process.communicate(timeout=240)
    assert "pombu: " in said
    assert "the same command goes on" in said
    end = time.monotonic() + 20
    while any(map(ray_backend.command_of, pids)) and time.monotonic() < end:
        time.sleep(0.2)
    assert [left for pid in pids if (left := ray_backend.command_of(pid))] == []


class Killer:
    """Watches a study, and kills a worker once its run is under way."""

    def __init__(self) -> None:
        self.backend: Any = None
        self.killed: list[int] = []
        self.words: list[str] = []

    def show(self, runs: Sequence[RunProgress], slots: int) -> None:
        for run in runs:
            under_way = run.state == "running" and 0 < run.real_steps < run.total_steps
            if under_way and not self.killed:
                pids = self.backend.pids
                pid = next(pid for path, pid in pids.items() if path.name == run.name)
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)

    def say(self, text: str) -> None:
        self.words.append(text)


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two by two runs on a cluster with its token on, and the same on this machine."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef0123456789abcdef")
    local, remote = tmp_path / "local", tmp_path / "remote"
    watcher = Killer()
    watcher.backend = backend = BackendOptions(backend="ray", workers=2).open()
    outcome = run_study(plan(JOBS, remote), remote, backend, watcher)
    assert outcome.finished, [run.failure for run in outcome.failed]
    assert len(watcher.killed) == 1

    watcher.killed.append(0)
    here = run_study(plan(JOBS, local), local, LocalBackend(2), watcher)
    assert here.finished
    for job in JOBS:
        ours = rows(remote / job.name)
        assert [row["iteration"] for row in ours] == [1, 2, 3]
        assert ours == rows(local / job.name)
        evaluation = (local / job.name / "evaluation.json").read_bytes()
        assert (remote / job.name / "evaluation.json").read_bytes() == evaluation


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster that someone else has started, with its token on."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "fedcba9876543210fedcba9876543210")
    port = free_port()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    command += [f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    command += ["--include-dashboard=false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        while "Ray runtime started" not in head.stdout.readline():
            assert head.poll() is None
        yield f"127.0.0.1:{port}"
        head.terminate()


@pytest.mark.slow
def test_a_cluster_is_joined_by_its_address(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'algorithms = ["meppo"]\ntasks = ["Point2D"]\nseeds = 1\npreset = "smoke"\n'
        "total_steps = 60\n"
    )
    # A process of its own: this one may have met Ray with another token.
    command = [sys.executable, "-m", "pombu", "study", str(file), "--backend", "ray"]
    command += ["--out", str(tmp_path / "runs"), "--address", cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Done: 1 runs" in done.stdout
    wrong = {**os.environ, "RAY_AUTH_TOKEN": "0" * 32}
    told = subprocess.run(command, capture_output=True, text=True, env=wrong)
    assert told.returncode == 1
    assert f"no Ray cluster answers at {cluster}" in told.stderr
    assert "token" in told.stderr
    assert told.stderr.count("\n") == 1


def rows(folder: Path) -> list[dict[str, float]]:
    return [deterministic(row) for row in read_rows(folder / "metrics.csv")[1]]
