"""Collected episodes are what the environment did, and a fault loses none of it."""

import dataclasses
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from toys import Counter

from pombu.envs import (
    CATALOGUE,
    CollectionError,
    Episode,
    catalogue,
    collect,
    collect_rounds,
    load,
)
from pombu.envs.catalogue import Entry
from pombu.envs.collection import Act, _no_numbers
from pombu.errors import RunError, UsageError

each_task = pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])


@each_task
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_batched_equals_single_stepping(name: str, noise: float) -> None:
    task = load(name, horizon=60, observation_noise=noise)
    weights = np.random.default_rng(0).normal(
        size=(task.observation_dim, task.action_dim)
    )

    def act(obs: np.ndarray, step: int) -> np.ndarray:
        return np.sin(obs @ weights + step)

    seeds = [5, 1, 9]
    together = collect(task, act, seeds)
    separate = collect(task, act, seeds, batched=False)
    alone = [collect(task, act, [seed], batched=False)[0] for seed in seeds]
    for a, b, c in zip(together, separate, alone, strict=True):
        for field in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
        # Alone, the policy's matrix product may round differently.
        np.testing.assert_allclose(a.observations[:5], c.observations[:5], atol=1e-3)


FALLING = dataclasses.replace(
    next(entry for entry in CATALOGUE if entry.name == "Walker2d"),
    name="FallingWalker",
    entry_point="toys:FallingWalker",
    options={},
)


@pytest.fixture
def falling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Entry]:
    """A terminating MuJoCo task in the catalogue."""
    monkeypatch.setattr(catalogue, "CATALOGUE", (*CATALOGUE, FALLING))
    gymnasium.register(FALLING.id, FALLING.entry_point, max_episode_steps=200)
    yield FALLING
    del gymnasium.registry[FALLING.id]


def assert_same(one: Episode, other: Episode) -> None:
    for field in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    assert one.terminated == other.terminated


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_batched_episodes_may_end_at_different_times(
    falling: Entry, noise: float
) -> None:
    task = load(falling.name, horizon=80, observation_noise=noise)
    # Some fall soon, some late, and one stands still until the time limit.
    strength = np.array([1.0, 0.7, 0.0, 1.0, 0.4])[:, None]

    def act(obs: np.ndarray, step: int) -> np.ndarray:
        return strength * np.sin(np.arange(6) + step / 4)

    seeds = [5, 1, 9, 3, 4]
    batched = collect(task, act, seeds)
    separate = collect(task, act, seeds, batched=False)
    for one, other in zip(batched, separate, strict=True):
        assert_same(one, other)
    lengths = [len(episode) for episode in batched]
    assert len(set(lengths)) >= 3
    assert [e.terminated for e in batched] == [length < 80 for length in lengths]
    assert {e.terminated for e in batched} == {True, False}


def test_further_rounds_of_a_terminating_task(falling: Entry) -> None:
    """Each round begins with all episodes running, however the last one ended."""
    task = load(falling.name, horizon=80)

    def round_of(index: int) -> tuple[Act, list[int]]:
        rng = np.random.default_rng(index)
        return lambda *_: rng.uniform(-1, 1, (3, 6)), [index * 3 + i for i in range(3)]

    batched = collect_rounds(task, round_of, least_steps=300)
    separate = collect_rounds(task, round_of, least_steps=300, batched=False)
    assert len(batched) > 3
    for one, other in zip(batched, separate, strict=True):
        assert_same(one, other)


@each_task
def test_batch_equals_a_loop_over_env_step(name: str) -> None:
    task = load(name, horizon=40)
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (40, 2, task.action_dim))
    episodes = collect(task, lambda obs, step: actions[step], [7, 8])
    for row, (seed, episode) in enumerate(zip([7, 8], episodes, strict=True)):
        env = task.make()
        observation, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(episode.observations[0], observation)
        for step in range(40):
            action = task.action_box.to_box(actions[step, row].astype(np.float32))
            observation, reward, *_ = env.step(action)
            np.testing.assert_array_equal(episode.actions[step], action)
            np.testing.assert_array_equal(episode.observations[step + 1], observation)
            assert episode.rewards[step] == np.float32(reward)
        assert not episode.terminated
        assert episode.observations.dtype == np.float32


def test_policy_sees_the_latest_observations_and_the_step() -> None:
    task = load("Point2D", horizon=5)
    calls = []

    def act(obs: np.ndarray, step: int) -> np.ndarray:
        calls.append((obs.copy(), step))
        return np.zeros((2, 2))

    episodes = collect(task, act, [0, 1])
    assert [step for _, step in calls] == list(range(5))
    for row in range(2):
        seen = np.stack([obs[row] for obs, _ in calls])
        np.testing.assert_array_equal(seen, episodes[row].observations[:-1])


def test_no_seeds_no_episodes() -> None:
    assert collect(load("Point2D"), lambda obs, step: obs, []) == []


