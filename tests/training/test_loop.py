"""The learn loop: it ends equal however often it was stopped, and loses nothing."""

import dataclasses
import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy
from toy import make_toy, new_run, train

from pombu.data import episodes
from pombu.envs import load
from pombu.errors import RunError, UsageError
from pombu.training import checkpoint, run
from pombu.training.algorithm import (
    affordable_episodes,
    final_episodes,
    usual_share,
)
from pombu.training.callbacks import Callback, Progress, StopAfter, StopAtReturn
from pombu.training.loop import identity, learn
from pombu.training.metrics import NonFiniteError, deterministic, read_rows
from pombu.training.run import create

ITERATIONS = toy.TOTAL_STEPS // toy.STEPS_PER_ITERATION


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(new_run(folder))
    return folder


def rows(folder: Path) -> list[dict[str, float]]:
    return [deterministic(row) for row in read_rows(folder / "metrics.csv")[1]]


def assert_same_run(one: Path, other: Path) -> None:
    """Equal metrics, final weights, real episodes and final evaluation."""
    assert rows(one) == rows(other)
    last = f"checkpoints/{ITERATIONS:06d}/state.safetensors"
    assert (one / last).read_bytes() == (other / last).read_bytes()
    names = [path.name for path in sorted((one / "episodes").glob("0*.safetensors"))]
    assert len(names) == ITERATIONS
    for name in [f"episodes/{name}" for name in names] + ["evaluation.json"]:
        assert (one / name).read_bytes() == (other / name).read_bytes()


class StopAt(Callback):
    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_iteration(self, progress: Progress) -> bool | None:
        return progress.iteration < self.iteration


def test_an_uninterrupted_run_describes_itself(uninterrupted: Path) -> None:
    table = rows(uninterrupted)
    assert [row["iteration"] for row in table] == list(range(1, ITERATIONS + 1))
    assert table[-1]["real_steps"] == toy.TOTAL_STEPS
    header = read_rows(uninterrupted / "metrics.csv")[0]
    assert {"collect_seconds", "fit_seconds", "peak_memory"} <= set(header)
    (start,) = json.loads((uninterrupted / "versions.json").read_text())
    assert {"jax", "mujoco", "pombu"} <= set(start["packages"])
    evaluation = json.loads((uninterrupted / "evaluation.json").read_text())
    assert len(evaluation["deterministic"]["returns"]) == 20
    kept = [path.name for path in checkpoint.paths(uninterrupted)]
    assert kept == ["000006", "000008", "000009", "000010"]


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("stop_at", [1, 5, 9])
def test_a_stopped_and_resumed_run_is_the_same(
    uninterrupted: Path, tmp_path: Path, stop_at: int, every: int
) -> None:
    folder = tmp_path / "run"
    first = train(new_run(folder, checkpoint_every=every), callbacks=[StopAt(stop_at)])
    assert first.finished
    second = train(run.open_run(folder))
    assert second.signal is None
    assert rows(folder) == rows(uninterrupted)
    last = f"checkpoints/{ITERATIONS:06d}/state.safetensors"
    assert (folder / last).read_bytes() == (uninterrupted / last).read_bytes()


