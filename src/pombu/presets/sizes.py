"""Batches that papers give in steps, in trajectories of a task's length."""

from pombu.envs import CATALOGUE

_USUAL = 200
"""Steps per episode of the paper's tasks; assumed for tasks that are not pombu's."""


def horizon_of(task: str, horizon: int | None) -> int:
    """Steps per episode: those asked for, or the task's own."""
    own = next((entry.horizon for entry in CATALOGUE if entry.name == task), _USUAL)
    return horizon or own


def trajectories(steps: int, horizon: int, multiple: int = 1) -> int:
    """How many trajectories make up about `steps`, at least one per `multiple`."""
    return max(round(steps / (horizon * multiple)), 1) * multiple
