"""Logged transitions: there and back, and what does not fit."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces

from pombu import POMBU, RunError, UsageError
from pombu.algorithms.registry import begin_from
from pombu.cli import main
from pombu.data import read_logged, write_logged
from pombu.data.episodes import to_bytes, write_kept
from pombu.envs import EnvConfig, Episode, collect, load
from pombu.files import DamagedFileError
from pombu.training import checkpoint
from pombu.training.checkpoint import shard_checksums
from pombu.training.metrics import NonFiniteError
from pombu.training.run import open_run

TASK = load("probes:corridor")


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    rng = np.random.default_rng(0)
    return collect(TASK, lambda *_: rng.uniform(-1, 1, (6, 1)), range(6))


def same(one: list[Episode], two: list[Episode]) -> bool:
    return len(one) == len(two) and all(
        np.array_equal(a.observations, b.observations)
        and np.array_equal(a.actions, b.actions)
        and np.array_equal(a.rewards, b.rewards)
        and a.terminated == b.terminated
        for a, b in zip(one, two, strict=True)
    )


def test_no_episodes_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no episodes to write"):
        write_logged(tmp_path / "data.npz", [])


def test_there_and_back(episodes: list[Episode], tmp_path: Path) -> None:
    assert len({episode.terminated for episode in episodes}) == 2
    write_logged(tmp_path / "data.npz", episodes)
    assert same(read_logged(tmp_path / "data.npz", TASK), episodes)


def arrays(episodes: list[Episode]) -> dict[str, Any]:
    ends = np.concatenate([np.arange(len(e)) == len(e) - 1 for e in episodes])
    terminated = np.concatenate([[e.terminated] * len(e) for e in episodes])
    return {
        "observations": np.concatenate([e.observations for e in episodes]),
        "actions": np.concatenate([e.actions for e in episodes]),
        "rewards": np.concatenate([e.rewards for e in episodes]),
        "terminations": ends & terminated,
        "truncations": ends & ~terminated,
    }


def test_a_flipped_bit_in_another_runs_episodes_is_noticed(tmp_path: Path) -> None:
    agent = POMBU("Point2D", preset="smoke").learn(20)
    folder = agent.save(tmp_path / "agent").parent.parent
    task, file = agent.learner.task, folder / "episodes" / "00000.safetensors"
    known = shard_checksums(folder)
    assert known == shard_checksums(file)
    assert same(read_logged(folder, task, known), list(agent.episodes))
    data = file.read_bytes()
    (file.with_name("00001.safetensors")).write_bytes(data)
    assert same(read_logged(folder, task, known), list(agent.episodes)), (
        "what no checkpoint knows was never learned from"
    )
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for given in (folder, file):
        with pytest.raises(DamagedFileError, match=r"00000\.safetensors"):
            read_logged(given, task, known)
    with pytest.raises(DamagedFileError):
        POMBU("Point2D", preset="smoke", data=folder)
    assert shard_checksums(tmp_path) == {}


def test_what_tells_a_runs_episodes_must_be_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier checkpoint knows fewer episodes: it is not taken without a word."""
    agent = POMBU("Point2D", preset="smoke").learn(20)
    folder = agent.save(tmp_path / "agent").parent.parent
    agent.learn(20).save(folder)
    known = shard_checksums(folder)
    assert len(known) == 2
    file = folder / "episodes" / "00000.safetensors"
    assert known == shard_checksums(folder / "episodes") == shard_checksums(file)
    damaged = checkpoint.paths(folder)[-1] / "manifest.json"
    data = damaged.read_bytes()
    for at in range(0, len(data), len(data) // 50):
        damaged.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        for given in (folder, folder / "episodes", file):
            with pytest.raises(RunError, match=r"manifest\.json is damaged"):
                shard_checksums(given)
    with pytest.raises(RunError, match=r"manifest\.json is damaged"):
        POMBU("Point2D", preset="smoke", data=folder)
    begin = ["train", "--env", "Point2D", "--preset", "smoke", "--data"]
    assert main([*begin, str(folder), "--out", str(tmp_path / "out")]) == 1
    other = tmp_path / "other"
    agent.save(other)
    assert main(["diagnose", str(other), "--data", str(folder)]) == 1
    assert capsys.readouterr().err.count("manifest.json is damaged") == 2
    damaged.unlink()
    with pytest.raises(RunError, match="it is missing"):
        shard_checksums(folder)


def test_kept_episodes_are_bound_by_their_name(
    episodes: list[Episode], tmp_path: Path
) -> None:
    file = tmp_path / write_kept(tmp_path, episodes).file
    assert same(read_logged(file, TASK), episodes)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match="kept-"):
        read_logged(file, TASK)


