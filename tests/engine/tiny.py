"""Small tasks, configs and models that compile and run in a moment."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pombu.algorithms.config import ExplorationConfig
from pombu.algorithms.pombu.config import POMBUConfig
from pombu.algorithms.pombu.learner import Learner
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import ImaginationConfig, ModelConfig, ReturnConfig
from pombu.envs import ActionBox, EnvConfig, Task
from pombu.optim.config import PolicyConfig, ValueConfig
from pombu.training.algorithm import StageTimer

CONFIG = POMBUConfig(
    env=EnvConfig(id="Point2D", horizon=6),
    updates=2,
    trajectories=3,
    iterations=4,
    evaluation_episodes=2,
    capacity=200,
    model=ModelConfig(
        members=3,
        hidden=(8, 8),
        learning_rate=1e-2,
        batch_size=5,
        validation_rows=10,
        validate_every=2,
        patience=4,
        max_epochs=10,
        reinitialise_every=0,
    ),
    imagination=ImaginationConfig(trajectories=4, shards=2),
    policy=PolicyConfig(
        hidden=(6, 6),
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        epochs=2,
        minibatch=7,
        reset_std_iterations=1,
    ),
    value=ValueConfig(
        hidden=(5, 5),
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        epochs=2,
        minibatch=8,
    ),
    returns=ReturnConfig(reward_clip=None),
    exploration=ExplorationConfig(policies=2, trajectories=4),
)


def change(config: Any, **fields: Any) -> Any:
    """A config with fields replaced, those of its parts as `part__field`."""
    for name, value in fields.items():
        part, _, inner = name.partition("__")
        if inner:
            value = replace(getattr(config, part), **{inner: value})
        config = replace(config, **{part: value})
    return config


def run(learner: Learner, seed: int, iterations: int) -> tuple[Any, list[Any]]:
    """The last state, and metrics and counters of every iteration."""
    state, episodes, rows = learner.init(seed), EpisodeStore(), []
    for _ in range(iterations):
        state, metrics = learner.iterate(state, episodes, StageTimer())
        counted = ("iteration", "real_steps", "imagined_steps")
        rows.append({name: int(getattr(state, name)) for name in counted} | metrics)
    return state, rows


class Mimic:
    """A contract for hand-made tasks: reward and termination given as functions."""

    def __init__(self, reward: Any, terminal: Any = None) -> None:
        self._reward, self._terminal = reward, terminal

    def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return self._reward(obs, action, next_obs)

    def terminal(self, obs: Any, action: Any, next_obs: Any) -> Any:
        if self._terminal is None:
            return next_obs[..., 0] != next_obs[..., 0]
        return self._terminal(obs, action, next_obs)

    def initial(self, key: Any, n: int) -> Any:
        return jax.random.normal(key, (n, 2))


def hand_made_task(contract: Any, horizon: int, observations: int = 2) -> Task:
    """A task without an environment behind it, only to be imagined."""
    return Task(
        config=EnvConfig(id="hand/made", horizon=horizon),
        observation_dim=observations,
        action_dim=1,
        horizon=horizon,
        action_box=ActionBox((-2.0,), (1.0,)),
        contract=contract,
    )


def same(first: Any, second: Any) -> bool:
    """Whether two pytrees hold the same numbers, bit for bit."""
    one, two = jax.tree.leaves(first), jax.tree.leaves(second)
    return len(one) == len(two) and all(
        np.array_equal(np.asarray(a), np.asarray(b))
        for a, b in zip(one, two, strict=True)
    )


def uniform(members: int) -> Any:
    return jnp.full(members, 1.0 / members)
