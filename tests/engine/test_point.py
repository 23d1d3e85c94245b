"""Point2D, where the best return is known."""

import numpy as np
import pytest

from pombu.algorithms.pombu.learner import Learner
from pombu.algorithms.registry import preset
from pombu.data.episodes import EpisodeStore
from pombu.envs import load
from pombu.rng import Keys
from pombu.training.algorithm import StageTimer


def best_return(start: np.ndarray, horizon: int) -> float:
    """Every coordinate goes to 0 by 0.1 per step."""
    steps = np.arange(1, horizon + 1)[:, None]
    return -float((np.maximum(np.abs(start) - 0.1 * steps, 0.0) ** 2).sum())


def test_the_optimum_is_about_minus_twelve() -> None:
    starts = np.random.default_rng(0).uniform(-2, 2, (20_000, 2))
    assert np.mean([best_return(s, 30) for s in starts]) == pytest.approx(
        -12.03, rel=0.02
    )


@pytest.mark.slow
def test_fast_comes_within_five_percent_of_the_optimum() -> None:
    """The deterministic policy against the optimum from the same starts."""
    config = preset("pombu", "fast", "Point2D")
    task = load(config.env)
    learner = Learner(task, config)
    state, episodes = learner.init(0), EpisodeStore()
    for _ in range(config.iterations):
        state, row = learner.iterate(state, episodes, StageTimer())
    half = config.evaluation_episodes
    seeds = Keys(0, config.iterations - 1).episodes("evaluate", 2 * half)[half:]
    env = task.make()
    starts = [env.reset(seed=seed)[0] for seed in seeds]
    env.close()
    best = np.mean([best_return(start, task.horizon) for start in starts])
    assert row["return_deterministic"] >= 1.05 * best