def test_loose_transitions(episodes: list[Episode], tmp_path: Path) -> None:
    """Without end flags, an episode ends where the next row begins elsewhere."""
    given = arrays(episodes)
    given["observations"] = np.concatenate([e.observations[:-1] for e in episodes])
    given["next_observations"] = np.concatenate([e.observations[1:] for e in episodes])
    given["truncations"][:] = False
    np.savez(tmp_path / "data.npz", **given)
    assert same(read_logged(tmp_path / "data.npz", TASK), episodes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": None}, "no array 'rewards'; it must have observations"),
        ({"actions": np.zeros((3, 1))}, "3 rows of actions"),
        ({"actions": np.zeros((3, 2))}, "environment's have 1 entries"),
        ({"observations": np.zeros((9, 2))}, "has 9 observations, but"),
        ({"rewards": np.full(1000, np.nan)}, "rewards that are not finite"),
        ({"rewards": np.float32(1.0)}, r"rewards of shape \(\)"),
        ({"actions": np.array(["left"])}, "actions of type <U4: give numbers"),
    ],
)
def test_misfits(
    change: dict[str, Any], message: str, episodes: list[Episode], tmp_path: Path
) -> None:
    given = {k: v for k, v in {**arrays(episodes), **change}.items() if v is not None}
    np.savez(tmp_path / "data.npz", **given)
    with pytest.raises(UsageError, match=message) as caught:
        read_logged(tmp_path / "data.npz", TASK)
    assert "\n" not in str(caught.value)


def test_no_such_file_or_no_npz(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(UsageError, match="cannot be read"):
        read_logged(tmp_path / "text.npz", TASK)
    with pytest.raises(UsageError, match=r"absent\.npz.*minari:NAME"):
        read_logged(tmp_path / "absent.npz", TASK)


def test_a_damaged_archive_is_one_sentence(
    episodes: list[Episode], tmp_path: Path
) -> None:
    """Bytes that no longer unpack, behind a header that still reads."""
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **arrays(episodes))
    data = bytearray(path.read_bytes())
    data[60:160] = bytes(100)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="cannot be read"):
        read_logged(path, TASK)


def test_objects_in_a_file_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", observations=np.array([{}], dtype=object))
    with pytest.raises(UsageError, match="cannot be read"):
        read_logged(tmp_path / "data.npz", TASK)


def test_training_starts_from_data_and_resumes_with_it(
    episodes: list[Episode], tmp_path: Path
) -> None:
    write_logged(tmp_path / "data.npz", episodes)
    run = tmp_path / "run"
    flags = ["--preset", "smoke", "--total-steps", "1", "--out", str(run)]
    data = ["--data", str(tmp_path / "data.npz")]
    assert main(["train", "--env", "probes:corridor", *flags, *data]) == 0
    assert main(["resume", str(run), "--env", "probes:corridor"]) == 0
    assert open_run(run).spec.total_steps == 1
    agent = POMBU("probes:corridor", preset="smoke", data=tmp_path / "data.npz")
    assert int(agent.state.real_steps) == 0
    assert agent.episodes.steps == sum(map(len, episodes))
    assert int(agent.state.experience.observation.count) == agent.episodes.steps


class Stubborn:
    """An algorithm that only learns from what it collects itself."""

    name, task, config = "stubborn", TASK, None

    def init(self, seed: int) -> Any:
        raise AssertionError("asked too early")

    iterate = policy = init


