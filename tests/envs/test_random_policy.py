"""The uniform random policy scores what the benchmark published for it."""

import numpy as np
import pytest

from pombu.envs import collect, load


@pytest.mark.parametrize(
    ("name", "bonus", "mean", "deviation"),
    [
        ("HalfCheetah", 0.0, -288, 66),
        ("Swimmer", 0.0, 1, 11),
        ("Ant", 1.0, 474, 41),
        ("Walker2d", 1.0, -2457, 345),
    ],
)
def test_published_random_returns(
    name: str, bonus: float, mean: float, deviation: float
) -> None:
    task = load(name, horizon=1000, alive_bonus=bonus)
    rng = np.random.default_rng(0)
    episodes = collect(
        task, lambda obs, step: rng.uniform(-1, 1, (20, task.action_dim)), range(20)
    )
    assert [len(episode) for episode in episodes] == [1000] * 20
    returns = [episode.rewards.sum() for episode in episodes]
    assert abs(np.mean(returns) - mean) < 2 * deviation