def test_resuming_a_finished_run_changes_nothing(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    assert train(run.open_run(folder)).finished
    assert_same_run(folder, uninterrupted)


def test_more_steps_can_be_asked_for(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    longer = run.open_run(folder).extend(toy.TOTAL_STEPS + 48)
    train(longer)
    assert rows(folder)[:-2] == rows(uninterrupted)
    assert run.open_run(folder) == longer


def test_a_run_without_a_folder_learns_the_same(uninterrupted: Path) -> None:
    result = learn(make_toy(), seed=3, total_steps=toy.TOTAL_STEPS)
    algorithm = make_toy()
    path = uninterrupted / "checkpoints" / f"{ITERATIONS:06d}"
    loaded = checkpoint.load(path, algorithm.init(0), identity(algorithm))
    np.testing.assert_array_equal(result.state.weights, loaded.state.weights)


def test_rows_beyond_the_checkpoint_are_dropped(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train(new_run(folder), callbacks=[StopAt(4)])
    shutil.rmtree(folder / "checkpoints" / "000004")
    with (folder / "metrics.csv").open("a") as file:
        file.write("5,120,50")
    train(run.open_run(folder))
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_redone_exactly(
    uninterrupted: Path, tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "run"
    train(new_run(folder), callbacks=[StopAt(5)])
    damaged = folder / "checkpoints" / "000005" / file
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-3])
    messages = Messages()
    train(run.open_run(folder), callbacks=[messages])
    assert any(str(damaged) in text for text in messages.texts)
    assert_same_run(folder, uninterrupted)
    aside = folder / "checkpoints" / "000005.damaged-1" / file
    assert aside.read_bytes() == data[:-3]


class Messages(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


def test_a_nan_stops_the_run_with_its_state_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteError, match="iteration 4 gave loss = nan"):
        train(new_run(folder), make_toy(nan_at=4))
    assert (folder / "diverged.safetensors").exists()
    assert checkpoint.paths(folder)[-1].name == "000003"
    assert len(list((folder / "episodes").glob("kept-*.safetensors"))) == 1


def test_a_broken_simulator_keeps_its_episodes_and_resumes(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    messages = Messages()
    with pytest.raises(RunError, match="simulator broke"):
        train(new_run(folder), make_toy(fail_at=4), [messages])
    (kept,) = (folder / "episodes").glob("kept-*.safetensors")
    (episode,) = episodes.from_bytes(kept.read_bytes())
    np.testing.assert_array_equal(episode.rewards, toy.make_episode(4, 0).rewards)
    assert str(kept) in messages.texts[-1]
    train(run.open_run(folder))
    assert_same_run(folder, uninterrupted)


def test_a_broken_simulator_between_checkpoints_saves_the_last_iteration(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunError, match="simulator broke"):
        train(new_run(folder, checkpoint_every=5), make_toy(fail_at=4))
    assert [path.name for path in checkpoint.paths(folder)] == ["000003"]


def test_a_full_disk_is_one_sentence_and_resumes(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    real, calls = os.fsync, [0]

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"No space left on device.*then resume"):
            train(new_run(folder))
    train(run.open_run(folder))
    assert_same_run(folder, uninterrupted)


def test_callbacks_see_every_moment(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watcher(Callback):
        def on_start(self, progress: Progress) -> None:
            seen.append(f"start {progress.iteration}")

        def on_stage(self, name: str) -> None:
            seen.append(name)

        def on_stage_end(self, name: str, seconds: float) -> None:
            assert seconds >= 0

        def on_iteration(self, progress: Progress) -> bool | None:
            assert progress.metrics["loss"] == float(progress.state.weights.sum())
            seen.append(f"iteration {progress.iteration}")
            return None

        def on_evaluation(self, progress: Progress) -> bool | None:
            seen.append(f"return {progress.returns[-1]}")
            return progress.iteration < 2

        def on_stop(self, progress: Progress) -> None:
            seen.append("stop")

    train(new_run(tmp_path / "run"), callbacks=[Watcher()])
    once = ["collect", "fit"]
    assert seen == [
        "start 0",
        *once,
        "iteration 1",
        "return 1.0",
        *once,
        "iteration 2",
        "return 2.0",
        "stop",
    ]


def test_stop_at_return() -> None:
    result = learn(make_toy(), 0, toy.TOTAL_STEPS, [StopAtReturn(5.0)])
    assert int(result.state.iteration) == 5
    assert result.finished


def test_stop_at_an_unknown_metric_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"there is no metric x; there are .*loss"):
        learn(make_toy(), 0, toy.TOTAL_STEPS, [StopAtReturn(5.0, metric="x")])


def test_stop_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is looked at."""
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr("pombu.training.callbacks.time", clock)
    result = learn(make_toy(), 0, toy.TOTAL_STEPS, [StopAfter(1.5)])
    assert int(result.state.iteration) == 2


def start(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, toy.__file__, str(folder), str(seconds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def kill_at_random_moments(folder: Path, kills: int, seed: int) -> int:
    """Start, kill and resume until all kills are done, then finish; kills that hit."""
    moments = random.Random(seed)
    hits = 0
    for _ in range(kills):
        process = start(folder, seconds=0.2)
        assert process.stdout is not None
        # The first line says that the loop has begun.
        process.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.5))
        process.kill()
        process.communicate()
        hits += process.returncode == -signal.SIGKILL
    final = start(folder, seconds=0.0)
    output, _ = final.communicate(timeout=120)
    assert final.returncode == 0, output
    return hits


def test_three_kills_change_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert kill_at_random_moments(folder, kills=3, seed=0) == 3
    assert_same_run(folder, uninterrupted)


@pytest.mark.slow
def test_twenty_kills_change_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert kill_at_random_moments(folder, kills=20, seed=1) >= 3
    assert_same_run(folder, uninterrupted)


def test_killed_before_the_first_checkpoint_starts_again(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder, seconds=30)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert checkpoint.paths(folder) == []
    train(run.open_run(folder))
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_exit_cleanly(
    uninterrupted: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    process = start(folder, seconds=0.4)
    assert process.stdout is not None
    while "iteration 2" not in process.stdout.readline():
        pass
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    assert f"{number.name}: stopping" in output
    done = int(rows(folder)[-1]["iteration"])
    assert checkpoint.paths(folder)[-1].name == f"{done:06d}"
    train(run.open_run(folder))
    assert_same_run(folder, uninterrupted)


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, seconds=30)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        with pytest.raises(UsageError, match=f"in use by process {process.pid}"):
            train(run.open_run(folder))
    finally:
        process.kill()
        process.communicate()


def test_a_checkpoint_of_another_environment_is_refused(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    other: Any = toy.Toy(toy.load("Point3D"))
    with pytest.raises(UsageError, match=r"checkpoint of the environment .*Point2D"):
        train(run.open_run(folder), other)


class Impatient(Callback):
    """Presses Ctrl-C for the second time while the second iteration fits."""

    def __init__(self) -> None:
        self.fits = 0

    def on_stage(self, name: str) -> None:
        self.fits += name == "fit"
        if self.fits == 2:
            raise KeyboardInterrupt


def test_a_second_ctrl_c_drops_what_was_not_learned_from() -> None:
    algorithm = make_toy()
    store = episodes.EpisodeStore()
    begin = (algorithm.init(0), store)
    with pytest.raises(KeyboardInterrupt):
        learn(algorithm, 0, toy.TOTAL_STEPS, [Impatient()], begin=begin)
    assert store.steps == toy.STEPS_PER_ITERATION


def test_a_callback_that_does_not_start_lets_the_others_stop() -> None:
    seen: list[str] = []

    class Display(Callback):
        def on_stop(self, progress: Progress) -> None:
            seen.append("stopped")

    class Broken(Callback):
        def on_start(self, progress: Progress) -> None:
            raise RunError("It did not start.")

    with pytest.raises(RunError, match="did not start"):
        learn(make_toy(), 0, toy.TOTAL_STEPS, [Display(), Broken()])
    assert seen == ["stopped"]


@pytest.mark.parametrize(
    ("horizon", "steps", "due"),
    [
        # One episode with noise and one without are paid for by 10 of training.
        (300, 30_000, [10] * 6),  # as many as the config asks for
        (300, 9000, [3] * 6),  # fewer episodes first
        (1000, 4000, [1, 0, 1, 0, 1, 1]),  # then fewer evaluations
        (1000, 1000, [1, 0, 0, 0, 0, 1]),  # but not fewer than every fifth
    ],
)
def test_long_episodes_make_evaluations_smaller_and_then_rarer(
    horizon: int, steps: int, due: list[int]
) -> None:
    assert [evaluated(horizon, steps, i) for i in range(6)] == due


def evaluated(horizon: int, steps: int, iteration: int, share: float = 0.2) -> int:
    taken = steps * iteration, steps * (iteration + 1)
    return affordable_episodes(10, share, horizon, taken, iteration)


def test_a_share_of_evaluations_is_kept_to() -> None:
    horizon, share, steps = 300, 0.35, 1817
    pairs = sum(evaluated(horizon, steps, i, share) for i in range(200))
    assert 2 * horizon * pairs == pytest.approx(share * 200 * steps, rel=0.01)


def test_a_share_of_none_evaluates_at_the_end_alone() -> None:
    assert [evaluated(1000, 50_000, i, share=0.0) for i in range(6)] == [0] * 6
    assert final_episodes(0.0, 1000, 50_000) == 5


def test_no_limit_leaves_evaluations_as_they_are() -> None:
    assert affordable_episodes(20, None, 1000, (0, 10), 3) == 20
    assert final_episodes(None, 1000, 10) == 20
    assert final_episodes(0.2, 1000, 10) == 5
    assert final_episodes(0.2, 1000, 150_000) == 10


@pytest.mark.parametrize(
    ("env", "due"),
    [("Pendulum-v1", None), ("InvertedPendulum-v5", 0.2), ("HalfCheetah", None)],
)
def test_only_long_episodes_of_others_are_limited(env: str, due: float | None) -> None:
    assert usual_share(load(env)) == due
    if due is None:
        assert usual_share(load(env, horizon=150)) is None


def test_a_paper_task_of_1000_steps_is_not_limited() -> None:
    assert usual_share(load("HalfCheetah", horizon=1000)) is None


def test_a_run_can_end_after_a_number_of_iterations(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    spec = dataclasses.replace(run.spec, last_iteration=2)
    shutil.rmtree(run.path)
    result = train(create(tmp_path / "run", spec))
    assert (int(result.state.iteration), result.finished) == (2, True)
    chance = json.loads((run.path / "evaluation.json").read_bytes())["random"]
    assert chance["episodes"] == 20


def test_a_late_start_of_learning_is_told() -> None:
    @dataclasses.dataclass(frozen=True)
    class Late(toy.Config):
        learning_starts: int = 30

    told: list[str] = []

    class Listen(Callback):
        def on_message(self, text: str) -> None:
            told.append(text)

    for total in (48, 72):
        learn(dataclasses.replace(make_toy(), config=Late()), 0, total, [Listen()])
    (only,) = told
    assert "learning_starts" in only
    assert "48" in only
