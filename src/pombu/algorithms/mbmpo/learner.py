"""MB-MPO: Model-Based Meta-Policy Optimization (Clavera et al., 2018).

Each member of the ensemble is a task. One iteration collects real trajectories with
policies that were adapted to the members, fits the ensemble, and takes meta-steps: the
policy is rolled out in every task, adapted to it by one policy gradient step, rolled
out again, and improved by TRPO such that its adaptations do better. What the members
disagree about is left to adaptation, so the policy need not be robust to all of them.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from pombu.algorithms.base import (
    EnsembleLearner,
    Metrics,
    WithBaseline,
    after_iteration,
    as_noisy,
    fresh_policy,
    fresh_value,
    init_counters,
    keys_of,
    share_done,
)
from pombu.algorithms.mbmpo.config import MBMPOConfig
from pombu.algorithms.mbmpo.metalearning import (
    Judged,
    adapt_to_all,
    as_one,
    judge,
    meta_step,
    side_by_side,
)
from pombu.data import no_experience
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.fit import fresh_ensemble
from pombu.dynamics.model import Dynamics
from pombu.dynamics.termination import init_termination
from pombu.envs import Task, collect
from pombu.nn import MLP, GaussianPolicy
from pombu.optim.metrics import (
    policy_metrics,
    trust_region_metrics,
    trust_region_summary,
)
from pombu.optim.ppo import Batch, improve_value
from pombu.parallel import jit, ready
from pombu.rng import Keys
from pombu.rollout.imagine import imagine_in_shards, rules_of
from pombu.rollout.plan import branch_starts
from pombu.rollout.real import act_with
from pombu.training.algorithm import StageTimer


class State(WithBaseline):
    """Everything that a run is, beside its episodes."""

    adapted: GaussianPolicy
    """One policy per task, which collect the next real trajectories."""


class Learner(EnsembleLearner[MBMPOConfig, State]):
    """MB-MPO over one task: `init` a state, then `iterate` it."""

    algorithm = "mbmpo"

    def __init__(
        self,
        task: Task,
        config: MBMPOConfig,
        name: str = "",
        workers: int | None = None,
    ) -> None:
        super().__init__(task, config, name, workers)
        self.rules = rules_of(task, config.returns, config.imagination, config.model)

    def init(self, seed: int) -> State:
        """Untrained networks and no experience; all policies are still the same."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        dim = task.observation_dim
        policy = fresh_policy(keys.jax("policy"), task, config.policy)
        return State(
            **init_counters(seed),
            policy=policy,
            **fresh_value(keys.jax("value"), task, config.baseline),
            adapted=jax.tree.map(lambda x: jnp.stack([x] * config.tasks), policy),
            ensemble=fresh_ensemble(keys.jax("ensemble"), task, config.model),
            experience=no_experience(dim, task.action_dim, task.frame_dim),
            ending=init_termination(keys.jax("ending"), task, config.model.termination),
        )

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Collect with adapted policies, fit, meta-learn and evaluate."""
        keys, number = keys_of(state), self.config.trajectories
        with stage("collect"):
            policies = (state.adapted, self.normaliser(state))
            act = act_with(policies, number, keys.jax("collect"))
            collected = collect(self.task, act, keys.episodes("collect", number))
            episodes.append(collected)
        state = self.add_episodes(state, collected)
        with stage("fit"):
            state, fitted = self.fit(state, episodes, keys, collected)
        state, improved = self.improve(state, episodes, keys, stage)
        state = after_iteration(state)
        with stage("evaluate"):
            evaluated = self.evaluate(state, keys)
        return state, {
            **evaluated,
            **improved,
            **policy_metrics(state.policy, collected, state.experience),
            **fitted,
        }

    def improve(
        self, state: State, episodes: EpisodeStore, keys: Keys, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Meta-steps, and a last adaptation for the policies that collect next."""
        config = self.config
        tasks = self.tasks(state)
        policy, summaries = state.policy, []
        value, optimiser = state.value, state.value_optimiser
        done = share_done(state, config.iterations)
        if config.policy.reset_std:
            policy = as_noisy(policy, config.policy)
        for i in range(config.updates):
            policy, after, summary = self.meta_step(
                policy, value, i, tasks, episodes, keys, stage
            )
            summaries.append(summary)
            if value is not None:
                with stage("improve"):
                    value, optimiser, _ = improve_value(
                        value,
                        optimiser,
                        as_one(after),
                        keys.numpy("value", i),
                        config.baseline.rate(done),
                        config.baseline,
                    )
        with stage("adapt"):
            everywhere = self._everywhere(policy)
            last = self.imagine(
                tasks, episodes, keys, value, "before", config.updates, everywhere
            )
            adapted = adapt_to_all(policy, last.batch, config.inner_rate)
        batches = 2 * config.updates + 1
        per_batch = config.tasks * config.imagination.trajectories * self.rules.horizon
        improved: State = eqx.tree_at(
            lambda s: (s.policy, s.adapted, s.imagined_steps),
            state,
            (policy, adapted, state.imagined_steps + batches * per_batch),
        )
        if value is not None:
            improved = eqx.tree_at(
                lambda s: (s.value, s.value_optimiser), improved, (value, optimiser)
            )
        return improved, trust_region_metrics(summaries)

    def meta_step(
        self,
        policy: GaussianPolicy,
        value: MLP | None,
        number: int,
        tasks: list[Dynamics],
        episodes: EpisodeStore,
        keys: Keys,
        stage: StageTimer,
    ) -> tuple[GaussianPolicy, Batch, dict[str, Array]]:
        """Adapt to every task, see how that went, and improve what was adapted."""
        config, rate = self.config, self.config.inner_rate
        imagine = partial(self.imagine, tasks, episodes, keys, value)
        with stage("imagine"):
            before = imagine("before", number, self._everywhere(policy))
            adapted = adapt_to_all(policy, before.batch, rate)
            after = imagine("after", number, adapted)
        with stage("improve"):
            policy, report = ready(
                meta_step(
                    policy,
                    adapted,
                    before.batch,
                    after.batch,
                    rate,
                    config.trust_region,
                )
            )
        goals = after.goals._replace(advantage_std=jnp.mean(after.goals.advantage_std))
        loss = jnp.mean(after.baseline_loss)
        summary: dict[str, Array] = trust_region_summary(
            report, loss, side_by_side(after.imagined), goals
        )
        return policy, after.batch, summary

    def tasks(self, state: State) -> list[Dynamics]:
        """Worlds of one member each."""
        dynamics = self.dynamics(state)
        alone = [_only(dynamics, k) for k in range(dynamics.members.count)]
        return alone * self.config.tasks_per_member

    def imagine(
        self,
        tasks: list[Dynamics],
        episodes: EpisodeStore,
        keys: Keys,
        value: MLP | None,
        stage: str,
        number: int,
        policies: GaussianPolicy,
    ) -> Judged:
        """Virtual trajectories of each policy in its own task, stacked."""
        imagination = self.config.imagination

        def in_task(index: int) -> Judged:
            policy = jax.tree.map(lambda leaf: leaf[index], policies)
            first, limits = branch_starts(
                self.task,
                list(episodes),
                imagination.trajectories,
                imagination.real_starts,
                keys.jax(f"{stage} start", number, index),
            )
            imagined = imagine_in_shards(
                policy,
                value,
                tasks[index],
                self.rules,
                first,
                jnp.ones(1),
                keys.jax(stage, number, index),
                imagination.shards,
                self.workers,
                limits,
            )
            return judge(imagined, value is not None, self.config.returns)

        parts = self.workers.map(in_task, range(len(tasks)))
        stack: Judged = _stack(parts)
        return stack

    def _everywhere(self, policy: GaussianPolicy) -> GaussianPolicy:
        """The same policy for every task."""
        number = self.config.tasks
        stack: GaussianPolicy = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (number, *x.shape)), policy
        )
        return stack


@jit
def _only(dynamics: Dynamics, member: Array) -> Dynamics:
    return dynamics.only(member)


@jit
def _stack(parts: list[Judged]) -> Judged:
    stacked: Judged = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    return stacked
