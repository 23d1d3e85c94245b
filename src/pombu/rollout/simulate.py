"""Imagining in the simulator itself, to tell model error from optimiser error.

The real environment stands in for the learned dynamics: same batch, same units, no
model error and hence no uncertainty. Its steps are not counted as real ones, which
makes it a tool for finding out why a run fails, not a way to learn from few steps.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from pombu.data import Normaliser
from pombu.dynamics.config import PlainReturnConfig
from pombu.envs import Task, collect
from pombu.nn import MLP, StochasticPolicy, predict_value
from pombu.rollout.imagine import Imagined
from pombu.rollout.real import act_alone
from pombu.rollout.returns import scaled_reward


def simulate(
    policy: StochasticPolicy,
    value: MLP | None,
    task: Task,
    normaliser: Normaliser,
    return_std: float,
    returns: PlainReturnConfig,
    key: PRNGKeyArray,
    seeds: list[int],
) -> Imagined:
    """Real rollouts in the shape of imagined ones; short episodes are padded."""
    act = act_alone(policy, normaliser, len(seeds), key)
    drawn: list[np.ndarray] = []

    def remember(observations: np.ndarray, step: int) -> np.ndarray:
        actions = act(observations, step)
        drawn.append(actions)
        return actions

    episodes = collect(task, remember, seeds)
    horizon = task.horizon
    lengths = np.array([len(e.rewards) for e in episodes])
    ended = np.array([e.terminated for e in episodes])
    cut = ~ended & (lengths < horizon)

    def padded(name: str) -> Float[np.ndarray, "H N ..."]:
        rows = [getattr(e, name)[:horizon] for e in episodes]
        out = np.zeros((horizon, len(rows), *rows[0].shape[1:]), np.float32)
        for n, row in enumerate(rows):
            out[: len(row), n] = row
        return out

    step = np.arange(horizon)[:, None]
    weight = jnp.asarray(step < lengths, jnp.float32)
    last = step == lengths - 1
    continues = jnp.asarray((step < lengths - 1) | (last & ~ended & ~cut), jnp.float32)
    actions = np.zeros((horizon, *drawn[0].shape), np.float32)
    actions[: len(drawn)] = np.stack(drawn)
    raw = jnp.asarray(padded("rewards"))
    states = normaliser.normalise(jnp.asarray(padded("observations")))
    final = normaliser.normalise(jnp.stack([e.observations[-1] for e in episodes]))
    beyond = None if value is None else predict_value(value, final)[None]
    rewards = scaled_reward(raw, jnp.float32(return_std), returns)
    if beyond is not None and returns.bootstrap:  # as `imagine` does at a time limit
        rewards = rewards + returns.gamma * beyond * jnp.asarray(last & cut)
    return Imagined(
        observations=states,
        actions=jnp.asarray(actions),
        log_probs=policy.log_prob(states, jnp.asarray(actions)),
        rewards=rewards,
        values=jnp.zeros_like(raw) if value is None else predict_value(value, states),
        local=jnp.zeros_like(raw),
        continues=continues,
        weight=weight,
        raw_rewards=raw,
        masked=jnp.zeros(()),
        beyond=beyond,
    )
