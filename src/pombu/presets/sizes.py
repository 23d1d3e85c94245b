"""What presets share: batches in trajectories of a task's length, and small models."""

from dataclasses import replace

from pombu.config import ModelConfig
from pombu.envs import CATALOGUE

_USUAL = 200
"""Steps per episode of the paper's tasks."""


def horizon_of(task: str, horizon: int | None) -> int:
    """Steps per episode: those asked for, or the task's own."""
    own = next((entry.horizon for entry in CATALOGUE if entry.name == task), _USUAL)
    return horizon or own


def is_own(task: str) -> bool:
    """Whether a task is not one of pombu's, but the user's."""
    return all(task != entry.name for entry in CATALOGUE)


def trajectories(steps: int, horizon: int, multiple: int = 1) -> int:
    """How many trajectories make up about `steps`, at least one per `multiple`."""
    return max(round(steps / (horizon * multiple)), 1) * multiple


def smoke_model(model: ModelConfig, members: int = 3) -> ModelConfig:
    """The model of `smoke` presets: seen to run, not to learn."""
    return replace(
        model,
        hidden=(32, 32),
        members=members,
        batch_size=64,
        validation_rows=64,
        max_epochs=5,
        max_steps=20,
    )
