"""MB-MPO's presets.

`paper` has the published values: twenty tasks, each with a real trajectory per
iteration, whatever the horizon.
"""

from dataclasses import replace

from pombu.algorithms.config import (
    FIRST_LOG_STD,
    branches,
    fast_baseline,
    fast_model,
    fast_point_model,
    fast_returns,
    horizon_of,
    is_point,
    smoke_model,
    trajectories,
)
from pombu.algorithms.mbmpo.config import MBMPOConfig
from pombu.optim.config import TRPOPolicyConfig

_TOTAL = 200_000


def paper(task: str, horizon: int | None) -> MBMPOConfig:
    """The published values, the same for every task."""
    base = MBMPOConfig()
    steps = base.trajectories * horizon_of(task, horizon)
    return replace(base, iterations=max(_TOTAL // steps, 1))


def fast(task: str, horizon: int | None) -> MBMPOConfig:
    """One task per member, and narrower members with bounded fits.

    The inner step is ten times the published one, which hardly changes the policy; a
    hundred times changes it as much as ten meta-steps and learns nothing. The noise
    begins anew in every iteration, as ME-TRPO's does: a policy that its first models
    drove to the bounds of its actions has no gradient left without. First noise,
    branched imagination with V beyond it, and units of rewards and advantages are those
    of the other `fast` presets.
    """
    if is_point(task):
        return _fast_point(horizon_of(task, horizon))
    length = horizon_of(task, horizon)
    number = trajectories(2000, length, 5)
    return MBMPOConfig(
        inner_rate=0.01,
        updates=40,
        tasks_per_member=1,
        trajectories=number,
        iterations=max(_TOTAL // (number * length), 1),
        model=fast_model(task),
        imagination=branches(4000, length, shards=1, runaway=1e3),
        policy=TRPOPolicyConfig(reset_std=True, initial_log_std=FIRST_LOG_STD),
        baseline=fast_baseline(20_000),
        returns=fast_returns(task),
    )


def _fast_point(horizon: int) -> MBMPOConfig:
    return MBMPOConfig(
        inner_rate=0.01,
        updates=40,
        tasks_per_member=1,
        trajectories=10,
        iterations=8,
        model=fast_point_model(),
        imagination=branches(1500, horizon, shards=1),
        baseline=fast_baseline(7500),
        returns=fast_returns("Point2D"),
    )


def smoke(task: str, horizon: int | None) -> MBMPOConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    base = fast(task, horizon)
    return replace(
        base,
        updates=2,
        trajectories=2,
        iterations=8,
        evaluation_episodes=2,
        model=smoke_model(base.model, members=2),
        imagination=replace(base.imagination, trajectories=4),
        policy=replace(base.policy, hidden=(8, 8)),
        baseline=replace(base.baseline, hidden=(16, 16), epochs=2, minibatch=8),
        trust_region=replace(base.trust_region, conjugate_gradients=3),
    )
