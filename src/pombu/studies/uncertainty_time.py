"""How long Algorithm 1 takes over a whole run: minutes of one of this machine's cores.

In a run it is fused with the imagination, so no stage of it can be timed. Here it runs
alone on arrays of the run's own sizes: V of every member's next state, the variance
over the members, and its sum along time. The training of V is not part of it, as in the
paper's 1.4 minutes.
"""

import time
from functools import lru_cache

import jax
from jaxtyping import Array, Float

from pombu.envs import CATALOGUE
from pombu.networks import MLP
from pombu.studies.curves import Curve
from pombu.uncertainty.algorithm1 import (
    local_uncertainty,
    propagate,
    standard_deviation,
)
from pombu.values import init_value, predict
from pombu.workers import jit

REPEATS = 3


def uncertainty_minutes(curve: Curve) -> float:
    """Minutes of one core for all the imagined steps of a run."""
    config = curve.run.spec.config
    task = next(entry for entry in CATALOGUE if entry.id == config["env"]["id"])
    shape = (
        int(config["model"]["members"]),
        int(config["env"].get("horizon") or task.horizon),
        int(config["imagination"]["trajectories"]),
    )
    hidden = tuple(int(width) for width in config["value"]["hidden"])
    seconds = batch_seconds(shape, task.observation_dim, hidden)
    steps = curve.rows[-1].get("imagined_steps", 0.0)
    return seconds * steps / (shape[1] * shape[2]) / 60


@lru_cache(maxsize=16)
def batch_seconds(
    shape: tuple[int, int, int], observation_dim: int, hidden: tuple[int, ...]
) -> float:
    """Seconds of one core for a batch of K members, H steps and N trajectories.

    Counted as processor time, which others on the machine do not lengthen.
    """
    value = init_value(jax.random.key(0), observation_dim, hidden)
    rewards = jax.random.normal(jax.random.key(1), shape)
    states = jax.random.normal(jax.random.key(2), (*shape, observation_dim))

    @jit
    def algorithm_1(
        value: MLP, rewards: Float[Array, "K H N"], states: Float[Array, "K H N o"]
    ) -> Float[Array, "H N"]:
        local = local_uncertainty(rewards, predict(value, states), 0.99)
        return standard_deviation(propagate(local, 0.99))

    algorithm_1(value, rewards, states).block_until_ready()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        algorithm_1(value, rewards, states).block_until_ready()
        times.append(time.process_time() - start)
    return min(times)
