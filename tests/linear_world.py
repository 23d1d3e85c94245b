"""Linear members with a known reward: a learned world whose answers are known."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from pombu.algorithms.soft_actor_critic import Imagination
from pombu.data import Normaliser
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.gaussian import SMOOTH, HomoscedasticMembers
from pombu.dynamics.model import Dynamics
from pombu.envs import ActionBox

BOX = ActionBox((-2.0,), (2.0,))


class Quadratic:
    """Reward -|s'|^2 - a^2 / 10; an end where the first entry is large."""

    def reward(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return -(next_obs**2).sum(-1) - 0.1 * (action**2).sum(-1)

    def terminal(self, obs: Any, action: Any, next_obs: Any) -> Any:
        return next_obs[..., 0] > 1.2

    def initial(self, key: Any, n: int) -> Any:
        return jnp.zeros((n, 2))


QUADRATIC = Quadratic()
"""One, so that all tests share what is compiled for it."""


def unit(dim: int) -> Normaliser:
    return Normaliser(jnp.zeros(dim), jnp.ones(dim))


CHANGES = np.array(
    [
        [[0.1, -0.2], [0.3, 0.1], [0.4, 0.2]],
        [[0.2, -0.1], [0.2, 0.3], [0.5, 0.1]],
    ],
    np.float32,
)
"""[K, o + a, o]: member k changes a state s by (s, a) CHANGES[k]."""


def world_of(std: float, changes: np.ndarray = CHANGES) -> Imagination:
    """Linear members with so much noise."""
    members, _, dim = changes.shape
    layers = Layers((jnp.asarray(changes),), (jnp.zeros((members, dim)),), SMOOTH)
    log_std = jnp.log(jnp.full((members, dim), std))
    dynamics = Dynamics(
        HomoscedasticMembers(layers, log_std),
        unit(dim),
        unit(changes.shape[1] - dim),
        unit(dim),
        None,
        jnp.ones(()),
        contract=QUADRATIC,
    )
    return Imagination(dynamics, BOX)
