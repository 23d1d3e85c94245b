"""SAC: soft actor-critic (Haarnoja et al., 2018), by Stable-Baselines3.

One iteration collects real trajectories in bouts, each followed by as many gradient
steps as its real steps ask for, and evaluates. The replay buffer is a view of the run's
episodes: it is filled from them as an iteration begins, and never stored.
"""

from collections.abc import Sequence

import equinox as eqx
import numpy as np

from pombu.algorithms.base import Progress, keys_of
from pombu.algorithms.sac.config import SACConfig
from pombu.algorithms.stable_baselines import (
    SAC,
    Learned,
    ReplayBuffer,
    Snapshot,
    Spaces,
    logged,
    policy_of,
    seeded,
    silent,
    to_policy_space,
    without_gradients,
)
from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, Task, collect
from pombu.rng import Keys
from pombu.rollout.real import Act, evaluate
from pombu.training.algorithm import Policy, StageTimer

_LOGGED = {
    "train/critic_loss": "value_loss",
    "train/actor_loss": "actor_loss",
    "train/ent_coef": "temperature",
}


class State(Progress):
    """Everything that a run is, beside its episodes; nothing is ever imagined."""

    networks: Snapshot


class Learner:
    """SAC over one task: `init` a state, then `iterate` it."""

    def __init__(self, task: Task, config: SACConfig, name: str = "sac") -> None:
        self.name = name
        self.task = task
        self.config = config
        self._model = self._build(0)

    def init(self, seed: int) -> State:
        """Untrained networks."""
        zero = np.asarray(0)
        return State(
            np.asarray(seed), zero, zero, zero, learned(self._build(seed)).read()
        )

    def policy(self, state: State) -> Policy:
        """The actor, to act with."""
        model = self._build(0, capacity=1)
        learned(model).write(state.networks)
        return policy_of(model.policy)

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, dict[str, float]]:
        """Collect and train, bout by bout, and evaluate."""
        config, model = self.config, self._model
        keys = keys_of(state)
        learned(model).write(state.networks)
        model.set_logger(silent())
        buffer = model.replay_buffer
        assert buffer is not None
        fill(buffer, list(episodes), 0, self.task)
        steps = int(state.real_steps)
        seeds = keys.episodes("collect", config.trajectories)
        collected: list[Episode] = []
        for first in range(0, config.trajectories, config.bout):
            with stage("collect"), seeded(keys.numpy("collect", first)):
                bout = collect(
                    self.task,
                    self._explore(steps),
                    seeds[first : first + config.bout],
                )
                episodes.append(bout)
                fill(buffer, bout, steps, self.task)
            with stage("improve"), seeded(keys.numpy("improve", first)):
                new = sum(map(len, bout))
                steps += new
                updates = round(config.updates_per_step * new)
                if steps >= config.learning_starts and updates:
                    model.train(updates, config.batch_size)
            collected += bout
        state = eqx.tree_at(
            lambda s: (s.iteration, s.real_steps, s.networks),
            state,
            (state.iteration + 1, np.asarray(steps), learned(model).read()),
        )
        with stage("evaluate"):
            number = stage.evaluation_episodes(config.evaluation_episodes)
            evaluated, real = evaluate(self.task, self.policy(state), number, keys)
        with seeded(keys.numpy("entropy")):
            entropy = self._entropy(real or collected)
        return state, {
            **evaluated,
            **logged(model.logger, _LOGGED),
            "entropy": entropy,
            "return_collected": float(np.mean([e.rewards.sum() for e in collected])),
        }

    def _build(self, seed: int, capacity: int | None = None) -> SAC:
        config = self.config
        entropy = "auto" if config.temperature is None else config.temperature
        target = "auto" if config.target_entropy is None else config.target_entropy
        with seeded(Keys(seed, 0).numpy("networks")):
            return SAC(
                "MlpPolicy",
                Spaces(self.task),
                learning_rate=config.learning_rate,
                buffer_size=capacity or config.capacity,
                batch_size=config.batch_size,
                tau=config.tau,
                gamma=config.gamma,
                ent_coef=entropy,
                target_entropy=target,
                policy_kwargs={"net_arch": list(config.hidden)},
                device="cpu",
            )

    def _explore(self, steps: int) -> Act:
        """Who acts after so many real steps."""
        policy, size = self._model.policy, self.task.action_dim
        random = self.config.start == "random" and steps < self.config.learning_starts

        def act(observations: np.ndarray, step: int) -> np.ndarray:
            if random:
                return np.random.uniform(-1.0, 1.0, (len(observations), size))
            actions, _ = policy.predict(observations, deterministic=False)
            return actions

        return act

    def _entropy(self, episodes: Sequence[Episode]) -> float:
        """Minus the mean log-probability of fresh actions along the episodes."""
        states = np.concatenate([e.observations[:-1] for e in episodes])
        with without_gradients():
            tensor, _ = self._model.policy.obs_to_tensor(states)
            _, log_prob = self._model.actor.action_log_prob(tensor)
        return -float(log_prob.mean())


def learned(model: SAC) -> Learned:
    """What training changes: actor, critics, their targets and the temperature."""
    tensors = dict(model.policy.state_dict())
    optimisers = [model.actor.optimizer, model.critic.optimizer]
    if model.ent_coef_optimizer is not None:
        assert model.log_ent_coef is not None
        tensors["log_temperature"] = model.log_ent_coef
        optimisers.append(model.ent_coef_optimizer)
    return Learned(tensors, optimisers)


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
