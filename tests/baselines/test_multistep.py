"""SLBO's multi-step loss against a loop, and the training that follows it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.algorithms.slbo.learner import (
    init_network,
    multistep_loss,
    network_adam,
    network_dynamics,
    train_network,
)
from pombu.data import Transitions, learn_from, no_experience, transitions
from pombu.dynamics.config import MultiStepModelConfig
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task, load
from pombu.errors import UsageError

CONFIG = MultiStepModelConfig(hidden=(8,), steps=3, batch_size=4)


@pytest.fixture(scope="module")
def task() -> Task:
    return load("Point2D", horizon=6)


def episodes_of(lengths: list[int], seed: int = 0) -> list[Episode]:
    draw = np.random.default_rng(seed)
    return [
        Episode(
            observations=draw.normal(size=(length + 1, 2)).astype(np.float32),
            actions=draw.uniform(-0.1, 0.1, (length, 2)).astype(np.float32),
            rewards=draw.normal(size=length).astype(np.float32),
            terminated=False,
        )
        for length in lengths
    ]


def world_for(
    task: Task, episodes: list[Episode], config: MultiStepModelConfig
) -> Dynamics:
    experience = learn_from(no_experience(2, 2), episodes, 0.99)
    network = init_network(jax.random.key(1), task, config)
    return network_dynamics(network, experience, task, config)


def loss_by_a_loop(
    dynamics: Dynamics, data: Transitions, first: list[int], steps: int
) -> float:
    """One sequence after the other, one step after the other, in float64."""
    members: Any = dynamics.members
    weights = [np.asarray(w[0], np.float64) for w in members.weights]
    biases = [np.asarray(b[0], np.float64) for b in members.biases]
    norms = []
    for start in first:
        state = np.asarray(data.states[start], np.float64)
        for row in range(start, start + steps):
            x = np.concatenate(
                [
                    (state - dynamics.observation.mean) / dynamics.observation.std,
                    (data.actions[row] - dynamics.action.mean) / dynamics.action.std,
                ]
            )
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                x = np.maximum(x @ weight + bias, 0)
            out = x @ weights[-1] + biases[-1]
            change = data.following[row] - data.states[row]
            target = (change - dynamics.delta.mean) / dynamics.delta.std
            if dynamics.reward is not None:
                reward = (
                    data.rewards[row] - dynamics.reward.mean
                ) / dynamics.reward.std
                target = np.concatenate([target, reward])
            norms.append(np.sqrt(np.mean((out - target) ** 2)))
            if data.goes_on[row]:
                state = state + out[:2] * dynamics.delta.std + dynamics.delta.mean
            elif row + 1 < start + steps:
                state = np.asarray(data.states[row + 1], np.float64)
    return float(np.mean(norms))


@pytest.mark.parametrize("reward", ["known", "learned"])
def test_the_loss_is_that_of_a_loop(task: Task, reward: str) -> None:
    config = MultiStepModelConfig(hidden=(8, 5), steps=3, reward=reward)
    episodes = episodes_of([5, 4, 6])
    dynamics, data = world_for(task, episodes, config), transitions(episodes, 20)
    # Sequences inside an episode, over one end, and over an end at their last step.
    first = [0, 3, 4, 7, 12]
    rows = np.array(first) + np.arange(3)[:, None]
    sequence = jax.tree.map(lambda x: x[rows], data)
    found = multistep_loss(dynamics, sequence)
    assert float(found) == pytest.approx(
        loss_by_a_loop(dynamics, data, first, 3), rel=1e-5
    )


def test_the_norm_is_not_squared(task: Task) -> None:
    """Where the network says 0, ten times the error is ten times the loss."""
    episodes = episodes_of([6])
    dynamics = world_for(task, episodes, CONFIG)
    silent = jax.tree.map(jnp.zeros_like, dynamics.members)
    data = transitions(episodes, 6)
    sequence = jax.tree.map(lambda x: x[:1, None], data)

    def loss(scale: float) -> float:
        far = sequence.states + dynamics.delta.mean + scale * dynamics.delta.std
        moved = sequence._replace(following=far)
        placed = replace(dynamics, members=silent)
        return float(multistep_loss(placed, moved))

    assert loss(1.0) == pytest.approx(1.0, rel=1e-4)
    assert loss(10.0) == pytest.approx(10.0, rel=1e-4)


def test_rows_know_where_episodes_end() -> None:
    data = transitions(episodes_of([3, 2]), 4)
    assert data.states.shape == (8, 2), "room is doubled until all rows fit"
    np.testing.assert_array_equal(data.goes_on, [1, 1, 0, 1, 0, 0, 0, 0])


def test_training_learns_the_point_and_repeats_itself(task: Task) -> None:
    draw = np.random.default_rng(3)
    episodes = []
    for _ in range(8):
        actions = draw.uniform(-0.1, 0.1, (6, 2)).astype(np.float32)
        start = draw.uniform(-2, 2, (1, 2))
        states = np.concatenate([start, start + np.cumsum(actions, 0)])
        rewards = np.zeros(6, np.float32)
        episodes.append(Episode(states.astype(np.float32), actions, rewards, False))
    config = MultiStepModelConfig(hidden=(32,), steps=2, batch_size=16)
    data = transitions(episodes, 48)

    def train(updates: int) -> tuple[Dynamics, float]:
        dynamics = world_for(task, episodes, config)
        memory = network_adam(config).init(dynamics.members)
        dynamics, _, loss = train_network(
            dynamics, memory, data, 48, updates, config, (1, 2)
        )
        return dynamics, float(loss)

    once, first = train(400)
    again, second = train(400)
    assert first == second
    for one, other in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    sequence = jax.tree.map(lambda x: x[np.arange(2)[:, None] + np.arange(40)], data)
    assert float(multistep_loss(once, sequence)) < 0.15


def test_too_little_data_for_the_loss_is_refused(task: Task) -> None:
    episodes = episodes_of([2])
    dynamics, data = world_for(task, episodes, CONFIG), transitions(episodes, 4)
    memory = network_adam(CONFIG).init(dynamics.members)
    with pytest.raises(UsageError, match=r"model\.steps is 3, more than the 2 real"):
        train_network(dynamics, memory, data, 2, 1, CONFIG, (0,))