class Diverging(Stubborn):
    """One whose update gives metrics that are not finite."""

    def init(self, seed: int) -> Any:
        return SimpleNamespace(iteration=0)

    def update(self, state: Any, *_: Any) -> tuple[Any, dict[str, float]]:
        return SimpleNamespace(iteration=1), {"model_loss": float("nan")}


def test_an_update_that_diverged_is_refused(episodes: list[Episode]) -> None:
    with pytest.raises(NonFiniteError, match="model_loss"):
        begin_from(Diverging(), 0, episodes)


def test_algorithms_that_collect_themselves_say_so(episodes: list[Episode]) -> None:
    with pytest.raises(UsageError, match=r"^stubborn .*choose .*pombu"):
        begin_from(Stubborn(), 0, episodes)


def test_another_run_s_episodes_are_data(tmp_path: Path, capsys: Any) -> None:
    flags = ["train", "--env", "Point2D", "--preset", "smoke", "--total-steps", "60"]
    assert main([*flags, "--out", str(tmp_path / "old")]) == 0
    old = tmp_path / "old"
    task = load("Point2D")
    whole = read_logged(old, task)
    assert sum(map(len, whole)) == 60
    first = sorted((old / "episodes").glob("*.safetensors"))[0]
    assert same(read_logged(first, task), whole)
    left = first.with_name("kept-0.safetensors")  # by an iteration that was redone
    left.write_bytes(first.read_bytes())
    assert same(read_logged(old, task), whole)
    assert main([*flags, "--data", str(old), "--out", str(tmp_path / "new")]) == 0
    capsys.readouterr()
    for bad, said in [
        (tmp_path, "has no real episodes"),
        (old / "checkpoints" / "000001" / "state.safetensors", "cannot be read"),
    ]:
        with pytest.raises(UsageError, match=said):
            read_logged(bad, task)
    with pytest.raises(UsageError, match="episodes of the same task"):
        read_logged(old, load("Point3D"))


def test_arrays_that_nobody_needs_are_not_read(
    episodes: list[Episode], tmp_path: Path
) -> None:
    """What stands there is no array at all."""
    np.savez(tmp_path / "data.npz", **arrays(episodes))
    with zipfile.ZipFile(tmp_path / "data.npz", "a") as archive:
        archive.writestr("pictures.npy", b"not an array")
    assert same(read_logged(tmp_path / "data.npz", TASK), episodes)


def test_a_header_that_promises_too_much_is_refused(
    episodes: list[Episode], tmp_path: Path
) -> None:
    given = arrays(episodes)
    rewards = given.pop("rewards")
    np.savez(tmp_path / "data.npz", **given)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)}
    )
    with zipfile.ZipFile(tmp_path / "data.npz", "a") as archive:
        archive.writestr("rewards.npy", header.getvalue() + rewards.tobytes())
    with pytest.raises(UsageError, match="shorter than its header says"):
        read_logged(tmp_path / "data.npz", TASK)


def test_stored_episodes_that_are_not_finite_are_refused_at_once(
    episodes: list[Episode], tmp_path: Path
) -> None:
    rewards = episodes[0].rewards.copy()
    rewards[0] = np.nan
    broken = replace(episodes[0], rewards=rewards)
    file = tmp_path / "00000.safetensors"
    file.write_bytes(to_bytes([broken, *episodes[1:]]))
    with pytest.raises(UsageError, match="rewards that are not finite"):
        read_logged(file, TASK)


