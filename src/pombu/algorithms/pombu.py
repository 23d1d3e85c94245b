"""POMBU: Policy Optimization with Model-Based Uncertainty (Algorithm 2).

One iteration collects real trajectories with exploration policies, fits the ensemble,
improves value and policy M times on imagined trajectories, and evaluates. The paper's
loop begins with the fit and ends with exploration; turned so that collection comes
first, every evaluated policy has learned from exactly the real steps counted so far.

MEPPO is the same with alpha = 0, beta = 0 and no exploration policies.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.config import POMBUConfig
from pombu.data import Experience, Normaliser, learn_from, no_experience
from pombu.diagnosis import prediction_error
from pombu.dreams import Dreamer, Plan, dreamer
from pombu.endings import Ending, fit_ending, fresh_ending
from pombu.envs import Episode, Task
from pombu.improvement import (
    improve_policy,
    improve_value,
    policy_adam,
    prepare,
    value_adam,
)
from pombu.models import Ensemble
from pombu.networks import MLP
from pombu.objectives import exploration_advantage
from pombu.policies import GaussianPolicy, init_policy
from pombu.randomness import Keys
from pombu.reporting import Update, fit_metrics, improvement_metrics, policy_metrics
from pombu.rollouts import evaluate, gather, policy_of
from pombu.training.algorithm import Policy
from pombu.training.episodes import EpisodeStore
from pombu.training.stages import StageTimer
from pombu.values import init_value
from pombu.workers import Workers
from pombu.worlds import World, fresh_ensemble, refit, rules_of, world_of

Metrics = dict[str, float]


class State(eqx.Module):
    """Everything that a run is, beside its episodes."""

    seed: np.ndarray
    iteration: np.ndarray
    real_steps: np.ndarray
    imagined_steps: np.ndarray
    alpha: np.ndarray
    """The penalty's weight now."""
    policy: GaussianPolicy
    policy_optimiser: Any
    value: MLP
    value_optimiser: Any
    ensemble: Ensemble
    experience: Experience
    ending: Ending | None
    """Learned termination; None where it is known."""


