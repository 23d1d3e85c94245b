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
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pombu.algorithms.base import Metrics
from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.training import REPORTED, explore, improve
from pombu.algorithms.soft_actor_critic import Tail, init_tail
from pombu.algorithms.soft_learner import SoftLearner, SoftState
from pombu.envs import Episode
from pombu.rng import Keys
from pombu.training.algorithm import Policy


class Learner(SoftLearner[DHMBPOConfig]):
    """DHMBPO over one task: `init` a state, then `iterate` it."""

    algorithm = "dhmbpo"

    def fresh_tail(self, seed: int) -> Tail | None:
        """An untrained U_psi, where the config asks for it."""
        if not self.config.uncertainty_tail:
            return None
        key, settings = Keys(seed, 0).jax("tail"), self.config.actor_critic
        return init_tail(key, self.task.observation_dim, settings)

    def explorer(self, state: SoftState) -> Policy:
        """The actor, with a bonus for uncertainty if asked, to collect with."""
        if not (self.config.bonus and int(state.updates)):
            return super().explorer(state)
        networks, imagination = self.networks(state), self.imagination(state)

        def act_with(
            observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
        ) -> np.ndarray:
            chosen = explore(networks, imagination, observations, key, self.config)
            return np.asarray(chosen)

        return act_with

    def improve(
        self, state: SoftState, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[SoftState, Metrics]:
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
            self.imagination(state),
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
        return self.stored(states), len(states)
