"""SAC, DroQ, TQC and CrossQ, by sbx.

One iteration collects real trajectories in bouts, each followed by as many gradient
steps as its real steps ask for, and evaluates. The replay buffer is a view of the run's
episodes: it is filled from them as an iteration begins, and never stored.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from pombu.algorithms.base import init_counters, keys_of
from pombu.algorithms.sac.config import (
    CrossQConfig,
    DroQConfig,
    OffPolicyConfig,
    SACConfig,
    TQCConfig,
)
from pombu.algorithms.stable_baselines import (
    SAC,
    TQC,
    CrossQ,
    ReplayBuffer,
    SbxState,
    Spaces,
    act_with,
    bits,
    fresh,
    logged,
    plain_mean,
    read,
    seeded,
    silent,
    to_policy_space,
    write,
)
from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, Task, collect
from pombu.nn import PlainPolicy
from pombu.rng import Keys
from pombu.rollout.real import Act, evaluate
from pombu.training.algorithm import Policy, StageTimer

_LOGGED = {
    "train/critic_loss": "value_loss",
    "train/actor_loss": "actor_loss",
    "train/ent_coef": "temperature",
}

_BLOCKS = (64, 8, 1)
"""Gradient steps of the actor that one compiled program takes: three programs instead
of one for every number of steps, which differs where episodes end early."""
_MOST = 64
"""Gradient steps of the critics in a block, where there is a smaller one."""
_ENTROPY_STATES = 1000
"""States in which the policy's entropy is measured."""


class Learner:
    """An off-policy algorithm over one task: `init` a state, then `iterate` it."""

    def __init__(self, task: Task, config: OffPolicyConfig, name: str = "sac") -> None:
        self.name = name
        self.task = task
        self.config = config
        self._model = _model(task, config)
        self._temperature = {"ent_coef_state": read(self._model)["ent_coef_state"]}

    def init(self, seed: int) -> SbxState:
        """Untrained networks."""
        key, rate = Keys(seed, 0).jax("networks"), self.config.learning_rate
        networks = fresh(self._model, key, rate) | self._temperature
        return SbxState(**init_counters(seed), networks=networks)

    def policy(self, state: SbxState) -> Policy:
        """The actor, to act with."""
        return act_with(self._model, state.networks)

    def plain_policy(self, state: SbxState) -> PlainPolicy:
        """The actor's mean, to take away."""
        size = self.task.observation_dim
        mean = plain_mean(state.networks, "relu")
        return PlainPolicy(mean, np.zeros(size), np.ones(size), squash=True)

    def iterate(
        self, state: SbxState, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[SbxState, dict[str, float]]:
        """Collect and train, bout by bout, and evaluate."""
        config, model, buffer = self.config, self._model, self._buffer
        keys = keys_of(state)
        write(model, state.networks)
        model.set_logger(silent())
        model.replay_buffer = buffer
        fill(buffer, list(episodes), 0, self.task)
        steps = int(state.real_steps)
        seeds = keys.episodes("collect", config.trajectories)
        collected: list[Episode] = []
        for first in range(0, config.trajectories, config.bout):
            with stage("collect"):
                bout = collect(
                    self.task,
                    self._explore(steps, keys, first),
                    seeds[first : first + config.bout],
                )
                episodes.append(bout)
                fill(buffer, bout, steps, self.task)
            with stage("improve"), seeded(keys.numpy("improve", first)):
                before, steps = steps, steps + sum(map(len, bout))
                if steps >= config.learning_starts:
                    due = actor_steps(before, steps, config)
                    self._train(due, keys.jax("improve", first))
            collected += bout
        state = eqx.tree_at(
            lambda s: (s.iteration, s.real_steps, s.networks),
            state,
            (state.iteration + 1, np.asarray(steps), read(model)),
        )
        with stage("evaluate"):
            number = stage.evaluation_episodes(config.evaluation_episodes)
            evaluated, real = evaluate(self.task, self.policy(state), number, keys)
        return state, {
            **evaluated,
            **logged(model.logger, _LOGGED),
            "entropy": self._entropy(real or collected, keys),
            "return_collected": float(np.mean([e.rewards.sum() for e in collected])),
        }

    @cached_property
    def _buffer(self) -> ReplayBuffer:
        spaces = Spaces(self.task)
        return ReplayBuffer(
            self.config.capacity,
            spaces.observation_space,
            spaces.action_space,
            device="cpu",
        )

    def _train(self, actor_steps: int, key: PRNGKeyArray) -> None:
        """Steps of the actor, each after `policy_delay` steps of the critics."""
        config, model = self.config, self._model
        for number, block in enumerate(blocks(actor_steps, config.policy_delay)):
            model.key = bits(jax.random.fold_in(key, number))
            # The actor's turn is counted from here, so that blocks are all alike.
            model._n_updates = 0
            model.train(block * config.policy_delay, config.batch_size)

    def _explore(self, steps: int, keys: Keys, first: int) -> Act:
        """Who acts after so many real steps."""
        config, size = self.config, self.task.action_dim
        if config.start == "random" and steps < config.learning_starts:
            rng = np.random.default_rng(keys.numpy("collect", first))
            return lambda seen, step: rng.uniform(-1.0, 1.0, (len(seen), size))
        policy = act_with(self._model, read(self._model))
        key = keys.jax("collect", first)
        return lambda seen, step: policy(seen, False, jax.random.fold_in(key, step))

    def _entropy(self, episodes: Sequence[Episode], keys: Keys) -> float:
        """Minus the mean log-probability of fresh actions along the episodes."""
        states = np.concatenate([e.observations[:-1] for e in episodes])
        rng = np.random.default_rng(keys.numpy("entropy"))
        # Always as many, so that one compiled program serves.
        rows = states[rng.integers(len(states), size=_ENTROPY_STATES)]
        actor = self._model.policy.actor_state
        return -float(_log_prob(actor, rows, bits(keys.jax("entropy"))).mean())


def _model(task: Task, config: OffPolicyConfig) -> SAC | TQC | CrossQ:
    """The model of a config, with room for one transition."""
    learned, aim = config.temperature is None, config.target_entropy
    critics = list(getattr(config, "critic_hidden", config.hidden))
    networks: dict[str, Any] = {
        "net_arch": {"pi": list(config.hidden), "qf": critics},
    }
    settings: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": Spaces(task),
        "learning_rate": config.learning_rate,
        "buffer_size": 1,
        "batch_size": config.batch_size,
        "gamma": config.gamma,
        "policy_delay": config.policy_delay,
        "ent_coef": "auto" if learned else config.temperature,
        "target_entropy": "auto" if aim is None else aim,
        "policy_kwargs": networks,
        "device": "cpu",
    }
    if isinstance(config, DroQConfig):
        networks |= {"dropout_rate": config.dropout, "layer_norm": True}
    if isinstance(config, SACConfig):
        settings["tau"] = config.tau
    # sbx draws a seed for weights, which are replaced by those of a state.
    with seeded((0,)):
        if isinstance(config, TQCConfig):
            networks["n_quantiles"] = config.quantiles
            dropped = config.dropped_quantiles
            return TQC(**settings, top_quantiles_to_drop_per_net=dropped)
        if isinstance(config, CrossQConfig):
            networks |= {
                "batch_norm_momentum": config.momentum,
                "renorm_warmup_steps": config.renormalisation_starts,
            }
            return CrossQ(**settings)
        return SAC(**settings)


