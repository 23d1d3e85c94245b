"""STEVE's presets.

`paper` has the published values: four updates per real step, on wide networks.
"""

from dataclasses import replace

from pombu.algorithms.config import horizon_of, is_point, trajectories
from pombu.algorithms.steve.config import (
    ActorCriticConfig,
    ExpansionModelConfig,
    STEVEConfig,
)

_REAL_STEPS = 1000
_TOTAL = 200_000


def paper(task: str, horizon: int | None) -> STEVEConfig:
    """The published values, the same for every task."""
    length = horizon_of(task, horizon)
    number = trajectories(_REAL_STEPS, length)
    return STEVEConfig(
        trajectories=number, iterations=max(_TOTAL // (number * length), 1)
    )


def fast(task: str, horizon: int | None) -> STEVEConfig:
    """Two updates per step, transition networks of two layers of 256, smaller batches.

    Learning starts after 2000 random steps, and targets are refreshed more often, since
    there are fewer updates between two of them. Rewards and ends are read from networks
    of one layer: in the published sizes they are half of an update's arithmetic.
    """
    if is_point(task):
        return _fast_point(paper(task, horizon))
    return replace(
        paper(task, horizon),
        updates_per_step=2.0,
        learning_starts=2000,
        batch_size=256,
        target_period=200,
        model=ExpansionModelConfig(
            hidden=(256, 256),
            reward_hidden=(128,),
            learning_rate=1e-3,
            weight_decay=1e-5,
            pretraining=2000,
        ),
        actor_critic=ActorCriticConfig(
            actor_hidden=(128, 128), critic_hidden=(128, 128), learning_rate=1e-3
        ),
    )


def _fast_point(base: STEVEConfig) -> STEVEConfig:
    return replace(
        base,
        trajectories=10,
        iterations=20,
        updates_per_step=2.0,
        learning_starts=600,
        batch_size=128,
        gamma=0.95,
        target_period=50,
        explore_chance=0.2,
        model=ExpansionModelConfig(
            hidden=(64, 64),
            reward_hidden=(64, 64),
            learning_rate=1e-3,
            weight_decay=1e-5,
            pretraining=500,
        ),
        actor_critic=ActorCriticConfig(
            actor_hidden=(64, 64), critic_hidden=(64, 64), learning_rate=1e-3
        ),
    )


def smoke(task: str, horizon: int | None) -> STEVEConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    return replace(
        fast(task, horizon),
        trajectories=2,
        iterations=8,
        evaluation_episodes=2,
        updates_per_step=0.1,
        learning_starts=horizon_of(task, horizon),
        batch_size=16,
        capacity=10_000,
        target_period=5,
        model=ExpansionModelConfig(
            members=2, hidden=(16, 16), reward_hidden=(8,), pretraining=10
        ),
        actor_critic=ActorCriticConfig(
            members=2, actor_hidden=(16,), critic_hidden=(16,)
        ),
    )
