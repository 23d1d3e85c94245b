"""The paper's sizes made small."""

from dataclasses import replace

from pombu.algorithms.pombu.config import POMBUConfig


def small(config: POMBUConfig) -> POMBUConfig:
    """Everything there, nothing large."""
    return replace(
        config,
        model=replace(config.model, members=3, hidden=(16, 16), batch_size=32),
        imagination=replace(config.imagination, trajectories=8),
        policy=replace(config.policy, epochs=2, minibatch=300, hidden=(8, 8)),
        value=replace(config.value, epochs=2, minibatch=300, hidden=(8, 8)),
    )
