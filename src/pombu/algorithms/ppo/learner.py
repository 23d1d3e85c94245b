"""PPO: proximal policy optimisation (Schulman et al., 2017), by sbx.

One iteration collects real trajectories with the policy, trains policy and value
function on them, and evaluates. Whole trajectories make up a batch; where a time limit
cut one, the value of its last state stands for the rest.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pombu.algorithms.base import init_counters, keys_of
from pombu.algorithms.ppo.config import PPOConfig
from pombu.algorithms.stable_baselines import (
    PPO,
    RolloutBuffer,
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
    torch,
    write,
)
from pombu.data import Experience, Moments, learn_from, no_experience
from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, Task, collect
from pombu.nn import PlainPolicy
from pombu.rng import Keys
from pombu.rollout.real import evaluate
from pombu.training.algorithm import Policy, StageTimer

_LOGGED = {
    "train/approx_kl": "kl",
    "train/value_loss": "value_loss",
    "train/policy_gradient_loss": "actor_loss",
    "train/clip_fraction": "clip_fraction",
    "train/explained_variance": "explained_variance",
    "train/entropy_loss": "entropy",
}

IDLE = (
    "PPO's learning rate has fallen to 0, so nothing more is learned: begin again with "
    "more iterations, or with final_learning_rate above 0."
)


_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class State(SbxState):
    """The same, with the units of observations and rewards."""

    experience: Experience


class Rollout(NamedTuple):
    """Episodes end to end, with what the policy thought at every step."""

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    starts: np.ndarray
    """1 at the first step of each episode."""


class Learner:
    """PPO over one task: `init` a state, then `iterate` it."""

    def __init__(self, task: Task, config: PPOConfig, name: str = "ppo") -> None:
        self.name = name
        self.task = task
        self.config = config
        self._rate = config.learning_rate
        self._model = self._build()

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        key, clip = Keys(seed, 0).jax("networks"), self.config.gradient_clip
        return State(
            **init_counters(seed),
            networks=fresh(self._model, key, clip),
            experience=no_experience(self.task.observation_dim, self.task.action_dim),
        )

    def policy(self, state: State) -> Policy:
        """The policy, to act with."""
        return act_with(self._model, state.networks, self._preparing(state))

    def plain_policy(self, state: State) -> PlainPolicy:
        """The policy's mean and noise, to take away."""
        size = self.task.observation_dim
        mean, std = np.zeros(size), np.ones(size)
        if self.config.normalise_observations:
            moments = state.experience.observation
            mean, std = moments.mean, moments.std
        noise = state.networks["actor_state"]["params"]["params"]["log_std"]
        network = plain_mean(state.networks, self.config.activation)
        return PlainPolicy(network, mean, std, noise)

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, dict[str, float]]:
        """Collect, train and evaluate."""
        config, model = self.config, self._model
        keys = keys_of(state)
        write(model, state.networks)
        model.set_logger(silent())
        with stage("collect"):
            key = keys.jax("collect")
            recorder = Recorder(model, self._preparing(state), key)
            seeds = keys.episodes("collect", config.trajectories)
            collected = collect(self.task, recorder.act, seeds)
            episodes.append(collected)
            experience = learn_from(state.experience, collected, config.gamma)
        with stage("improve"), seeded(keys.numpy("improve")):
            scale = float(experience.returns.std[0]) if config.scale_rewards else 1.0
            rollout = recorder.rollout(collected, scale, config.gamma)
            model.rollout_buffer = self._buffer(rollout)
            self._rate = config.rate(int(state.real_steps), self.task.horizon)
            if self._rate == 0:
                warnings.warn(IDLE, stacklevel=2)
            model.train()
        state = eqx.tree_at(
            lambda s: (s.iteration, s.real_steps, s.networks, s.experience),
            state,
            (
                state.iteration + 1,
                state.real_steps + len(rollout.rewards),
                read(model),
                experience,
            ),
        )
        with stage("evaluate"):
            number = stage.evaluation_episodes(config.evaluation_episodes)
            evaluated, _ = evaluate(self.task, self.policy(state), number, keys)
        metrics = logged(model.logger, _LOGGED)
        return state, {
            **evaluated,
            **metrics,
            # What is logged is a loss to be minimised, hence minus the entropy.
            "entropy": -metrics["entropy"],
            "return_collected": float(np.mean([e.rewards.sum() for e in collected])),
            "return_scale": scale,
        }

    def _build(self) -> PPO:
        config = self.config
        # sbx draws a seed for weights, which are replaced by those of a state.
        with seeded((0,)):
            return PPO(
                "MlpPolicy",
                Spaces(self.task),
                # sbx asks before every update.
                learning_rate=lambda _: self._rate,
                # The buffer is replaced by each iteration's own.
                n_steps=config.minibatch,
                batch_size=config.minibatch,
                n_epochs=config.epochs,
                gamma=config.gamma,
                gae_lambda=config.lam,
                clip_range=config.clip,
                ent_coef=config.entropy_weight,
                vf_coef=config.value_weight,
                max_grad_norm=config.gradient_clip,
                policy_kwargs={
                    "net_arch": list(config.hidden),
                    "activation_fn": _ACTIVATIONS[config.activation],
                    "ortho_init": config.orthogonal,
                    "log_std_init": config.log_std,
                },
                device="cpu",
            )

    def _preparing(self, state: State) -> Callable[[np.ndarray], np.ndarray]:
        """What is done to observations before the networks see them."""
        if not self.config.normalise_observations:
            return lambda observations: observations
        return partial(_normalise, state.experience.observation)

    def _buffer(self, rollout: Rollout) -> RolloutBuffer:
        """The rollout with its returns and advantages, as one long sequence."""
        spaces = Spaces(self.task)
        buffer = RolloutBuffer(
            len(rollout.rewards),
            spaces.observation_space,
            spaces.action_space,
            "cpu",
            self.config.lam,
            self.config.gamma,
        )
        buffer.observations[:, 0] = rollout.observations
        buffer.actions[:, 0] = rollout.actions
        buffer.log_probs[:, 0] = rollout.log_probs
        buffer.values[:, 0] = rollout.values
        buffer.rewards[:, 0] = rollout.rewards
        buffer.episode_starts[:, 0] = rollout.starts
        buffer.pos, buffer.full = len(rollout.rewards), True
        beyond = torch.zeros(1)
        buffer.compute_returns_and_advantage(beyond, np.ones(1))
        return buffer


