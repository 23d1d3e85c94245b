"""POMBU: Policy Optimization with Model-Based Uncertainty (Algorithm 2).

One iteration collects real trajectories with exploration policies, fits the ensemble,
improves value and policy M times on imagined trajectories, and evaluates. The paper's
loop begins with the fit and ends with exploration; turned so that collection comes
first, every evaluated policy has learned from exactly the real steps counted so far.

MEPPO is the same with alpha = 0, beta = 0 and no exploration policies.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.algorithms.base import (
    EnsembleLearner,
    Metrics,
    WithEnsemble,
    after_iteration,
    as_noisy,
    keys_of,
    share_done,
)
from pombu.algorithms.pombu.config import POMBUConfig
from pombu.data import Normaliser
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.fit import fresh_ensemble
from pombu.envs import Episode, Task
from pombu.nn import (
    GaussianPolicy,
    Value,
    VarianceValue,
    entropy,
    init_timed_value,
    init_value,
    init_variance,
)
from pombu.optim.metrics import (
    NOTHING_SOUGHT,
    centre_bonus,
    exploration_metrics,
    improvement_metrics,
    improvement_summary,
    penalty_share,
    policy_metrics,
)
from pombu.optim.objectives import exploration_advantage
from pombu.optim.ppo import (
    improve_policy,
    improve_value,
    improve_variance,
    policy_adam,
    prepare,
    value_adam,
)
from pombu.rng import Keys
from pombu.rollout.held_out import (
    Calibrated,
    calibration_of,
    correction_of,
    no_correction,
    not_calibrated,
)
from pombu.rollout.imagine import Imagined
from pombu.rollout.plan import RolloutPlan, outlook
from pombu.rollout.real import alone, gather
from pombu.rollout.returns import Correction
from pombu.training.algorithm import StageTimer


class State(WithEnsemble):
    """Everything that a run is, beside its episodes."""

    added: ClassVar[Collection[str]] = (
        *("calibration/scales", "calibration/whole"),
        "calibration/horizon",
    )
    """Arrays that earlier versions did not write: not known is what they start with."""

    alpha: np.ndarray
    """The penalty's weight now."""
    policy_optimiser: Any
    value: Value
    value_optimiser: Any
    tail: VarianceValue | None = None
    """U_psi; None where nothing continues D past the end of a trajectory."""
    tail_optimiser: Any = None
    calibration: Calibrated | None = None
    """How sigma is corrected; None where that is not asked for."""
    correction: Correction | None = None
    """How the uncertainty in objective and bonus is corrected; None where it is the
    members' own."""


