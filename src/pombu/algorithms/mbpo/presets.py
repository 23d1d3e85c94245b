"""MBPO's presets.

`paper` has the published schedule of each task, with the fit bounded in gradient steps.
"""

from dataclasses import replace

from pombu.algorithms.config import (
    ActorCriticConfig,
    horizon_of,
    is_point,
    trajectories,
)
from pombu.algorithms.mbpo.config import BranchConfig, MBPOConfig
from pombu.dynamics.config import HomoscedasticModelConfig

_REAL_STEPS = 1000
_TOTAL = 200_000

_PUBLISHED = {
    "HalfCheetah": (40.0, 1, (20_000, 100_000), -3.0),
    "Walker2d": (20.0, 1, (20_000, 100_000), -3.0),
    "Ant": (20.0, 25, (20_000, 100_000), -4.0),
    "Hopper": (20.0, 15, (20_000, 150_000), -1.0),
    "Humanoid": (20.0, 25, (20_000, 300_000), -2.0),
}
"""Updates per step, longest branch, when branches grow, target entropy."""


def paper(task: str, horizon: int | None) -> MBPOConfig:
    """The published values of the task; HalfCheetah's where none were published."""
    length = horizon_of(task, horizon)
    number = trajectories(_REAL_STEPS, length)
    base = MBPOConfig(
        trajectories=number,
        least_steps=number * length,
        iterations=max(_TOTAL // (number * length), 1),
    )
    for name, (updates, longest, grows, entropy) in _PUBLISHED.items():
        if name in task:
            return replace(
                base,
                updates_per_step=updates,
                branch=BranchConfig(
                    every=round(updates) * 250,
                    last_steps=longest,
                    grows_from=grows[0],
                    grows_until=grows[1],
                ),
                actor_critic=replace(base.actor_critic, target_entropy=entropy),
            )
    return base


def fast(task: str, horizon: int | None) -> MBPOConfig:
    """Four updates per step, and branches of five steps in small, frequent numbers.

    Departures from `paper` and why: learning starts after 3000 random steps, because
    real steps are what is scarce; the members are those of DHMBPO's `fast`; critics
    give Q in units of a range that follows the rewards, because with a tenth of the
    updates Q would lag behind the returns; Adam's moments and the average that acts
    are as in DHMBPO's `fast`.
    """
    if is_point(task):
        return _fast_point(paper(task, horizon))
    return replace(
        paper(task, horizon),
        evaluation_episodes=5,
        learning_starts=3000,
        updates_per_step=4.0,
        elites=8,
        model=HomoscedasticModelConfig(learning_rate=6e-3, steps_per_new_row=0.8),
        branch=BranchConfig(
            starts=256, every=20, kept=100, first_steps=5, last_steps=5
        ),
        actor_critic=ActorCriticConfig(
            critics=2,
            hidden=(256, 256),
            tau=0.01,
            keep_moments=True,
            policy_average=0.002,
        ),
    )


def _fast_point(base: MBPOConfig) -> MBPOConfig:
    return replace(
        base,
        trajectories=10,
        least_steps=0,
        iterations=20,
        evaluation_episodes=20,
        learning_starts=600,
        updates_per_step=4.0,
        batch_size=64,
        gamma=0.95,
        elites=4,
        model=HomoscedasticModelConfig(members=4, hidden=(64, 64), batch_size=64),
        branch=BranchConfig(starts=64, every=10, kept=40, first_steps=3, last_steps=3),
        actor_critic=ActorCriticConfig(
            critics=2, hidden=(64, 64), learning_rate=1e-3, tau=0.01
        ),
    )


def smoke(task: str, horizon: int | None) -> MBPOConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    return replace(
        fast(task, horizon),
        trajectories=2,
        least_steps=0,
        iterations=8,
        evaluation_episodes=2,
        updates_per_step=0.2,
        learning_starts=horizon_of(task, horizon),
        batch_size=16,
        elites=2,
        model=HomoscedasticModelConfig(
            members=3,
            hidden=(16, 16),
            batch_size=16,
            min_steps=10,
            max_steps=20,
            validation_rows=64,
        ),
        branch=BranchConfig(
            starts=8,
            every=4,
            kept=3,
            first_steps=1,
            last_steps=3,
            grows_from=0,
            grows_until=1000,
        ),
        actor_critic=ActorCriticConfig(critics=2, hidden=(16, 16)),
    )