class Learner:
    """Algorithm 2 over one task: `init` a state, then `iterate` it."""

    def __init__(
        self,
        task: Task,
        config: POMBUConfig,
        name: str = "pombu",
        workers: int | None = None,
    ) -> None:
        config.require_full_minibatches(task.horizon)
        self.name = name
        self.task = task
        self.config = config
        self.workers = Workers(workers)
        self.rules = rules_of(task, config.returns, config.imagination, config.model)

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        dim = task.observation_dim
        policy = init_policy(
            keys.jax("policy"), dim, task.action_dim, config.policy.hidden
        )
        value = init_value(keys.jax("value"), dim, config.value.hidden)
        return State(
            seed=np.asarray(seed),
            iteration=np.asarray(0),
            real_steps=np.asarray(0),
            imagined_steps=np.asarray(0),
            alpha=np.asarray(config.alpha),
            policy=policy,
            policy_optimiser=policy_adam(config.policy).init(policy),
            value=value,
            value_optimiser=value_adam(config.value).init(value),
            ensemble=fresh_ensemble(keys.jax("ensemble"), task, config.model),
            experience=no_experience(dim, task.action_dim),
            ending=fresh_ending(keys.jax("ending"), task, config.model.termination),
        )

    def policy(self, state: State) -> Policy:
        """pi_theta, to act with."""
        return policy_of(state.policy, Normaliser.of(state.experience.observation))

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """One pass of Algorithm 2's loop."""
        config = self.config
        keys = Keys(int(state.seed), int(state.iteration))
        with stage("explore"):
            state, explorers = self.explore(state, episodes)
        with stage("collect"):
            collected = gather(
                self.task, explorers, config.trajectories, config.least_steps, keys
            )
            episodes.append(collected)
        state, learned = self.digest(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated, real = evaluate(
                self.task, self.policy(state), config.evaluation_episodes, keys
            )
            errors = prediction_error(self.world(state), self.rules, real)
        return state, {
            "iteration": int(state.iteration),
            "real_steps": int(state.real_steps),
            "imagined_steps": int(state.imagined_steps),
            **evaluated,
            **learned,
            **errors,
        }

    def explore(
        self, state: State, episodes: EpisodeStore
    ) -> tuple[State, tuple[GaussianPolicy, Normaliser]]:
        """What to collect the next real episodes with, as one stack of policies."""
        keys = Keys(int(state.seed), int(state.iteration))
        if int(state.iteration) < self.config.policy.reset_std_iterations:
            state = eqx.tree_at(
                lambda s: s.policy.log_std, state, jnp.zeros_like(state.policy.log_std)
            )
        explorers, imagined = self.explorers(state, episodes, keys)
        return self._count(state, imagined), explorers

    def digest(
        self,
        state: State,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[State, Metrics]:
        """Learn from newly collected episodes, which are among `episodes` already."""
        config = self.config
        keys = Keys(int(state.seed), int(state.iteration))
        state = self._remember(state, collected)
        with stage("fit"):
            state, fitted = self.fit(state, episodes, keys)
        state, improved = self.improve(state, episodes, keys, stage)
        state = self._count(state, config.updates * config.imagination.trajectories)
        state = eqx.tree_at(lambda s: s.iteration, state, state.iteration + 1)
        return state, {
            **improved,
            **policy_metrics(state.policy, collected, state.experience),
            **fitted,
        }

    def world(self, state: State) -> World:
        """The learned world as the state has it."""
        return world_of(
            state.ensemble, state.experience, self.config.model, state.ending
        )

    def fit(
        self, state: State, episodes: EpisodeStore, keys: Keys
    ) -> tuple[State, Metrics]:
        """Train the ensemble on all real data."""
        ensemble, report = refit(
            state.ensemble,
            self.task,
            list(episodes),
            state.experience,
            self.config.model,
            self.config.rows(self.task.horizon),
            keys,
            int(state.iteration),
            self.workers,
        )
        ending, found = fit_ending(state.ending, list(episodes), state.experience, keys)
        fitted: State = eqx.tree_at(
            lambda s: (s.ensemble, s.ending),
            state,
            (ensemble, ending),
            is_leaf=lambda leaf: leaf is None,
        )
        return fitted, {**fit_metrics(report), **found}

    def improve(
        self, state: State, episodes: EpisodeStore, keys: Keys, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """M times: imagine, then train V_phi and pi_theta side by side.

        The advantages come from the value function before its update, so neither of the
        two has to wait for the other.
        """
        config = self.config
        done = self._done(state)
        dream = self._dreamer(state, episodes, keys)
        plan = Plan(
            "imagine",
            0,
            config.imagination.trajectories,
            config.imagination.shards,
            jnp.full(config.model.members, 1.0 / config.model.members),
        )
        policy, policy_optimiser = state.policy, state.policy_optimiser
        value, value_optimiser = state.value, state.value_optimiser
        alpha = float(state.alpha)
        updates: list[Update] = []
        for i in range(config.updates):
            with stage("imagine"):
                imagined = dream(policy, value, plan._replace(number=i))
                batch, goals = prepare(imagined, config.returns)
            with stage("improve"):
                new_value, new_policy = self.workers.both(
                    partial(
                        improve_value,
                        value,
                        value_optimiser,
                        batch,
                        keys.numpy("value", i),
                        config.value.rate(done),
                        config.value,
                    ),
                    partial(
                        improve_policy,
                        policy,
                        policy_optimiser,
                        batch,
                        keys.numpy("policy", i),
                        config.policy.rate(done),
                        alpha,
                        config.policy,
                    ),
                )
                value, value_optimiser, value_loss = new_value
                policy, policy_optimiser, report = new_policy
                alpha = config.next_alpha(alpha, report.kl)
            updates.append((report, value_loss, imagined, goals))
        state = eqx.tree_at(lambda s: s.alpha, state, np.asarray(alpha))
        state = eqx.tree_at(
            lambda s: (s.policy, s.policy_optimiser, s.value, s.value_optimiser),
            state,
            (policy, policy_optimiser, value, value_optimiser),
        )
        return state, {**improvement_metrics(updates), "alpha": alpha}

    def explorers(
        self, state: State, episodes: EpisodeStore, keys: Keys
    ) -> tuple[tuple[GaussianPolicy, Normaliser], int]:
        """Exploration policies as one stack, and how many trajectories they imagined.

        Each is trained from pi_theta on its own virtual trajectories to seek what is
        uncertain, A + beta sqrt(D). Before the first fit pi_theta itself explores.
        """
        config = self.config
        normaliser = Normaliser.of(state.experience.observation)
        number = config.exploration.policies
        if not number or not int(state.iteration):
            alone = jax.tree.map(lambda leaf: leaf[None], state.policy)
            return (alone, normaliser), 0
        done = self._done(state)
        dream = self._dreamer(state, episodes, keys)

        def explorer(index: int) -> GaussianPolicy:
            weights = self._member_weights(keys.jax("members", index))
            plan = Plan("explore", index, config.exploration.trajectories, 1, weights)
            imagined = dream(state.policy, state.value, plan)
            batch, _ = prepare(imagined, config.returns)
            bold = exploration_advantage(
                batch.advantages, batch.uncertainty, config.beta
            )
            policy, _, _ = improve_policy(
                state.policy,
                policy_adam(config.policy).init(state.policy),
                batch._replace(advantages=bold),
                keys.numpy("explore", index),
                config.policy.rate(done),
                0.0,
                config.policy,
            )
            return policy

        policies = self.workers.map(explorer, range(number))
        stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
        return (stack, normaliser), number * config.exploration.trajectories

    def _dreamer(self, state: State, episodes: EpisodeStore, keys: Keys) -> Dreamer:
        """What gives virtual trajectories in the learned world, or in the simulator."""
        return dreamer(
            self.config.model.kind,
            self.task,
            self.world(state),
            self.rules,
            list(episodes),
            keys,
            self.workers,
        )

    def _count(self, state: State, trajectories: int) -> State:
        """Add the steps of imagined trajectories."""
        steps = state.imagined_steps + trajectories * self.rules.horizon
        counted: State = eqx.tree_at(lambda s: s.imagined_steps, state, steps)
        return counted

    def _remember(self, state: State, collected: list[Episode]) -> State:
        returns = self.config.returns
        experience = learn_from(
            state.experience, collected, returns.gamma, returns.reward_clip
        )
        steps = sum(len(episode.rewards) for episode in collected)
        remembered: State = eqx.tree_at(
            lambda s: (s.experience, s.real_steps),
            state,
            (experience, state.real_steps + steps),
        )
        return remembered

    def _done(self, state: State) -> float:
        """Share of the planned iterations that lies behind."""
        return min(int(state.iteration) / self.config.iterations, 1.0)

    def _member_weights(self, key: PRNGKeyArray) -> Float[Array, " K"]:
        """How often each member gives an exploration policy its next state."""
        members = self.config.model.members
        if not self.config.exploration.random_members:
            return jnp.full(members, 1.0 / members)
        return jax.random.dirichlet(key, jnp.ones(members))
