"""How many real steps a run takes."""

from collections.abc import Callable
from typing import Any

from pombu.config.ppo import PPOConfig


def budget(config: Any, horizon: Callable[[], int], wanted: int | None = None) -> int:
    """The real steps wanted, or as many as the config plans.

    The task's horizon is asked for only where it matters, since to know it the
    environment must be made.

    Raises:
        UsageError: PPO would take the last of them with a learning rate of 0.
    """
    if wanted is None:
        return int(config.iterations * config.trajectories * horizon())
    if isinstance(config, PPOConfig):
        config.require_rate(wanted, horizon())
    return wanted
