"""MBPO: model-based policy optimisation (Janner et al., 2019).

One iteration collects real steps, fits the members to all of them, imagines short
branches that start in stored real states, and updates a soft actor-critic many times
per real step, mostly on imagined transitions.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pombu.algorithms.base import Metrics
from pombu.algorithms.mbpo.config import MBPOConfig
from pombu.algorithms.mbpo.training import REPORTED, Transitions, improve
from pombu.algorithms.soft_actor_critic import PLAIN, Imagination
from pombu.algorithms.soft_learner import SoftLearner, SoftState
from pombu.dynamics.error import limited
from pombu.dynamics.homoscedastic import (
    HomoscedasticMembers,
    fit_homoscedastic,
    fresh_homoscedastic,
)
from pombu.envs import Episode
from pombu.rng import Keys


class State(SoftState):
    """Everything that a run is, beside its episodes."""

    members: HomoscedasticMembers


class Learner(SoftLearner[MBPOConfig, State]):
    """MBPO over one task: `init` a state, then `iterate` it."""

    algorithm = "mbpo"
    critic_form = PLAIN

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        members = fresh_homoscedastic(
            Keys(seed, 0).jax("members"), self.task, self.config.model
        )
        return State(**self.fresh_fields(seed), members=members)

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
        updates = round(config.updates_per_step * new)
        length = config.branch.length(int(state.real_steps))
        real, filled = self.real_transitions(episodes)
        networks, memory, report, uncertainty = improve(
            self.networks(state),
            self.optimisers(state),
            self.elite_world(state, episodes),
            real,
            filled,
            length,
            int(state.updates),
            updates,
            keys.jax("improve"),
            self.target_entropy,
            config,
        )
        imagined = -(-updates // config.branch.every) * length * config.branch.starts
        state = eqx.tree_at(
            lambda s: (s.updates, s.learned_steps, s.imagined_steps),
            self.with_networks(state, networks, memory),
            (
                state.updates + updates,
                state.real_steps,
                state.imagined_steps + imagined,
            ),
        )
        metrics = dict(zip(REPORTED, np.asarray(report).tolist(), strict=True))
        return state, {
            **metrics,
            "branch_steps": float(length),
            "sqrt_u": float(uncertainty),
        }

    def elite_world(self, state: State, episodes: Sequence[Episode]) -> Imagination:
        """Where branches happen: the best members, and how far they may disagree."""
        error = jnp.sum(state.members.log_std, -1)
        best = jnp.argsort(error)[: self.config.elites]
        elites = jax.tree.map(lambda leaf: leaf[best], state.members)
        dynamics = eqx.tree_at(lambda d: d.members, self.dynamics(state), elites)
        allowed = self.config.branch.disagreement_stop
        return Imagination(limited(dynamics, allowed, episodes), self.task.action_box)

    def real_transitions(self, episodes: Sequence[Episode]) -> tuple[Transitions, int]:
        """Stored real transitions, padded, and how many there are."""
        box = self.task.action_box
        actions = np.concatenate([episode.actions for episode in episodes])
        ends = [np.zeros(len(episode)) for episode in episodes]
        for episode, of_steps in zip(episodes, ends, strict=True):
            of_steps[-1] = episode.terminated
        capacity = self.config.rows(self.task.horizon)
        while capacity < len(actions):
            capacity *= 2

        def padded(leaf: np.ndarray) -> jax.Array:
            room = [(0, capacity - len(leaf))] + [(0, 0)] * (leaf.ndim - 1)
            return jnp.asarray(np.pad(leaf, room), jnp.float32)

        steps = Transitions(
            padded(np.concatenate([episode.observations[:-1] for episode in episodes])),
            padded((actions - box.middle) / box.unit),
            padded(np.concatenate([episode.rewards for episode in episodes])),
            padded(np.concatenate([episode.observations[1:] for episode in episodes])),
            padded(np.concatenate(ends)),
            padded(np.ones(len(actions))),
        )
        return steps, len(actions)
