"""Checkpoints come back exactly, and every kind of damage is named and survived."""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pombu import files
from pombu.data.episodes import EpisodeStore, load_episodes
from pombu.envs import Episode
from pombu.errors import RunError, UsageError
from pombu.training import checkpoint
from pombu.training.checkpoint import Identity

IDENTITY = Identity("pombu", {"id": "pombu/Point2D-v0", "horizon": None})


def make_episode(seed: int, steps: int = 4) -> Episode:
    draw = np.random.default_rng(seed)
    return Episode(
        observations=draw.normal(size=(steps + 1, 3)).astype(np.float32),
        actions=draw.normal(size=(steps, 2)).astype(np.float32),
        rewards=draw.normal(size=steps).astype(np.float32),
        terminated=bool(seed % 2),
    )


def make_state(iteration: int) -> dict[str, Any]:
    return {"weights": np.full(100, iteration, np.float32), "iteration": iteration}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints of iterations 1, 2 and 3."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "episodes").mkdir()
    store = EpisodeStore()
    for iteration in (1, 2, 3):
        store.append([make_episode(iteration), make_episode(iteration + 10, steps=7)])
        checkpoint.save(tmp_path, make_state(iteration), store, IDENTITY, iteration)
    return tmp_path


def load_latest(
    run: Path, identity: Identity = IDENTITY
) -> tuple[int, EpisodeStore, list[str]]:
    warnings: list[str] = []
    found = checkpoint.load_latest(run, make_state(0), identity, warnings.append)
    assert found is not None
    loaded, store = found
    return loaded.state["iteration"], store, warnings


def contents(run: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}


def same(one: Episode, other: Episode) -> bool:
    return (
        one.terminated == other.terminated
        and one.observations.tobytes() == other.observations.tobytes()
        and one.actions.tobytes() == other.actions.tobytes()
        and one.rewards.tobytes() == other.rewards.tobytes()
    )


def test_the_newest_comes_back_with_its_episodes(run: Path) -> None:
    iteration, store, warnings = load_latest(run)
    assert iteration == 3
    assert warnings == []
    expected = [make_episode(s, t) for i in (1, 2, 3) for s, t in [(i, 4), (i + 10, 7)]]
    assert len(store) == len(expected)
    assert all(map(same, store, expected))
    assert store.steps == 33
    assert store.unsaved == []


def test_each_episode_is_written_once(run: Path) -> None:
    assert sorted(p.name for p in (run / "episodes").iterdir()) == [
        f"0000{number}.safetensors" for number in range(3)
    ]


def test_a_folder_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path, {}, IDENTITY, print) is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, truncate, empty, Path.unlink])
@pytest.mark.parametrize(
    ("file", "survivor"),
    [
        ("checkpoints/000003/state.safetensors", 2),
        ("checkpoints/000003/manifest.json", 2),
        ("episodes/00002.safetensors", 2),
        ("episodes/00001.safetensors", 1),
    ],
)
def test_damage_is_named_and_the_last_good_one_used(
    run: Path, damage: Callable[[Path], None], file: str, survivor: int
) -> None:
    damage(run / file)
    before = contents(run)
    iteration, store, warnings = load_latest(run)
    assert iteration == survivor
    assert len(store) == 2 * survivor
    assert all(file in warning for warning in warnings)
    assert len(warnings) == 3 - survivor
    assert contents(run) == before


def test_every_single_flipped_byte_of_a_manifest_is_noticed(run: Path) -> None:
    path = run / "checkpoints" / "000003"
    whole = (path / "manifest.json").read_bytes()
    manifest = checkpoint.read_manifest(path)
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        (path / "manifest.json").write_bytes(changed)
        with pytest.raises(files.DamagedFileError, match=r"manifest\.json"):
            checkpoint.read_manifest(path)
    (path / "manifest.json").write_bytes(whole)
    assert checkpoint.read_manifest(path) == manifest


def test_when_all_are_damaged_every_file_is_named(run: Path) -> None:
    flip(run / "episodes" / "00000.safetensors")
    with pytest.raises(RunError, match=r"00000\.safetensors; restore"):
        load_latest(run)


