"""Noise on observations: the paper's text and its published code."""

from typing import Any

import jax
import numpy as np
import pytest

from pombu.envs import EnvConfig, check, collect, load
from pombu.envs.config import require_noise
from pombu.errors import UsageError

KINDS = ("gaussian", "uniform")
TASKS = ("HalfCheetah", "Point2D", "Pendulum-v1")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_task = pytest.mark.parametrize("name", TASKS)


def walk(config: dict[str, Any], seed: int, steps: int) -> tuple[np.ndarray, ...]:
    """Noise of the first observation, noise of later ones, rewards."""
    task = load(EnvConfig(**config))
    env = task.make()
    observation, info = env.reset(seed=seed)
    first = observation - info.get("clean_observation", observation)
    rng = np.random.default_rng(0)
    later, rewards = [], []
    for _ in range(steps):
        action = task.action_box.to_box(rng.uniform(-1, 1, task.action_dim))
        given = task.action_box.to_env(action.astype(np.float32))
        observation, reward, _, _, info = env.step(given)
        later.append(observation - info.get("clean_observation", observation))
        rewards.append(reward)
    env.close()
    return first, np.stack(later), np.asarray(rewards)


@each_task
@each_kind
def test_distribution_first_observation_and_reward(name: str, kind: str) -> None:
    noisy = {"id": name, "observation_noise": 0.3, "noise_kind": kind, "horizon": 150}
    first, later, rewards = walk(noisy, 5, 150)
    assert abs(later.mean()) < 0.08
    if kind == "gaussian":
        assert (first != 0).all()
        assert later.std() == pytest.approx(0.3, rel=0.12)
        assert np.abs(later).max() > 0.6
    else:
        assert (first == 0).all()
        assert later.std() == pytest.approx(0.3 / np.sqrt(3), rel=0.12)
        # Subtracting float32 numbers leaves their rounding.
        assert 0.28 < np.abs(later).max() < 0.3 + 1e-5
    _, _, clean = walk({"id": name, "horizon": 150}, 5, 150)
    np.testing.assert_array_equal(rewards, clean)


@each_task
@each_kind
def test_the_same_seed_gives_the_same_noise(name: str, kind: str) -> None:
    noisy = {"id": name, "observation_noise": 0.3, "noise_kind": kind}
    one, again, other = (walk(noisy, seed, 20)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).all()


@each_kind
@pytest.mark.parametrize("name", ["HalfCheetah", "Point2D"])
def test_together_equals_one_by_one(name: str, kind: Any) -> None:
    task = load(name, horizon=12, observation_noise=0.2, noise_kind=kind)

    def act(observations: np.ndarray, step: int) -> np.ndarray:
        return np.tanh(observations[:, : task.action_dim] + step)

    together, alone = (collect(task, act, [3, 4], batched) for batched in (True, False))
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a.observations, b.observations)
        np.testing.assert_array_equal(a.rewards, b.rewards)


@each_kind
def test_imagined_starts_have_the_first_observations_noise(kind: Any) -> None:
    task = load("HalfCheetah", observation_noise=0.5, noise_kind=kind)
    assert task.contract is not None
    spread = np.asarray(task.contract.initial(jax.random.key(0), 500)).std(0)
    assert (spread > 0.4).all() == (kind == "gaussian")
    assert check(task, steps=60).passed


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="noise_kind is 'pink': give 'gaussian'"):
        require_noise(0.1, "pink")
