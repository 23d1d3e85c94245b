"""ME-TRPO: Model-Ensemble Trust-Region Policy Optimization (Kurutach et al., 2018).

One iteration collects real trajectories with the policy, fits the ensemble, resets the
policy's standard deviation and improves the policy by TRPO on trajectories imagined in
randomly drawn members, for a fixed number of updates or until the members disagree that
it still gets better. A linear function of state and time is the baseline.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pombu.config import METRPOConfig, ReturnConfig
from pombu.data import Experience, Normaliser, learn_from, no_experience
from pombu.diagnosis import prediction_error
from pombu.dreams import Plan, dreamer
from pombu.endings import Ending, fit_ending, fresh_ending
from pombu.envs import Episode, Task
from pombu.imagination import Imagined, imagine
from pombu.improvement import Batch, prepare
from pombu.models import Ensemble
from pombu.objectives import value_loss
from pombu.policies import GaussianPolicy, init_policy
from pombu.randomness import Keys
from pombu.reporting import (
    fit_metrics,
    policy_metrics,
    trust_region_metrics,
    trust_region_summary,
)
from pombu.returns import Targets
from pombu.rollouts import alone, evaluate, gather, policy_of
from pombu.training.algorithm import Policy
from pombu.training.episodes import EpisodeStore
from pombu.training.stages import StageTimer
from pombu.trpo import improve_policy
from pombu.values import LinearValue, fit_linear, init_linear, predict_linear
from pombu.workers import Workers, jit
from pombu.worlds import (
    Rules,
    World,
    fresh_ensemble,
    refit,
    rules_of,
    starts,
    world_of,
)

Metrics = dict[str, float]


class State(eqx.Module):
    """Everything that a run is, beside its episodes."""

    seed: np.ndarray
    iteration: np.ndarray
    real_steps: np.ndarray
    imagined_steps: np.ndarray
    policy: GaussianPolicy
    baseline: LinearValue
    ensemble: Ensemble
    experience: Experience
    ending: Ending | None
    """Learned termination; None where it is known."""


class Learner:
    """ME-TRPO over one task: `init` a state, then `iterate` it."""

    def __init__(
        self,
        task: Task,
        config: METRPOConfig,
        name: str = "metrpo",
        workers: int | None = None,
    ) -> None:
        self.name = name
        self.task = task
        self.config = config
        self.workers = Workers(workers)
        self.rules = rules_of(
            task, config.returns, config.imagination, config.model, config.draw
        )

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        dim = task.observation_dim
        return State(
            seed=np.asarray(seed),
            iteration=np.asarray(0),
            real_steps=np.asarray(0),
            imagined_steps=np.asarray(0),
            policy=init_policy(
                keys.jax("policy"), dim, task.action_dim, config.policy.hidden
            ),
            baseline=init_linear(dim),
            ensemble=fresh_ensemble(keys.jax("ensemble"), task, config.model),
            experience=no_experience(dim, task.action_dim),
            ending=fresh_ending(keys.jax("ending"), task, config.model.termination),
        )

    def policy(self, state: State) -> Policy:
        """pi_theta, to act with."""
        return policy_of(state.policy, Normaliser.of(state.experience.observation))

    def world(self, state: State) -> World:
        """The learned world as the state has it."""
        return world_of(
            state.ensemble, state.experience, self.config.model, state.ending
        )

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Collect, fit, improve and evaluate."""
        config, task = self.config, self.task
        keys = Keys(int(state.seed), int(state.iteration))
        with stage("collect"):
            _, policies = self.explore(state, episodes)
            collected = gather(
                task, policies, config.trajectories, config.least_steps, keys
            )
            episodes.append(collected)
        state, learned = self.digest(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated, real = evaluate(
                task, self.policy(state), config.evaluation_episodes, keys
            )
            errors = prediction_error(self.world(state), self.rules, real)
        return state, {**evaluated, **learned, **errors}

    def explore(
        self, state: State, episodes: EpisodeStore
    ) -> tuple[State, tuple[GaussianPolicy, Normaliser]]:
        """What to collect the next real episodes with: the policy itself."""
        return state, alone(state.policy, Normaliser.of(state.experience.observation))

    def digest(
        self,
        state: State,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[State, Metrics]:
        """Learn from newly collected episodes, which are among `episodes` already."""
        config, task, returns = self.config, self.task, self.config.returns
        keys = Keys(int(state.seed), int(state.iteration))
        experience = learn_from(
            state.experience, collected, returns.gamma, returns.reward_clip
        )
        with stage("fit"):
            ensemble, report = refit(
                state.ensemble,
                task,
                list(episodes),
                experience,
                config.model,
                config.rows(task.horizon),
                keys,
                int(state.iteration),
                self.workers,
            )
            ending, found = fit_ending(state.ending, list(episodes), experience, keys)
        state = eqx.tree_at(
            lambda s: (s.iteration, s.real_steps, s.ensemble, s.experience, s.ending),
            state,
            (
                state.iteration + 1,
                state.real_steps + sum(map(len, collected)),
                ensemble,
                experience,
                ending,
            ),
            is_leaf=lambda leaf: leaf is None,
        )
        state, improved = self.improve(state, episodes, keys, stage)
        return state, {
            **improved,
            **policy_metrics(state.policy, collected, experience),
            **fit_metrics(report),
            **found,
        }

    def improve(
        self, state: State, episodes: EpisodeStore, keys: Keys, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """TRPO steps, each on a batch of its own, until the last or the stop rule."""
        config = self.config
        policy, baseline = state.policy, state.baseline
        if config.policy.reset_std:
            policy = GaussianPolicy(policy.mean, jnp.zeros_like(policy.log_std))
        dream = dreamer(
            config.model.kind,
            self.task,
            self.world(state),
            self.rules,
            list(episodes),
            keys,
            self.workers,
        )
        rule = _StopRule(self, state, episodes, keys, policy)
        plan = self.plan("imagine")
        summaries = []
        for i in range(config.updates):
            with stage("imagine"):
                imagined = dream(policy, None, plan._replace(number=i))
                batch, goals, baseline, loss = judge(imagined, baseline, config.returns)
            with stage("improve"):
                policy, report = improve_policy(policy, batch, config.trust_region)
            summaries.append(trust_region_summary(report, loss, imagined, goals))
            if config.stop_rule.use:
                with stage("validate"):
                    if rule.stops(policy, i + 1):
                        break
        if config.stop_rule.use:
            policy = rule.saved
        imagined_steps = len(summaries) * plan.trajectories * self.rules.horizon
        improved: State = eqx.tree_at(
            lambda s: (s.policy, s.baseline, s.imagined_steps),
            state,
            (policy, baseline, state.imagined_steps + imagined_steps + rule.steps),
        )
        metrics = {"updates": float(len(summaries)), **trust_region_metrics(summaries)}
        return improved, metrics

    def plan(self, stage: str) -> Plan:
        """A batch of virtual trajectories, drawn evenly from the members."""
        imagination, members = self.config.imagination, self.config.model.members
        evenly = jnp.full(members, 1.0 / members)
        return Plan(stage, 0, imagination.trajectories, imagination.shards, evenly)


_predict = jit(predict_linear)


@jit
def _fit_baseline(
    imagined: Imagined, values: Float[Array, "H N"], returns: Float[Array, "H N"]
) -> tuple[LinearValue, Float[Array, ""]]:
    fitted = fit_linear(imagined.observations, returns, imagined.weight)
    flat = (values.ravel(), returns.ravel(), imagined.weight.ravel())
    return fitted, value_loss(*flat)


def judge(
    imagined: Imagined, baseline: LinearValue, config: ReturnConfig
) -> tuple[Batch, Targets, LinearValue, Float[Array, ""]]:
    """Advantages by the old baseline, and the baseline fitted to this batch."""
    values = _predict(baseline, imagined.observations)
    batch, goals = prepare(imagined._replace(values=values), config)
    fitted, loss = _fit_baseline(imagined, values, goals.returns)
    return batch, goals, fitted, loss


class _StopRule:
    """Keeps the last policy that most members found no worse than the one before."""

    def __init__(
        self,
        learner: Learner,
        state: State,
        episodes: EpisodeStore,
        keys: Keys,
        policy: GaussianPolicy,
    ) -> None:
        self._config = learner.config.stop_rule
        self._learner = learner
        self.saved = policy
        self.steps = 0
        self._saved_at = 0
        if self._config.use:
            self._world = learner.world(state)
            self._starts = starts(
                learner.task,
                list(episodes),
                self._config.starts,
                keys.jax("validate start"),
            )
            self._returns = self._validate(policy)

    def stops(self, policy: GaussianPolicy, updates: int) -> bool:
        """Look at the policy when it is time to; whether to stop improving it."""
        if updates % self._config.every:
            return False
        returns = self._validate(policy)
        if np.mean(returns < self._returns) <= self._config.tolerance:
            self.saved, self._returns, self._saved_at = policy, returns, updates
        return updates - self._saved_at >= self._config.patience

    def _validate(self, policy: GaussianPolicy) -> Float[np.ndarray, " K"]:
        """The deterministic policy's return in each member."""
        members = self._world.members
        self.steps += members * len(self._starts) * self._learner.rules.horizon
        found = self._learner.workers.map(
            lambda member: member_return(
                policy, self._world, self._learner.rules, self._starts, member
            ),
            range(members),
        )
        return np.array([float(one) for one in found])


@jit
def member_return(
    policy: GaussianPolicy,
    world: World,
    rules: Rules,
    first: Float[Array, "n o"],
    member: int | Int[Array, ""],
) -> Float[Array, ""]:
    """Mean return of the policy's means in one member alone."""
    still = GaussianPolicy(policy.mean, jnp.full_like(policy.log_std, -jnp.inf))
    imagined = imagine(
        still,
        None,
        world.only(jnp.asarray(member)),
        rules,
        first,
        jnp.ones(1),
        Keys(0, 0).jax("unused"),
    )
    counted = jnp.sum(imagined.raw_rewards * imagined.weight)
    return counted / jnp.maximum(imagined.weight[0].sum(), 1.0)