def test_going_on_from_an_older_one_overwrites_nothing(run: Path) -> None:
    flip(run / "checkpoints" / "000003" / "state.safetensors")
    flip(run / "episodes" / "00002.safetensors")
    before = sorted(contents(run).values())
    iteration, store, _ = load_latest(run)
    checkpoint.set_aside_after(run, iteration)
    store.append([make_episode(3), make_episode(13, steps=7)])
    checkpoint.save(run, make_state(3), store, IDENTITY, 3)
    assert load_latest(run)[0] == 3
    assert (run / "checkpoints" / "000003.damaged-1").is_dir()
    assert (run / "episodes" / "00002.safetensors.damaged-1").is_file()
    after = list(contents(run).values())
    assert all(data in after for data in before)


def test_collecting_the_same_episodes_again_keeps_the_file(run: Path) -> None:
    path = run / "episodes" / "00002.safetensors"
    written = path.stat().st_mtime_ns
    manifest = checkpoint.read_manifest(run / "checkpoints" / "000002")
    store = load_episodes(run / "episodes", manifest.shards)
    store.append([make_episode(3), make_episode(13, steps=7)])
    checkpoint.save(run, make_state(3), store, IDENTITY, 3)
    assert path.stat().st_mtime_ns == written


def test_last_n_and_the_best_are_kept(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "episodes").mkdir()
    for iteration, score in enumerate([1.0, 9.0, 2.0, None, 3.0], start=1):
        state = make_state(iteration)
        checkpoint.save(tmp_path, state, EpisodeStore(), IDENTITY, iteration, score)
        checkpoint.prune(tmp_path, keep=2)
    assert [p.name for p in checkpoint.paths(tmp_path)] == [
        "000002",
        "000004",
        "000005",
    ]
    best = checkpoint.best(tmp_path)
    assert best is not None
    assert best.name == "000002"


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        (Identity("sac", IDENTITY.environment), "of the algorithm pombu, not sac"),
        (Identity("pombu", {"id": "pombu/Ant-v0"}), "of the environment .*Point2D"),
    ],
)
def test_another_run_s_checkpoint_is_refused(
    run: Path, identity: Identity, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        load_latest(run, identity)


def test_another_format_is_refused(run: Path) -> None:
    path = run / "checkpoints" / "000003" / "manifest.json"
    content = json.loads(json.loads(path.read_bytes())["manifest"])
    text = json.dumps({**content, "format": 99, "pombu": "9.9", "novelty": 1})
    outer = {"sha256": files.digest(text.encode()), "manifest": text}
    path.write_text(json.dumps(outer))
    with pytest.raises(UsageError, match=r"format 99 \(pombu 9\.9\).* reads format 1"):
        load_latest(run)


def test_another_config_is_refused(run: Path) -> None:
    template = {"weights": np.zeros(50, np.float32), "iteration": 0}
    with pytest.raises(UsageError, match=r"does not fit .*float32\[100\]"):
        checkpoint.load_latest(run, template, IDENTITY, print)


def test_a_full_disk_loses_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(run)
    store = load_latest(run)[1]

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"could not write .*checkpoints/000004 \(No sp"):
        checkpoint.save(run, make_state(4), store, IDENTITY, 4)
    store.append([make_episode(4)])
    with pytest.raises(RunError, match="what was saved before is whole"):
        checkpoint.save(run, make_state(4), store, IDENTITY, 4)
    assert contents(run) == before


def test_leftovers_of_a_crash_are_ignored_and_cleaned(run: Path) -> None:
    before = contents(run)
    shutil.copytree(run / "checkpoints/000003", run / "checkpoints/.000004.1.tmp")
    (run / "episodes" / ".00003.safetensors.1.tmp").write_bytes(b"half")
    assert load_latest(run)[0] == 3
    checkpoint.clean(run)
    assert contents(run) == before


def test_a_checkpoint_costs_the_same_at_200k_transitions(tmp_path: Path) -> None:
    """Under 2 % of a 25 s iteration, with a state of the paper's size."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "episodes").mkdir()
    rng = np.random.default_rng(0)
    state = {
        str(k): rng.normal(size=(280, 3, 1024)).astype(np.float32) for k in range(6)
    }
    store = EpisodeStore([make_episode(seed, steps=1000) for seed in range(200)])
    checkpoint.save(tmp_path, state, store, IDENTITY, 1)
    seconds = []
    for iteration in (2, 3, 4):
        store.append([make_episode(iteration, steps=1000)])
        start = time.perf_counter()
        checkpoint.save(tmp_path, state, store, IDENTITY, iteration)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5
