"""DHMBPO: double-horizon model-based policy optimisation (Kubo et al., 2025).

One iteration collects real steps, fits the learned dynamics to all of them, and updates
actor and critics once per new step. Long rollouts without gradients (the distribution
horizon) find the states that the policy would visit; short ones with gradients (the
training horizon) start there, and both critics and actor learn from them.

DHMBPO-U has `kappa` or `bonus` above 0: sqrt(U), the uncertainty of Q by Algorithm 1
along the training rollout, is what the actor avoids and collection seeks.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pombu.algorithms.base import Metrics
from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.training import REPORTED, explore, improve
from pombu.algorithms.soft_actor_critic import init_tail
from pombu.algorithms.soft_learner import SoftLearner, SoftState
from pombu.dynamics.homoscedastic import (
    HomoscedasticMembers,
    fit_homoscedastic,
    fresh_homoscedastic,
)
from pombu.envs import Episode
from pombu.rng import Keys
from pombu.training.algorithm import Policy


class State(SoftState):
    """Everything that a run is, beside its episodes."""

    members: HomoscedasticMembers


class Learner(SoftLearner[DHMBPOConfig, State]):
    """DHMBPO over one task: `init` a state, then `iterate` it."""

    algorithm = "dhmbpo"

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        members = fresh_homoscedastic(
            Keys(seed, 0).jax("members"), self.task, self.config.model
        )
        tail = None
        if self.config.uncertainty_tail:
            key, settings = Keys(seed, 0).jax("tail"), self.config.actor_critic
            tail = init_tail(key, self.task.observation_dim, settings)
        return State(**self.fresh_fields(seed, tail), members=members)

    def explorer(self, state: State) -> Policy:
        """The actor, with a bonus for uncertainty if asked, to collect with."""
        if not (self.config.bonus and int(state.updates)):
            return super().explorer(state)
        networks, world = self.networks(state), self.world(state)

        def act_with(
            observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
        ) -> np.ndarray:
            chosen = explore(networks, world, observations, key, self.config)
            return np.asarray(chosen)

        return act_with

    def train(
        self,
        state: State,
        inputs: np.ndarray,
        targets: np.ndarray,
        validation: np.ndarray,
        keys: Keys,
    ) -> tuple[State, Metrics]:
        """Train the members for a number of steps that follows the new rows."""
        members, fitted = fit_homoscedastic(
            state.members,
            inputs,
            targets,
            validation,
            int(state.real_steps - state.learned_steps),
            self.config.model,
            self.config.rows(self.task.horizon),
            keys.numpy("fit"),
            self.workers,
        )
        trained: State = eqx.tree_at(lambda s: s.members, state, members)
        return trained, fitted

    def improve(
        self, state: State, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[State, Metrics]:
        """As many updates as the steps ask for that were not learned from yet."""
        config = self.config
        new = int(state.real_steps - state.learned_steps)
        every = config.distribution.every
        blocks = round(config.updates_per_step * new / every)
        warmup = round(config.critic_updates / every)
        real, filled = self.real_states(episodes)
        networks, memory, report, uncertainty = improve(
            self.networks(state),
            self.optimisers(state),
            self.world(state),
            real,
            filled,
            int(state.updates),
            warmup,
            blocks,
            keys.jax("improve"),
            self.target_entropy,
            config,
        )
        distribution = config.distribution.starts * config.distribution.steps
        training = every * config.batch_size * config.training_steps
        state = eqx.tree_at(
            lambda s: (s.updates, s.learned_steps, s.imagined_steps),
            self.with_networks(state, networks, memory),
            (
                state.updates + (warmup + blocks) * every,
                state.real_steps,
                state.imagined_steps + (warmup + blocks) * (distribution + training),
            ),
        )
        metrics = dict(zip(REPORTED, np.asarray(report).tolist(), strict=True))
        return state, {
            **metrics,
            "sqrt_u": float(uncertainty),
            "q_lower": float(networks.bounds[0]),
            "q_upper": float(networks.bounds[1]),
        }

    def real_states(self, episodes: Sequence[Episode]) -> tuple[Array, int]:
        """Stored real states that were acted in, padded, and how many there are."""
        states = np.concatenate([episode.observations[:-1] for episode in episodes])
        capacity = self.config.rows(self.task.horizon)
        while capacity < len(states):
            capacity *= 2
        padded = np.pad(states, ((0, capacity - len(states)), (0, 0)))
        return jnp.asarray(padded, jnp.float32), len(states)