class Pair(gymnasium.Env[Any, Any]):
    """A Dict of a counter and a choice; ends for good after five steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            where=spaces.Box(-99.0, 99.0, (2, 1)), mode=spaces.Discrete(2)
        )
        self.action_space = spaces.Box(-3.0, 3.0, (1,))
        self.where = np.zeros((2, 1), np.float32)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        start = self.np_random.uniform(-1, 1, (2, 1))
        self.where, self.steps = start.astype(np.float32), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.where = self.where + np.float32(action[0])
        self.steps += 1
        return self._observe(), float(self.where.sum()), self.steps == 5, False, {}

    def _observe(self) -> Any:
        return {"where": self.where, "mode": self.steps % 2}


def pair() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Pair(), 4 + 2)


def collect_minari(env: Any, task: Any, episodes: int, name: str) -> list[Episode]:
    """Write a Minari dataset of random actions; the episodes as pombu sees them."""
    collector = minari.DataCollector(env)
    rng = np.random.default_rng(0)
    own, box = [], task.action_box
    flat = task.make()
    for seed in range(episodes):
        collector.reset(seed=seed)
        rows, actions, rewards, over = [flat.reset(seed=seed)[0]], [], [], False
        while not over:
            action = box.to_env(rng.uniform(box.low, box.high, (1, box.dim)))[0]
            collector.step(action)
            row, reward, terminated, truncated, _ = flat.step(action)
            rows.append(row)
            actions.append(action.ravel())
            rewards.append(reward)
            over = terminated or truncated
        one = (np.array(part, np.float32) for part in (rows, actions, rewards))
        own.append(Episode(*one, terminated))
    collector.create_dataset(name, algorithm_name="random")
    collector.close()
    return own


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of Minari datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


# Minari warns of what a dataset does not say about itself.
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")


@quiet
@pytest.mark.parametrize("made", ["corridor", "pair"])
def test_minari_episodes_are_those_that_were_recorded(
    made: str, datasets: Path
) -> None:
    env, task = (pair(), load(f"{__name__}:pair"))
    if made == "corridor":
        env, task = TASK.make().env, TASK
    own = collect_minari(env, task, 4, f"own/{made}-v0")
    assert all(len(episode) for episode in own)
    read = read_logged(f"minari:own/{made}-v0", task)
    assert same(read, own)
    assert read[0].observations.shape[1] == (4 if made == "pair" else 2)


@quiet
def test_minari_data_start_a_run_and_stack(datasets: Path, tmp_path: Path) -> None:
    own = collect_minari(TASK.make().env, TASK, 4, "own/corridor-v0")
    stacked = load(EnvConfig(id="probes:corridor", history=2))
    read = read_logged("minari:own/corridor-v0", stacked)
    assert read[0].observations.shape[1] == 4
    np.testing.assert_array_equal(read[0].observations[:, :2], own[0].observations)
    flags = ["--preset", "smoke", "--total-steps", "1", "--out", str(tmp_path / "run")]
    data = ["--data", "minari:own/corridor-v0"]
    assert main(["train", "--env", "probes:corridor", *flags, *data]) == 0


@quiet
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("Pendulum-v1", "has observations of"),
        ("Point2D", "has actions in"),
        ("probes:corridor", "has observations of"),
    ],
)
def test_minari_data_of_another_environment_are_refused(
    env: str, said: str, datasets: Path
) -> None:
    source = TASK if env == "Point2D" else load(f"{__name__}:pair")
    if env == "Point2D":  # same observations, and a wider action box
        wide = spaces.Box(-0.5, 0.5, (2,))
        buffer = {
            "observations": np.zeros((3, 2), np.float32),
            "actions": np.zeros((2, 2), np.float32),
            "rewards": np.zeros(2),
            "terminations": np.zeros(2, bool),
            "truncations": np.array([False, True]),
            "infos": {},
        }
        minari.create_dataset_from_buffers(
            "own/other-v0",
            [minari.data_collector.EpisodeBuffer(**buffer)],
            action_space=wide,
            observation_space=spaces.Box(-np.inf, np.inf, (2,)),
        )
    else:
        collect_minari(source.make().env.env, source, 2, "own/other-v0")
    with pytest.raises(UsageError, match=said) as caught:
        read_logged("minari:own/other-v0", load(env))
    assert "\n" not in str(caught.value)


def test_a_minari_dataset_that_is_not_here_is_not_fetched(datasets: Path) -> None:
    with pytest.raises(UsageError, match="minari download own/absent-v0"):
        read_logged("minari:own/absent-v0", TASK)


@quiet
def test_a_damaged_minari_dataset_is_one_sentence(datasets: Path) -> None:
    collect_minari(TASK.make().env, TASK, 1, "own/corridor-v0")
    (file,) = datasets.glob("own/corridor-v0/data/*.hdf5")
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read_logged("minari:own/corridor-v0", TASK)
    assert "\n" not in str(caught.value)
