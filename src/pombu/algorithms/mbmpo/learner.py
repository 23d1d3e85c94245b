"""MB-MPO: Model-Based Meta-Policy Optimization (Clavera et al., 2018).

Each member of the ensemble is a task. One iteration collects real trajectories with
policies that were adapted to the members, fits the ensemble, and takes meta-steps: the
policy is rolled out in every task, adapted to it by one policy gradient step, rolled
out again, and improved by TRPO such that its adaptations do better. What the members
disagree about is left to adaptation, so the policy need not be robust to all of them.

The inner step adapts the policy to a task by plain policy gradient; the outer objective
is how well the adapted policies do, as a function of the policy before adaptation, and
its gradient goes through the inner step.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pombu.algorithms.base import (
    EnsembleLearner,
    Metrics,
    WithBaseline,
    after_iteration,
    as_noisy,
    fresh_value,
    keys_of,
    share_done,
)
from pombu.algorithms.mbmpo.config import MBMPOConfig
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import PlainReturnConfig
from pombu.dynamics.fit import fresh_ensemble
from pombu.dynamics.model import Dynamics
from pombu.envs import collect
from pombu.nn import MLP, GaussianPolicy, fit_linear, kl, predict_linear
from pombu.optim import objectives
from pombu.optim.config import TrustRegionConfig
from pombu.optim.metrics import (
    policy_metrics,
    trust_region_metrics,
    trust_region_summary,
)
from pombu.optim.ppo import Batch, improve_value, likelihood_ratio, prepare
from pombu.optim.trpo import StepReport, trust_region_step
from pombu.parallel import jit, ready
from pombu.rng import Keys
from pombu.rollout.imagine import Imagined, imagine_in_shards
from pombu.rollout.plan import branch_starts
from pombu.rollout.real import act_with
from pombu.rollout.returns import Targets, discounted_sum
from pombu.training.algorithm import StageTimer

Scalar = Float[Array, ""]


class State(WithBaseline):
    """Everything that a run is, beside its episodes."""

    adapted: GaussianPolicy
    """One policy per task, which collect the next real trajectories."""


class Judged(NamedTuple):
    """A task's virtual trajectories and what can be learned from them."""

    imagined: Imagined
    batch: Batch
    goals: Targets
    baseline_loss: Scalar


class Learner(EnsembleLearner[MBMPOConfig, State]):
    """MB-MPO over one task: `init` a state, then `iterate` it."""

    algorithm = "mbmpo"

    def init(self, seed: int) -> State:
        """Untrained networks and no experience; all policies are still the same."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        fresh = self.fresh_fields(seed)
        return State(
            **fresh,
            **fresh_value(keys.jax("value"), task, config.baseline),
            adapted=jax.tree.map(
                lambda x: jnp.stack([x] * config.tasks), fresh["policy"]
            ),
            ensemble=fresh_ensemble(keys.jax("ensemble"), task, config.model),
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
            evaluated = self.evaluate(state, keys, stage)
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
                        _as_one(after),
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
        """Dynamics of one member each."""
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


def judge(imagined: Imagined, valued: bool, config: PlainReturnConfig) -> Judged:
    """Advantages over V, where the trajectories have it, or over a linear baseline.

    The linear baseline is fitted to the same trajectories.
    """
    if valued:
        batch, goals = prepare(imagined, config)
        return Judged(imagined, batch, goals, _value_loss(imagined, goals.returns))
    values, loss = _baseline(imagined, config.gamma)
    batch, goals = prepare(imagined._replace(values=values), config)
    return Judged(imagined, batch, goals, loss)


@jit
def _value_loss(imagined: Imagined, returns: Float[Array, "H N"]) -> Scalar:
    flat = (imagined.values.ravel(), returns.ravel(), imagined.weight.ravel())
    return objectives.value_loss(*flat)


@partial(jit, static_argnames="gamma")
def _baseline(imagined: Imagined, gamma: float) -> tuple[Float[Array, "H N"], Scalar]:
    """What a linear function says of the returns it was fitted to, and its loss."""
    returns = discounted_sum(imagined.rewards, imagined.continues, gamma)
    baseline = fit_linear(imagined.observations, returns, imagined.weight)
    values = predict_linear(baseline, imagined.observations)
    flat = (values.ravel(), returns.ravel(), imagined.weight.ravel())
    return values, objectives.value_loss(*flat)


def adapt(policy: GaussianPolicy, batch: Batch, rate: float | Scalar) -> GaussianPolicy:
    """The inner step: theta_i = theta + alpha grad E[log pi_theta(a|s) A]."""

    def gain(candidate: GaussianPolicy) -> Scalar:
        chosen = candidate.log_prob(batch.observations, batch.actions)
        return objectives.weighted_mean(chosen * batch.advantages, batch.weight)

    slope = jax.grad(gain)(policy)
    adapted: GaussianPolicy = jax.tree.map(lambda w, g: w + rate * g, policy, slope)
    return adapted


@jit
def adapt_to_all(
    policy: GaussianPolicy, batches: Batch, rate: Scalar
) -> GaussianPolicy:
    """The policy adapted to every task, as a stack."""
    stack: GaussianPolicy = jax.vmap(adapt, (None, 0, None))(policy, batches, rate)
    return stack


def meta_objective(
    policy: GaussianPolicy, before: Batch, after: Batch, rate: float | Scalar
) -> Scalar:
    """Mean over tasks of E[r A] of the adapted policies, given theta.

    Args:
        policy: theta.
        before: samples of theta in every task, stacked, which it adapts with.
        after: samples of the adapted policies in every task.
        rate: alpha.
    """

    def gain(first: Batch, second: Batch) -> Scalar:
        ratio = likelihood_ratio(adapt(policy, first, rate), second)
        return objectives.surrogate(ratio, second.advantages, second.weight)

    return jnp.mean(jax.vmap(gain)(before, after))


def meta_divergence(
    policy: GaussianPolicy,
    adapted: GaussianPolicy,
    before: Batch,
    after: Batch,
    rate: float | Scalar,
) -> Scalar:
    """Mean over tasks of KL(old theta_i || theta_i(theta)).

    Args:
        policy: theta.
        adapted: the old theta_i, stacked.
        before: samples that theta adapts with.
        after: samples of the adapted policies.
        rate: alpha.
    """

    def divergence_of(old: GaussianPolicy, first: Batch, second: Batch) -> Scalar:
        new = adapt(policy, first, rate)
        return objectives.weighted_mean(
            kl(old, new, second.observations), second.weight
        )

    return jnp.mean(jax.vmap(divergence_of)(adapted, before, after))


@partial(jit, static_argnames="config")
def meta_step(
    policy: GaussianPolicy,
    adapted: GaussianPolicy,
    before: Batch,
    after: Batch,
    rate: Scalar,
    config: TrustRegionConfig,
) -> tuple[GaussianPolicy, StepReport]:
    """The outer step: TRPO on the meta-objective."""
    return trust_region_step(
        policy,
        lambda theta: meta_objective(theta, before, after, rate),
        lambda theta: meta_divergence(theta, adapted, before, after, rate),
        config,
    )


def _as_one(batches: Batch) -> Batch:
    """The samples of all tasks as one batch."""
    joined: Batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batches)
    return joined


def side_by_side(stack: Imagined) -> Imagined:
    """The trajectories of all tasks as one batch."""

    def join(x: Array) -> Array:
        if x.ndim == 1:
            return jnp.sum(x)
        joined = jnp.moveaxis(x, 0, 1)
        return joined.reshape(joined.shape[0], -1, *joined.shape[3:])

    joined: Imagined = jax.tree.map(join, stack)
    return joined