class Learner(EnsembleLearner[POMBUConfig, State]):
    """Algorithm 2 over one task: `init` a state, then `iterate` it."""

    algorithm = "pombu"

    def __init__(
        self,
        task: Task,
        config: POMBUConfig,
        name: str = "",
        workers: int | None = None,
    ) -> None:
        config.require_full_minibatches(task.horizon)
        super().__init__(task, config, name, workers)

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        dim, fresh = task.observation_dim, self.fresh_fields(seed)
        horizon = self.task.horizon if config.value.clock else None
        value: Value = init_value(keys.jax("value"), dim, config.value.hidden)
        if horizon is not None:
            value = init_timed_value(
                keys.jax("value"), dim, config.value.hidden, horizon
            )
        tail = None
        if config.tail.use:
            tail = init_variance(keys.jax("tail"), dim, config.tail.hidden, horizon)
        return State(
            **fresh,
            alpha=np.asarray(config.alpha, float),
            policy_optimiser=policy_adam(config.policy).init(fresh["policy"]),
            value=value,
            value_optimiser=value_adam(config.value).init(value),
            tail=tail,
            tail_optimiser=tail and value_adam(config.tail).init(tail.network),
            ensemble=fresh_ensemble(keys.jax("ensemble"), task, config.model),
            calibration=not_calibrated() if self.calibrates else None,
            correction=no_correction() if config.corrects else None,
        )

    @property
    def calibrates(self) -> bool:
        """Whether evaluations correct sigma: a simulator has none."""
        return self.config.calibration.use and self.config.model.kind == "ensemble"

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """One pass of Algorithm 2's loop."""
        config = self.config
        keys = keys_of(state)
        with stage("explore"):
            state, explorers, sought = self.exploration(state, episodes)
        with stage("collect"):
            collected = gather(
                self.task.cut(config.episode_steps),
                explorers,
                config.trajectories,
                config.least_steps,
                keys,
            )
            episodes.append(collected)
        state, learned = self.update(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated, real = self.evaluation(state, keys, stage)
            state, calibrated = self.calibrate(state, real)
        return state, {**evaluated, **calibrated, **learned, **sought}

    def calibrate(self, state: State, real: Sequence[Episode]) -> tuple[State, Metrics]:
        """Fit the correction of sigma to real episodes that nothing was learned from.

        Where it cannot be fitted the state says that there is none: what was right of
        an earlier model need not be right of this one.
        """
        if state.calibration is None:
            return state, {}
        found = calibration_of(
            state.policy,
            state.value,
            self.dynamics(state),
            self.rules,
            real,
            self.task.horizon,
            keys_of(state).jax("calibrate"),
        )
        state = eqx.tree_at(lambda s: s.calibration, state, found)
        if state.correction is None:
            return state, found.metrics()
        correction = correction_of(
            state.correction,
            self.config.returns,
            state.value,
            self.dynamics(state),
            self.rules,
            real,
            self.task.horizon,
        )
        state = eqx.tree_at(lambda s: s.correction, state, correction)
        return state, {
            **found.metrics(),
            "uncertainty_scale": float(correction.scale),
            "uncertainty_rho": float(correction.rho),
        }

    def explore(
        self, state: State, episodes: EpisodeStore
    ) -> tuple[State, tuple[GaussianPolicy, Normaliser]]:
        """What to collect the next real episodes with, as one stack of policies."""
        state, explorers, _ = self.exploration(state, episodes)
        return state, explorers

    def exploration(
        self, state: State, episodes: EpisodeStore
    ) -> tuple[State, tuple[GaussianPolicy, Normaliser], Metrics]:
        """The same, and what the exploration policies seek."""
        keys = keys_of(state)
        if int(state.iteration) < self.config.policy.reset_std_iterations:
            noisy = as_noisy(state.policy, self.config.policy)
            state = eqx.tree_at(lambda s: s.policy, state, noisy)
        explorers, imagined, sought = self.explorers(state, episodes, keys)
        return self.imagined(state, imagined), explorers, sought

    def update(
        self,
        state: State,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[State, Metrics]:
        """Learn from newly collected episodes, which are among `episodes` already."""
        config = self.config
        keys = keys_of(state)
        state = self.add_episodes(state, collected)
        with stage("fit"):
            state, fitted = self.fit(state, episodes, keys, collected)
        state, improved = self.improve(state, episodes, keys, stage)
        state = self.imagined(state, config.updates * config.imagination.trajectories)
        return after_iteration(state), {
            **improved,
            **policy_metrics(state.policy, collected, state.experience),
            **fitted,
        }

    def offline(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """An iteration that learns from stored episodes alone, and cautiously.

        The ensemble is fitted once, for they do not change. No real step would show
        where a promise was wrong. So alpha weighs uncertainty against gain and never
        gives way: advantages are A - alpha sqrt(D), the bonus of exploration turned
        round, in place of the penalty on change, which would only slow down how a
        policy comes to where nothing is known. D is the bound that holds however the
        errors of steps depend, because a model repeats its errors.
        """
        keys = keys_of(state)
        fitted: Metrics = {}
        if not int(state.experience.observation.count):
            stored, before = list(episodes), state.real_steps
            state = self.add_episodes(state, stored)
            state = eqx.tree_at(lambda s: s.real_steps, state, before)
            with stage("fit"):
                state, fitted = self.fit(state, episodes, keys, stored)
        state, improved = self.improve(state, episodes, keys, stage, cautious=True)
        config = self.config
        state = self.imagined(state, config.updates * config.imagination.trajectories)
        with stage("evaluate"):
            promised = outlook(
                state.policy,
                self.dynamics(state),
                self.rules,
                self.task,
                list(episodes),
                keys,
            )
            evaluated, real = self.evaluation(state, keys, stage)
            state, calibrated = self.calibrate(state, real)
        return after_iteration(state), {
            **evaluated,
            **calibrated,
            **improved,
            "entropy": float(entropy(state.policy)),
            **promised,
            **fitted,
        }

    def improve(
        self,
        state: State,
        episodes: EpisodeStore,
        keys: Keys,
        stage: StageTimer,
        cautious: bool = False,
    ) -> tuple[State, Metrics]:
        """M times: imagine, then train V_phi and pi_theta side by side.

        The advantages come from the value function before its update, so neither of the
        two has to wait for the other. What is cautious is explained by `offline`.
        """
        config = self.config
        done = share_done(state, self.config.iterations)
        imagine_batch = self.imaginer(state, episodes, keys)
        plan = RolloutPlan(
            "imagine",
            0,
            config.imagination.trajectories,
            config.imagination.shards,
            jnp.full(config.model.members, 1.0 / config.model.members),
        )
        policy, policy_optimiser = state.policy, state.policy_optimiser
        value, value_optimiser = state.value, state.value_optimiser
        tail, tail_optimiser = state.tail, state.tail_optimiser
        alpha = float(state.alpha)
        # Offline alpha weighs doubt against gain, in place of the penalty on change.
        avoidance = config.kappa
        units = config.returns, state.correction
        if cautious:
            avoidance, units = alpha, _bounded(*units)
        summaries, shares = [], []
        for i in range(config.updates):
            with stage("imagine"):
                imagined = imagine_batch(
                    policy, value, plan._replace(number=i, tail=tail)
                )
                batch, goals = prepare(imagined, *units)
                if avoidance:
                    centred = centre_bonus(goals.uncertainty, imagined.weight)
                    shares.append(
                        penalty_share(
                            batch.advantages, centred, batch.weight, avoidance
                        )
                    )
                    wary = exploration_advantage(batch.advantages, centred, -avoidance)
                    batch = batch._replace(advantages=wary)
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
                        0.0 if cautious else alpha,
                        config.policy,
                    ),
                )
                value, value_optimiser, value_loss = new_value
                policy, policy_optimiser, report = new_policy
                if tail is not None:
                    tail, tail_optimiser = improve_variance(
                        tail,
                        tail_optimiser,
                        batch,
                        goals.variances,
                        keys.numpy("tail", i),
                        config.tail.rate(done),
                        config.tail,
                    )
            summary = improvement_summary(report, value_loss, imagined, goals, alpha)
            summaries.append(summary)
            if not cautious:
                alpha = config.next_alpha(alpha, report.kl)
        state = eqx.tree_at(lambda s: s.alpha, state, np.asarray(alpha))
        state = eqx.tree_at(
            lambda s: (s.policy, s.policy_optimiser, s.value, s.value_optimiser),
            state,
            (policy, policy_optimiser, value, value_optimiser),
        )
        if tail is not None:
            state = eqx.tree_at(
                lambda s: (s.tail, s.tail_optimiser), state, (tail, tail_optimiser)
            )
        metrics = {**improvement_metrics(summaries), "alpha": alpha}
        if shares:
            share = float(np.mean(jax.device_get(shares)))
            metrics["penalty_share" if cautious else "avoided_share"] = share
        return state, metrics

    def explorers(
        self, state: State, episodes: EpisodeStore, keys: Keys
    ) -> tuple[tuple[GaussianPolicy, Normaliser], int, Metrics]:
        """Exploration policies, how many trajectories they imagined, what they seek.

        Each is trained from pi_theta on its own virtual trajectories to seek what is
        uncertain, A + beta sqrt(D). Before the first fit pi_theta itself explores.
        """
        config = self.config
        normaliser = self.normaliser(state)
        number = config.exploration.policies
        if not number or not int(state.iteration):
            return alone(state.policy, normaliser), 0, NOTHING_SOUGHT if number else {}
        done = share_done(state, self.config.iterations)
        imagine_batch = self.imaginer(state, episodes, keys)

        def explorer(index: int) -> GaussianPolicy:
            weights = self._member_weights(keys.jax("members", index))
            plan = RolloutPlan(
                "explore",
                index,
                config.exploration.trajectories,
                1,
                weights,
                state.tail,
            )
            imagined = imagine_batch(state.policy, state.value, plan)
            batch, goals = prepare(imagined, config.returns, state.correction)
            bonus = batch.uncertainty
            if config.exploration.centred:
                bonus = centre_bonus(goals.uncertainty, imagined.weight)
            bold = exploration_advantage(batch.advantages, bonus, config.beta)
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
        evenly = jnp.full(config.model.members, 1.0 / config.model.members)
        virtual = config.exploration.trajectories
        held_out = RolloutPlan("look", 0, virtual, 1, evenly, state.tail)

        def look(policy: GaussianPolicy) -> Imagined:
            return imagine_batch(policy, state.value, held_out)

        # What is only looked at is not counted, as evaluation episodes are not.
        imagined = number * virtual
        return (
            (stack, normaliser),
            imagined,
            exploration_metrics(
                state.policy,
                policies,
                look,
                config.returns,
                self.workers,
                state.correction,
            ),
        )

    def _member_weights(self, key: PRNGKeyArray) -> Float[Array, " K"]:
        """How often each member gives an exploration policy its next state."""
        members = self.config.model.members
        if not self.config.exploration.random_members:
            return jnp.full(members, 1.0 / members)
        return jax.random.dirichlet(key, jnp.ones(members))


def _bounded(
    returns: ReturnConfig, correction: Correction | None
) -> tuple[ReturnConfig, Correction | None]:
    """What makes D the bound that holds however the errors of steps depend.

    Where members say themselves how theirs do, that is left as it is.
    """
    if returns.correlation == "full":
        return returns, correction
    scale = jnp.ones(()) if correction is None else correction.scale
    whole = Correction(jnp.ones(()), scale)
    return replace(returns, correlation="fitted"), whole
