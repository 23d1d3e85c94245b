"""SLBO's presets.

`paper` has the values behind the published numbers (the benchmark code from which the
paper took its SLBO column), with its batches of steps cut into the task's episodes. At
H = 200 it takes the imagined steps that POMBU's paper prints in its Table 1: 1e7 at
200,000 real steps, where the benchmark's 40 TRPO steps per round would make it 6.4e7.
"""

from dataclasses import replace

from pombu.algorithms.config import (
    FIRST_LOG_STD,
    branches,
    fast_returns,
    horizon_of,
    is_foreign,
    is_point,
    trajectories,
)
from pombu.algorithms.slbo.config import SLBOConfig
from pombu.dynamics.config import MultiStepModelConfig

_REAL_STEPS = 10_000
_IMAGINED_STEPS = 4000
_LONG_HORIZON = 1000
_UPDATES = 6
"""TRPO steps per round of the paper's Table 1: 20 stages x 20 rounds x 6 x 4000."""


def paper(task: str, horizon: int | None) -> SLBOConfig:
    """The published values, the same for every task."""
    length = horizon_of(task, horizon)
    base = SLBOConfig()
    return replace(
        base,
        policy_updates=base.policy_updates if length >= _LONG_HORIZON else _UPDATES,
        trajectories=trajectories(_REAL_STEPS, length),
        imagination=replace(
            base.imagination, trajectories=trajectories(_IMAGINED_STEPS, length, 2)
        ),
    )


def fast(task: str, horizon: int | None) -> SLBOConfig:
    """Shorter stages, hence more of them, and Table 1's imagined steps at any horizon.

    With the 40 TRPO steps per round of the benchmark's code the policy exploits the
    single model: the imagined return is ten times the real one after the first stage.
    First noise, branched imagination, and units of rewards and advantages are those of
    the other `fast` presets.
    """
    base = paper(task, horizon)
    if is_point(task):
        return _fast_point(base, horizon_of(task, horizon))
    length = horizon_of(task, horizon)
    number = trajectories(4000, length)
    return replace(
        base,
        least_steps=min(4000, number * length) if is_foreign(task) else 0,
        trajectories=number,
        iterations=50,
        rounds=10,
        policy_updates=5,
        model=replace(base.model, hidden=(256, 256)),
        policy=replace(base.policy, initial_log_std=FIRST_LOG_STD),
        imagination=branches(_IMAGINED_STEPS, length, runaway=1e3),
        value=replace(base.value, minibatch=250),
        returns=fast_returns(task),
    )


def _fast_point(base: SLBOConfig, horizon: int) -> SLBOConfig:
    return replace(
        base,
        trajectories=10,
        iterations=8,
        rounds=10,
        model_updates=100,
        policy_updates=5,
        model=MultiStepModelConfig(hidden=(64, 64)),
        imagination=branches(6000, horizon),
        value=replace(base.value, minibatch=250),
        returns=fast_returns("Point2D"),
    )


def smoke(task: str, horizon: int | None) -> SLBOConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    base = fast(task, horizon)
    return replace(
        base,
        trajectories=2,
        least_steps=0,
        iterations=8,
        rounds=2,
        model_updates=10,
        policy_updates=2,
        evaluation_episodes=2,
        model=replace(base.model, hidden=(32, 32), batch_size=32),
        imagination=replace(base.imagination, trajectories=8),
        policy=replace(base.policy, hidden=(16, 16)),
        value=replace(base.value, hidden=(16, 16), epochs=2, minibatch=8),
    )
