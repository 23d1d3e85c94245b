"""Make the tasks known to Gymnasium."""

import gymnasium

from pombu.envs.catalogue import CATALOGUE


def register() -> None:
    """Register every task of the catalogue once."""
    for entry in CATALOGUE:
        if entry.id not in gymnasium.registry:
            gymnasium.register(
                id=entry.id,
                entry_point=entry.entry_point,
                max_episode_steps=entry.horizon,
                kwargs=entry.options,
            )