@jax.jit
def _log_prob(
    actor: Any, observations: Float[Array, "n o"], key: UInt32[Array, "2"]
) -> Float[Array, " n"]:
    """Of actions that are drawn here."""
    if hasattr(actor, "batch_stats"):
        variables = {"params": actor.params, "batch_stats": actor.batch_stats}
    else:
        variables = actor.params
    policy = actor.apply_fn(variables, observations)
    log_prob: Array = policy.log_prob(policy.sample(seed=key))
    return log_prob


def actor_steps(before: int, after: int, config: OffPolicyConfig) -> int:
    """Gradient steps of the actor that real steps ask for.

    What a bout leaves over is done after the next: by the number of all steps, whatever
    bouts they came in, so that nothing has to be remembered.
    """
    rate = config.updates_per_step / config.policy_delay
    return int(rate * after + 1e-9) - int(rate * before + 1e-9)


def blocks(actor_steps: int, delay: int) -> list[int]:
    """The steps in as few sizes as possible, the largest first."""
    parts: list[int] = []
    for size in _BLOCKS:
        if size == 1 or size * delay <= _MOST:
            parts += [size] * (actor_steps // size)
            actor_steps %= size
    return parts


def fill(
    buffer: ReplayBuffer, episodes: Sequence[Episode], before: int, task: Task
) -> None:
    """Write episodes into the buffer after the `before` transitions that came earlier.

    Each transition has its place by number, so a buffer that is filled at once equals
    one that was filled little by little. Only a real end is written as one: where a
    time limit cut the episode, the critics go on to expect what comes after.
    """
    if not episodes:
        buffer.reset()
        return
    total = before + sum(map(len, episodes))
    kept = min(total - before, buffer.buffer_size)
    rows = np.arange(total - kept, total) % buffer.buffer_size

    def put(place: np.ndarray, parts: list[np.ndarray]) -> None:
        place[rows, 0] = np.concatenate(parts)[-kept:]

    put(buffer.observations, [e.observations[:-1] for e in episodes])
    put(buffer.next_observations, [e.observations[1:] for e in episodes])
    put(buffer.actions, [to_policy_space(task, e.actions) for e in episodes])
    put(buffer.rewards, [e.rewards for e in episodes])
    ends = [np.arange(1, len(e) + 1) == len(e) * e.terminated for e in episodes]
    put(buffer.dones, [end.astype(np.float32) for end in ends])
    buffer.pos = total % buffer.buffer_size
    buffer.full = total >= buffer.buffer_size
