"""States that hold several observations, newest first."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pombu.data import read_logged, write_logged
from pombu.envs import EnvConfig, check, collect, load
from pombu.errors import UsageError

HISTORY = 3


def stacked_slowly(frames: np.ndarray, history: int) -> np.ndarray:
    """The definition: entry j of state t is frame t - j, or the first one."""
    return np.stack(
        [
            np.concatenate([frames[max(t - j, 0)] for j in range(history)])
            for t in range(len(frames))
        ]
    )


def act(observations: np.ndarray, step: int) -> np.ndarray:
    """The same for all histories, and all sizes of action."""
    return np.full((len(observations), ACTIONS[0]), np.sin(step))


ACTIONS = [0]


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("name", ["HalfCheetah", "Point2D", "Pendulum-v1"])
@pytest.mark.parametrize("batched", [True, False])
def test_stacking_by_a_plain_loop(name: str, noise: float, batched: bool) -> None:
    options: Any = {"horizon": 7, "observation_noise": noise}
    single, stacked = load(name, **options), load(name, history=HISTORY, **options)
    ACTIONS[0] = single.action_dim
    assert stacked.frame_dim == single.observation_dim == single.frame_dim
    assert stacked.observation_dim == HISTORY * single.observation_dim
    for plain, deep in zip(
        collect(single, act, [5, 6], batched),
        collect(stacked, act, [5, 6], batched),
        strict=True,
    ):
        expected = stacked_slowly(plain.observations, HISTORY)
        np.testing.assert_array_equal(deep.observations, expected)
        np.testing.assert_array_equal(deep.actions, plain.actions)
        np.testing.assert_array_equal(deep.rewards, plain.rewards)


def test_contract_is_about_the_newest_frame() -> None:
    single, stacked = load("Walker2d"), load("Walker2d", history=HISTORY)
    one, three = single.contract, stacked.contract
    assert one is not None
    assert three is not None
    assert stacked.known == single.known
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 5, stacked.observation_dim))
    actions = rng.normal(size=(5, stacked.action_dim))
    frame = single.observation_dim
    for name in ("reward", "terminal"):
        expected = getattr(one, name)(before[:, :frame], actions, after[:, :frame])
        given = getattr(three, name)(before, actions, after)
        np.testing.assert_array_equal(given, expected)
    starts = np.asarray(one.initial(jax.random.key(1), 4))
    given = np.asarray(three.initial(jax.random.key(1), 4))
    np.testing.assert_array_equal(given, np.tile(starts, HISTORY))


@pytest.mark.parametrize("name", ["HalfCheetah", "Pendulum-v1", "toys:Endless"])
def test_the_checker_looks_at_frames(name: str) -> None:
    report = check(load(name, history=2, horizon=40), steps=60)
    assert report.passed, report


@pytest.mark.parametrize("history", [0, -2])
def test_impossible_histories_are_refused(history: int) -> None:
    with pytest.raises(UsageError, match=f"history is {history}"):
        EnvConfig(history=history)


def test_logged_frames_are_stacked(tmp_path: Path) -> None:
    single = load("Point2D", horizon=5)
    stacked = load("Point2D", horizon=5, history=HISTORY)
    ACTIONS[0] = single.action_dim
    write_logged(tmp_path / "frames.npz", collect(single, act, [1, 2]))
    write_logged(tmp_path / "stacks.npz", collect(stacked, act, [1, 2]))
    from_frames, from_stacks = (
        read_logged(tmp_path / name, stacked) for name in ("frames.npz", "stacks.npz")
    )
    for one, two in zip(from_frames, from_stacks, strict=True):
        np.testing.assert_array_equal(one.observations, two.observations)
    with pytest.raises(UsageError, match="entries each"):
        read_logged(tmp_path / "stacks.npz", single)
