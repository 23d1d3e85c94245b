"""Every baseline learns the point mass, and those that plan or expand the pendulum."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from pombu.algorithms.registry import ALGORITHMS, make, preset
from pombu.data.episodes import EpisodeStore
from pombu.envs import load
from pombu.envs.environment import ACTION_BOUND
from pombu.training.algorithm import StageTimer
from pombu.training.loop import evaluate


def optimal(observations: np.ndarray, deterministic: bool, key: jax.Array) -> Any:
    """Straight to the origin, as fast as the box allows: nothing is better."""
    return np.clip(-observations / ACTION_BOUND, -1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "pombu"])
def test_point_to_within_ten_percent(name: str) -> None:
    config = preset(name, "fast", "Point2D")
    learner = make(name, load(config.env), config)
    state, episodes = learner.init(0), EpisodeStore()
    best = evaluate(learner.task, optimal, 100).mean
    reached = -np.inf
    for _ in range(config.iterations):
        state, _ = learner.iterate(state, episodes, StageTimer())
        policy = learner.policy(state)
        reached = max(reached, evaluate(learner.task, policy, 100).mean)
        if reached >= 1.1 * best:
            break
    assert reached >= 1.1 * best, f"{reached:.2f}, where {best:.2f} is optimal"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mbmpo", "pets", "steve"])
def test_pendulum_within_twenty_thousand_steps(name: str) -> None:
    config = preset(name, "fast", "Pendulum-v1")
    if name != "steve":
        config = replace(config, model=replace(config.model, reward="learned"))
    learner = make(name, load(config.env), config)
    state, episodes, reached = learner.init(0), EpisodeStore(), -np.inf
    while int(state.real_steps) < 20_000 and reached < -300:
        state, metrics = learner.iterate(state, episodes, StageTimer())
        reached = max(reached, metrics["return_deterministic"])
    assert reached >= -300
