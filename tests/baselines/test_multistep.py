"""SLBO's multi-step loss against a loop, and the training that follows it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.config import MultiStepModelConfig
from pombu.data import Transitions, learn_from, no_experience, transitions
from pombu.envs import Episode, Task, load
from pombu.errors import UsageError
from pombu.multistep import (
    init_network,
    multistep_loss,
    network_adam,
    network_world,
    train_network,
)
from pombu.worlds import World

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
) -> World:
    experience = learn_from(no_experience(2, 2), episodes, 0.99)
    network = init_network(jax.random.key(1), task, config)
    return network_world(network, experience, task, config)


def loss_by_a_loop(
    world: World, data: Transitions, first: list[int], steps: int
) -> float:
    """One sequence after the other, one step after the other, in float64."""
    weights = [np.asarray(w[0], np.float64) for w in world.layers.weights]
    biases = [np.asarray(b[0], np.float64) for b in world.layers.biases]
    norms = []
    for start in first:
        state = np.asarray(data.states[start], np.float64)
        for row in range(start, start + steps):
            x = np.concatenate(
                [
                    (state - world.observation.mean) / world.observation.std,
                    (data.actions[row] - world.action.mean) / world.action.std,
                ]
            )
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                x = np.maximum(x @ weight + bias, 0)
            out = x @ weights[-1] + biases[-1]
            change = data.following[row] - data.states[row]
            target = (change - world.delta.mean) / world.delta.std
            if world.reward is not None:
                reward = (data.rewards[row] - world.reward.mean) / world.reward.std
                target = np.concatenate([target, reward])
            norms.append(np.sqrt(np.mean((out - target) ** 2)))
            if data.goes_on[row]:
                state = state + out[:2] * world.delta.std + world.delta.mean
            elif row + 1 < start + steps:
                state = np.asarray(data.states[row + 1], np.float64)
    return float(np.mean(norms))


@pytest.mark.parametrize("reward", ["known", "learned"])
def test_the_loss_is_that_of_a_loop(task: Task, reward: str) -> None:
    config = MultiStepModelConfig(hidden=(8, 5), steps=3, reward=reward)
    episodes = episodes_of([5, 4, 6])
    world, data = world_for(task, episodes, config), transitions(episodes, 20)
    # Sequences inside an episode, over one end, and over an end at their last step.
    first = [0, 3, 4, 7, 12]
    rows = np.array(first) + np.arange(3)[:, None]
    sequence = jax.tree.map(lambda x: x[rows], data)
    found = multistep_loss(world, sequence, "float32")
    assert float(found) == pytest.approx(
        loss_by_a_loop(world, data, first, 3), rel=1e-5
    )


def test_the_norm_is_not_squared(task: Task) -> None:
    """Where the network says 0, ten times the error is ten times the loss."""
    episodes = episodes_of([6])
    world = world_for(task, episodes, CONFIG)
    silent = jax.tree.map(jnp.zeros_like, world.layers)
    data = transitions(episodes, 6)
    sequence = jax.tree.map(lambda x: x[:1, None], data)

    def loss(scale: float) -> float:
        far = sequence.states + world.delta.mean + scale * world.delta.std
        moved = sequence._replace(following=far)
        placed = World(silent, *list(vars(world).values())[1:])
        return float(multistep_loss(placed, moved, "float32"))

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

    def train(updates: int) -> tuple[World, float]:
        world = world_for(task, episodes, config)
        memory = network_adam(config).init(world.layers)
        world, _, loss = train_network(world, memory, data, 48, updates, config, (1, 2))
        return world, float(loss)

    once, first = train(400)
    again, second = train(400)
    assert first == second
    for one, other in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    sequence = jax.tree.map(lambda x: x[np.arange(2)[:, None] + np.arange(40)], data)
    assert float(multistep_loss(once, sequence, "float32")) < 0.15


def test_too_little_data_for_the_loss_is_refused(task: Task) -> None:
    episodes = episodes_of([2])
    world, data = world_for(task, episodes, CONFIG), transitions(episodes, 4)
    memory = network_adam(CONFIG).init(world.layers)
    with pytest.raises(UsageError, match=r"model\.steps is 3, more than the 2 real"):
        train_network(world, memory, data, 2, 1, CONFIG, (0,))
