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
from pombu.algorithms.metrpo.config import METRPOConfig
from pombu.data import Normaliser
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import PlainReturnConfig
from pombu.dynamics.fit import fresh_ensemble
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task
from pombu.nn import (
    GaussianPolicy,
    LinearValue,
    fit_linear,
    init_linear,
    predict_linear,
)
from pombu.optim.metrics import (
    policy_metrics,
    trust_region_metrics,
    trust_region_summary,
)
from pombu.optim.objectives import value_loss
from pombu.optim.ppo import Batch, improve_value, prepare
from pombu.optim.trpo import improve_policy
from pombu.parallel import jit, ready
from pombu.rng import Keys
from pombu.rollout.imagine import ImaginationRules, Imagined, imagine
from pombu.rollout.plan import RolloutPlan, starts
from pombu.rollout.real import alone, gather
from pombu.rollout.returns import Targets
from pombu.training.algorithm import StageTimer


class State(WithBaseline):
    """Everything that a run is, beside its episodes."""

    baseline: LinearValue


class Learner(EnsembleLearner[METRPOConfig, State]):
    """ME-TRPO over one task: `init` a state, then `iterate` it."""

    algorithm = "metrpo"

    def __init__(
        self,
        task: Task,
        config: METRPOConfig,
        name: str = "",
        workers: int | None = None,
    ) -> None:
        super().__init__(task, config, name, workers, config.draw)

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        return State(
            **self.fresh_fields(seed),
            **fresh_value(keys.jax("value"), task, config.baseline),
            baseline=init_linear(task.observation_dim),
            ensemble=fresh_ensemble(keys.jax("ensemble"), task, config.model),
        )

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Collect, fit, improve and evaluate."""
        config, task = self.config, self.task
        keys = keys_of(state)
        with stage("collect"):
            _, policies = self.explore(state, episodes)
            collected = gather(
                task.cut(config.episode_steps),
                policies,
                config.trajectories,
                config.least_steps,
                keys,
            )
            episodes.append(collected)
        state, learned = self.update(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated = self.evaluate(state, keys, stage)
        return state, {**evaluated, **learned}

    def explore(
        self, state: State, episodes: EpisodeStore
    ) -> tuple[State, tuple[GaussianPolicy, Normaliser]]:
        """What to collect the next real episodes with: the policy itself."""
        return state, alone(state.policy, self.normaliser(state))

    def update(
        self,
        state: State,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[State, Metrics]:
        """Learn from newly collected episodes, which are among `episodes` already."""
        keys = keys_of(state)
        state = self.add_episodes(state, collected)
        with stage("fit"):
            state, fitted = self.fit(state, episodes, keys, collected)
        state, improved = self.improve(state, episodes, keys, stage)
        return after_iteration(state), {
            **improved,
            **policy_metrics(state.policy, collected, state.experience),
            **fitted,
        }

    def improve(
        self, state: State, episodes: EpisodeStore, keys: Keys, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """TRPO steps, each on a batch of its own, until the last or the stop rule."""
        config = self.config
        policy, baseline = state.policy, state.baseline
        value, optimiser = state.value, state.value_optimiser
        done = share_done(state, config.iterations)
        if config.policy.reset_std:
            policy = as_noisy(policy, config.policy)
        imagine_batch = self.imaginer(state, episodes, keys)
        rule = None
        if config.stop_rule.use:
            rule = _StopRule(self, state, episodes, keys, policy)
        plan = self.plan("imagine")
        summaries = []
        for i in range(config.updates):
            with stage("imagine"):
                imagined = imagine_batch(policy, value, plan._replace(number=i))
                if value is None:
                    batch, goals, baseline, loss = judge(
                        imagined, baseline, config.returns
                    )
                else:
                    batch, goals = prepare(imagined, config.returns)
                    value, optimiser, loss = improve_value(
                        value,
                        optimiser,
                        batch,
                        keys.numpy("value", i),
                        config.baseline.rate(done),
                        config.baseline,
                    )
            with stage("improve"):
                policy, report = ready(
                    improve_policy(policy, batch, config.trust_region)
                )
            summaries.append(trust_region_summary(report, loss, imagined, goals))
            if rule is not None:
                with stage("validate"):
                    if rule.stops(policy, i + 1):
                        break
        imagined_steps = len(summaries) * plan.trajectories * self.rules.horizon
        if rule is not None:
            policy = rule.saved
            imagined_steps += rule.steps
        improved: State = eqx.tree_at(
            lambda s: (s.policy, s.baseline, s.imagined_steps),
            state,
            (policy, baseline, state.imagined_steps + imagined_steps),
        )
        if value is not None:
            improved = eqx.tree_at(
                lambda s: (s.value, s.value_optimiser), improved, (value, optimiser)
            )
        metrics = {"updates": float(len(summaries)), **trust_region_metrics(summaries)}
        return improved, metrics

    def plan(self, stage: str) -> RolloutPlan:
        """A batch of virtual trajectories, drawn evenly from the members."""
        imagination, members = self.config.imagination, self.config.model.members
        evenly = jnp.full(members, 1.0 / members)
        return RolloutPlan(
            stage, 0, imagination.trajectories, imagination.shards, evenly
        )


_predict = jit(predict_linear)


@jit
def _fit_baseline(
    imagined: Imagined, values: Float[Array, "H N"], returns: Float[Array, "H N"]
) -> tuple[LinearValue, Float[Array, ""]]:
    fitted = fit_linear(imagined.observations, returns, imagined.weight)
    flat = (values.ravel(), returns.ravel(), imagined.weight.ravel())
    return fitted, value_loss(*flat)


def judge(
    imagined: Imagined, baseline: LinearValue, config: PlainReturnConfig
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
        self._dynamics = learner.dynamics(state)
        number, key = self._config.starts, keys.jax("validate start")
        self._starts = starts(learner.task, list(episodes), number, key)
        self._returns = self._validate(policy)

    def stops(self, policy: GaussianPolicy, updates: int) -> bool:
        """Look at the policy when it is time to; whether to stop improving it."""
        last = self._learner.config.updates
        if updates % self._config.every and updates < last:
            return False
        returns = self._validate(policy)
        if np.mean(returns < self._returns) <= self._config.tolerance:
            self.saved, self._returns, self._saved_at = policy, returns, updates
        return updates - self._saved_at >= self._config.patience

    def _validate(self, policy: GaussianPolicy) -> Float[np.ndarray, " K"]:
        """The deterministic policy's return in each member."""
        members = self._dynamics.members.count
        self.steps += members * len(self._starts) * self._learner.rules.horizon
        found = self._learner.workers.map(
            lambda member: member_return(
                policy, self._dynamics, self._learner.rules, self._starts, member
            ),
            range(members),
        )
        return np.array([float(one) for one in found])


@jit
def member_return(
    policy: GaussianPolicy,
    dynamics: Dynamics,
    rules: ImaginationRules,
    first: Float[Array, "n o"],
    member: int | Int[Array, ""],
) -> Float[Array, ""]:
    """Mean return of the policy's means in one member alone.

    The lowest there is where no trajectory stays within bounds.
    """
    still = GaussianPolicy(policy.mean, jnp.full_like(policy.log_std, -jnp.inf))
    imagined = imagine(
        still,
        None,
        dynamics.only(jnp.asarray(member)),
        rules,
        first,
        jnp.ones(1),
        Keys(0, 0).jax("unused"),
    )
    counted = jnp.sum(imagined.raw_rewards * imagined.weight)
    kept = imagined.weight[0].sum()
    return jnp.where(kept > 0, counted / jnp.maximum(kept, 1.0), -jnp.inf)