def test_foreign_environment_is_flattened_and_its_actions_mapped() -> None:
    task = load("toys:Counter")
    assert (task.observation_dim, task.action_dim) == (2, 2)
    assert task.contract is None
    assert task.horizon == 1000
    policy = np.array([[-1.0, 7.0], [0.0, 0.5]])
    episodes = collect(task, lambda obs, step: policy, [0, 1])
    for episode, action in zip(episodes, [(-3.0, 5.0), (1.0, 3.0)], strict=True):
        assert episode.terminated
        assert episode.observations.shape == (5, 2)
        np.testing.assert_array_equal(episode.actions, [action] * 4)
        first = episode.observations[0, 0]
        np.testing.assert_array_equal(episode.rewards, first + np.arange(1, 5))


def test_time_limit_is_not_termination() -> None:
    (episode,) = collect(
        load("toys:Counter", horizon=3), lambda obs, step: np.zeros((1, 2)), [0]
    )
    assert len(episode) == 3
    assert not episode.terminated


def test_termination_at_once() -> None:
    task = load("toys:AtOnce")
    episodes = collect(task, lambda obs, step: np.zeros((3, 2)), range(3))
    assert [len(episode) for episode in episodes] == [1, 1, 1]


def test_episodes_of_different_length() -> None:
    task = load("InvertedPendulum-v5")
    rng = np.random.default_rng(0)
    episodes = collect(task, lambda obs, step: rng.uniform(-1, 1, (4, 1)), range(4))
    assert len({len(episode) for episode in episodes}) > 1
    assert all(episode.terminated for episode in episodes)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Raises", "raised OSError: the cable came loose"),
        ("NanReward", "a reward that is not finite"),
        ("TextReward", "gave 'much' as reward, which is no number"),
        ("ComplexReward", "as reward, which is no number"),
        ("NanObservation", "an observation that is not finite"),
        ("OtherShape", "5 entries where its space has 2"),
    ],
)
def test_faults_keep_what_was_collected(name: str, message: str) -> None:
    task = load(f"toys:{name}")
    with pytest.raises(RunError, match=message) as caught:
        collect(task, lambda obs, step: np.zeros((2, 2)), [0, 1])
    assert isinstance(caught.value, CollectionError)
    assert "\n" not in str(caught.value)
    episodes = caught.value.episodes
    assert [len(episode) for episode in episodes] == [2, 2]
    for episode in episodes:
        assert episode.observations.shape == (3, 2)
        assert np.isfinite(episode.observations).all()
        assert not episode.terminated


def test_flags_are_no_text() -> None:
    assert _no_numbers(1.0, np.bool_(True), 0) is None
    assert _no_numbers(None, None, None) is None
    said = _no_numbers(1.0, "no", False)
    assert said == "gave 'no' as terminated, which is no number"


def test_one_rows_fault_does_not_lose_anothers_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Counter.step

    def fail_on_odd_start(self: Counter, action: np.ndarray) -> tuple:
        if self.received and self.count % 2:
            raise OSError("odd")
        return step(self, action)

    monkeypatch.setattr(Counter, "step", fail_on_odd_start)
    task = load("toys:Counter")
    with pytest.raises(CollectionError) as caught:
        collect(task, lambda obs, step: np.zeros((6, 2)), range(6))
    lengths = [len(episode) for episode in caught.value.episodes]
    assert set(lengths) == {1, 2}


def test_bad_policies() -> None:
    task = load("HalfCheetah")

    def diverge(obs: np.ndarray, step: int) -> np.ndarray:
        return np.full((2, 6), np.nan if step == 3 else 0.0)

    with pytest.raises(CollectionError, match="not finite in step 3") as caught:
        collect(task, diverge, [0, 1])
    assert [len(episode) for episode in caught.value.episodes] == [3, 3]
    with pytest.raises(UsageError, match=r"shape \(6,\)"):
        collect(task, lambda obs, step: np.zeros(6), [0, 1])


def test_unstable_physics_are_reported_not_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = load("HalfCheetah")
    dynamics = type(task.make().unwrapped.physics)
    monkeypatch.setattr(dynamics, "start", lambda self, rng: np.full(18, 1e9))
    with pytest.raises(CollectionError, match="not finite"):
        collect(task, lambda obs, step: np.ones((2, 6)), [0, 1])


def test_foreign_noise_is_seeded_and_tells_the_clean_observation() -> None:
    task = load("Pendulum-v1", observation_noise=0.2)
    clean, noisy = load("Pendulum-v1").make(), task.make()
    gaps = []
    for seed in range(50):
        plain, _ = clean.reset(seed=seed)
        seen, info = noisy.reset(seed=seed)
        np.testing.assert_array_equal(info["clean_observation"], plain)
        np.testing.assert_array_equal(noisy.reset(seed=seed)[0], seen)
        gaps.append(seen - plain)
    assert np.std(gaps) == pytest.approx(0.2, rel=0.2)