class Recorder:
    """Acts with the policy, and stores its actions and values."""

    def __init__(
        self,
        model: PPO,
        prepare: Callable[[np.ndarray], np.ndarray],
        key: PRNGKeyArray,
    ) -> None:
        self._policy = model.policy
        self._prepare = prepare
        self._key = key
        self._drawn: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def act(self, observations: np.ndarray, step: int) -> np.ndarray:
        """Draw actions, one row per episode."""
        drawn, log_probs, values = self._draw(observations, step)
        self._drawn.append((drawn, values, log_probs))
        return drawn

    def _draw(
        self, observations: np.ndarray, step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions, their log-probabilities, and values."""
        key = bits(jax.random.fold_in(self._key, step))
        found = self._policy.predict_all(self._prepare(observations), key)
        actions, log_probs, values = map(np.asarray, found)
        return actions, log_probs, values

    def rollout(
        self, episodes: Sequence[Episode], reward_scale: float, gamma: float
    ) -> Rollout:
        """Lay the episodes end to end.

        To the last reward of an episode that a time limit cut, the discounted value of
        the state it was cut in is added: the time limit is not the task's.
        """
        actions, values, log_probs = (
            [rows[: len(e), n] for n, e in enumerate(episodes)]
            for rows in map(np.stack, zip(*self._drawn, strict=True))
        )
        final = np.stack([e.observations[-1] for e in episodes])
        beyond = self._draw(final, 0)[2]
        rewards = [e.rewards / reward_scale for e in episodes]
        for episode, own, value in zip(episodes, rewards, beyond, strict=True):
            if not episode.terminated:
                own[-1] += gamma * value
        return Rollout(
            self._prepare(np.concatenate([e.observations[:-1] for e in episodes])),
            np.concatenate(actions),
            np.concatenate(log_probs),
            np.concatenate(values),
            np.concatenate(rewards),
            np.concatenate([np.arange(len(e)) == 0 for e in episodes]),
        )


def _normalise(moments: Moments, observations: np.ndarray) -> np.ndarray:
    """Zero mean and unit deviation, by the moments of earlier observations."""
    normal: np.ndarray = (observations - moments.mean) / moments.std
    return normal.astype(np.float32)
