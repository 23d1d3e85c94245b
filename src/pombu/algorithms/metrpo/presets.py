"""ME-TRPO's presets.

`paper` has the values behind the published numbers (the benchmark code from which the
paper took its ME-TRPO column), with its batches of steps cut into the task's episodes.
"""

from dataclasses import replace

from pombu.algorithms.config import (
    EPISODE_STEPS,
    FIRST_LOG_STD,
    LONG_HORIZON,
    branches,
    fast_baseline,
    fast_model,
    fast_point_model,
    fast_returns,
    horizon_of,
    is_foreign,
    is_point,
    smoke_model,
    trajectories,
)
from pombu.algorithms.metrpo.config import METRPOConfig
from pombu.dynamics.config import ImaginationConfig
from pombu.optim.config import TRPOPolicyConfig

_REAL_STEPS = 6000
_IMAGINED_STEPS = 50_000


def paper(task: str, horizon: int | None) -> METRPOConfig:
    """The published values; Ant and Walker2d have some of their own."""
    length = horizon_of(task, horizon)
    config = METRPOConfig(
        trajectories=trajectories(_REAL_STEPS, length),
        imagination=ImaginationConfig(
            trajectories=trajectories(_IMAGINED_STEPS, length, 2)
        ),
    )
    if task == "Ant":
        return replace(
            config,
            model=replace(config.model, hidden=(1000, 1000)),
            returns=replace(config.returns, lam=0.97),
        )
    if task == "Walker2d":
        return replace(
            config,
            model=replace(config.model, members=1),
            policy=replace(config.policy, hidden=(64, 64)),
        )
    return config


def fast(task: str, horizon: int | None) -> METRPOConfig:
    """Smaller members, bounded fits, and a third of the real steps per iteration.

    More frequent iterations use the same real steps for three times as many updates.
    First noise, branched imagination with V beyond it, and units of rewards and
    advantages are those of the other `fast` presets.
    """
    if is_point(task):
        return _fast_point(horizon_of(task, horizon))
    length = horizon_of(task, horizon)
    own = length >= LONG_HORIZON and not is_foreign(task)
    collected = EPISODE_STEPS if own else length
    number = trajectories(2000, collected)
    return METRPOConfig(
        least_steps=min(2000, number * length) if is_foreign(task) else 0,
        episode_steps=EPISODE_STEPS if own else None,
        trajectories=number,
        iterations=100,
        model=fast_model(task),
        imagination=branches(20_000, length, runaway=1e3),
        policy=TRPOPolicyConfig(reset_std=True, initial_log_std=FIRST_LOG_STD),
        baseline=fast_baseline(20_000),
        returns=fast_returns(task),
    )


def _fast_point(horizon: int) -> METRPOConfig:
    return METRPOConfig(
        updates=40,
        trajectories=10,
        iterations=8,
        model=fast_point_model(),
        imagination=branches(6000, horizon),
        policy=TRPOPolicyConfig(hidden=(32, 32), reset_std=True),
        baseline=fast_baseline(6000),
        returns=fast_returns("Point2D"),
    )


def smoke(task: str, horizon: int | None) -> METRPOConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    base = fast(task, horizon)
    return replace(
        base,
        updates=2,
        trajectories=2,
        least_steps=0,
        iterations=8,
        evaluation_episodes=2,
        model=smoke_model(base.model),
        imagination=replace(base.imagination, trajectories=8),
        policy=replace(base.policy, hidden=(16, 16)),
        baseline=replace(base.baseline, hidden=(16, 16), epochs=2, minibatch=8),
    )
