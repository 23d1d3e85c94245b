"""SAC's presets.

`paper` has the values of the paper's own baseline; `fast` those that the authors of
Stable-Baselines3 recommend for MuJoCo tasks.
"""

from dataclasses import replace

from pombu.algorithms.presets import horizon_of, is_point, trajectories
from pombu.algorithms.sac.config import SACConfig


def paper(task: str, horizon: int | None) -> SACConfig:
    """Alternate 1000 real steps and 1000 gradient steps."""
    number = trajectories(1000, horizon_of(task, horizon))
    return SACConfig(trajectories=number, bout=number)


def fast(task: str, horizon: int | None) -> SACConfig:
    """Train after every trajectory, once 10,000 random steps were taken."""
    if is_point(task):
        return _fast_point()
    number = trajectories(1000, horizon_of(task, horizon))
    return SACConfig(
        trajectories=number,
        bout=1,
        learning_starts=10_000,
        start="random",
        gamma=0.9999 if task == "Swimmer" else 0.99,
    )


def _fast_point() -> SACConfig:
    return SACConfig(
        trajectories=10,
        iterations=20,
        bout=2,
        learning_starts=300,
        start="random",
        hidden=(64, 64),
        learning_rate=1e-3,
        capacity=100_000,
        gamma=0.95,
    )


def smoke(task: str, horizon: int | None) -> SACConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    return replace(
        fast(task, horizon),
        trajectories=2,
        iterations=8,
        bout=1,
        evaluation_episodes=2,
        updates_per_step=0.1,
        learning_starts=horizon_of(task, horizon),
        hidden=(16, 16),
        batch_size=32,
        capacity=10_000,
    )
