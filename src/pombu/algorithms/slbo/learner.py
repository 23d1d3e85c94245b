"""SLBO: Stochastic Lower Bound Optimization (Luo et al., 2019).

One iteration (a stage) collects real trajectories with the policy and
Ornstein-Uhlenbeck noise, and then alternates, round by round, between training the
model on its multi-step loss and improving the policy by TRPO in the model as it is.
Model and policy thus change together, so that the policy cannot settle on what one
model got wrong.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from pombu.algorithms.base import (
    Imagining,
    Metrics,
    ModelLearner,
    after_iteration,
    as_noisy,
    keys_of,
    share_done,
)
from pombu.algorithms.slbo.config import NoiseConfig, SLBOConfig
from pombu.algorithms.slbo.multistep import (
    init_network,
    network_adam,
    network_dynamics,
    train_network,
)
from pombu.data import transitions
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task, collect_rounds
from pombu.nn import MLP, GaussianPolicy, init_value
from pombu.optim.metrics import (
    policy_metrics,
    trust_region_metrics,
    trust_region_summary,
)
from pombu.optim.objectives import weighted_mean
from pombu.optim.ppo import Batch, improve_value, prepare, value_adam
from pombu.optim.trpo import improve_policy
from pombu.rng import Keys
from pombu.rollout.plan import RolloutPlan
from pombu.rollout.real import Act, act_alone, round_keys
from pombu.training.algorithm import StageTimer


class State(Imagining):
    """Everything that a run is, beside its episodes."""

    value: MLP
    value_optimiser: Any
    network: Layers
    network_optimiser: Any


class Learner(ModelLearner[SLBOConfig, State]):
    """SLBO over one task: `init` a state, then `iterate` it."""

    algorithm = "slbo"

    def __init__(
        self,
        task: Task,
        config: SLBOConfig,
        name: str = "",
        workers: int | None = None,
    ) -> None:
        config.require_full_minibatches(task.horizon)
        super().__init__(task, config, name, workers)

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        value = init_value(keys.jax("value"), task.observation_dim, config.value.hidden)
        network = init_network(keys.jax("network"), task, config.model)
        return State(
            **self.fresh_fields(seed),
            value=value,
            value_optimiser=value_adam(config.value).init(value),
            network=network,
            network_optimiser=network_adam(config.model).init(network),
        )

    def dynamics(self, state: State) -> Dynamics:
        """The learned dynamics as the state has it."""
        return network_dynamics(
            state.network, state.experience, self.task, self.config.model, state.ending
        )

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """One stage: collect, alternate, evaluate."""
        config, task = self.config, self.task
        keys = keys_of(state)
        with stage("collect"):
            collected = collect_rounds(
                task, partial(self.round, state, keys), config.least_steps
            )
            episodes.append(collected)
        state, learned = self.update(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated = self.evaluate(state, keys, stage)
        return state, {**evaluated, **learned}

    def round(self, state: State, keys: Keys, index: int) -> tuple[Act, list[int]]:
        """How to act in a round of real episodes, and their seeds."""
        config = self.config
        number = config.trajectories
        part, seeds = round_keys(index, number, keys)
        normaliser = self.normaliser(state)
        act = act_alone(state.policy, normaliser, number, keys.jax("collect", *part))
        shape = (number, self.task.action_dim)
        noisy = with_noise(act, shape, config.noise, keys.numpy("noise", *part))
        return noisy, seeds

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
        state, found = self.fit_termination(state, episodes, keys)
        if self.config.policy.reset_std:
            noisy = as_noisy(state.policy, self.config.policy)
            state = eqx.tree_at(lambda s: s.policy, state, noisy)
        state, alternated = self.alternate(state, episodes, keys, stage)
        return after_iteration(state), {
            **alternated,
            **policy_metrics(state.policy, collected, state.experience),
            **found,
        }

    def alternate(
        self, state: State, episodes: EpisodeStore, keys: Keys, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Rounds of model updates and policy updates."""
        config = self.config
        learns = config.model.kind == "network" and config.model_updates > 0
        data = transitions(list(episodes), config.rows(self.task.horizon))
        dynamics, optimiser = self.dynamics(state), state.network_optimiser
        losses, summaries = [], []
        for number in range(config.rounds):
            if learns:
                with stage("fit"):
                    dynamics, optimiser, loss = train_network(
                        dynamics,
                        optimiser,
                        data,
                        episodes.steps,
                        config.model_updates,
                        config.model,
                        keys.numpy("fit", number),
                    )
                    losses.append(float(loss))
            state, done = self.improve(state, dynamics, episodes, keys, number, stage)
            summaries += done
        state = eqx.tree_at(
            lambda s: (s.network, s.network_optimiser),
            state,
            (dynamics.members, optimiser),
        )
        metrics = trust_region_metrics(summaries)
        return state, metrics | ({"model_loss": losses[-1]} if losses else {})

    def improve(
        self,
        state: State,
        dynamics: Dynamics,
        episodes: EpisodeStore,
        keys: Keys,
        number: int,
        stage: StageTimer,
    ) -> tuple[State, list[dict[str, Array]]]:
        """The policy updates of one round."""
        config, imagination = self.config, self.config.imagination
        imagine_batch = self.imaginer(state, episodes, keys, dynamics)
        plan = RolloutPlan(
            "imagine", 0, imagination.trajectories, imagination.shards, jnp.ones(1)
        )
        bonus = config.entropy_weight * (
            int(state.iteration) < config.entropy_iterations
        )
        done = share_done(state, config.iterations)
        policy, value, optimiser = state.policy, state.value, state.value_optimiser
        summaries = []
        for i in range(config.policy_updates):
            part = number * config.policy_updates + i
            with stage("imagine"):
                imagined = imagine_batch(policy, value, plan._replace(number=part))
                batch, goals = prepare(imagined, config.returns)
            with stage("improve"):
                new_value, new_policy = self.workers.both(
                    partial(
                        improve_value,
                        value,
                        optimiser,
                        batch,
                        keys.numpy("value", part),
                        config.value.rate(done),
                        config.value,
                    ),
                    partial(
                        improve_policy,
                        policy,
                        batch,
                        config.trust_region,
                        limited_entropy,
                        bonus,
                    ),
                )
                value, optimiser, loss = new_value
                policy, report = new_policy
            summaries.append(trust_region_summary(report, loss, imagined, goals))
        steps = config.policy_updates * plan.trajectories * self.rules.horizon
        improved: State = eqx.tree_at(
            lambda s: (s.policy, s.value, s.value_optimiser, s.imagined_steps),
            state,
            (policy, value, optimiser, state.imagined_steps + steps),
        )
        return improved, summaries


def with_noise(
    act: Act, shape: tuple[int, int], config: NoiseConfig, seed: Sequence[int]
) -> Act:
    """Add Ornstein-Uhlenbeck noise that starts at 0 to every episode's actions."""
    rng = np.random.default_rng(list(seed))
    level = np.zeros(shape, np.float32)

    def noisy(observations: np.ndarray, step: int) -> np.ndarray:
        nonlocal level
        fresh = rng.standard_normal(shape, np.float32)
        level = (1.0 - config.theta) * level + config.sigma * fresh
        actions: np.ndarray = np.asarray(act(observations, step)) + level
        return actions

    return noisy


def limited_entropy(
    policy: GaussianPolicy, batch: Batch, limit: float = 2.0
) -> Float[Array, ""]:
    """Mean over states of -∫ pi log pi over actions within plus or minus `limit`.

    Beyond the limit more noise is not worth more, because actions are clipped anyway.
    """
    mean, std = policy.mean(batch.observations), jnp.exp(policy.log_std)
    low, high = (-limit - mean) / std, (limit - mean) / std
    inside = norm.cdf(high) - norm.cdf(low)
    edges = high * norm.pdf(high) - low * norm.pdf(low)
    log_scale = policy.log_std + 0.5 * math.log(2.0 * math.pi)
    within = log_scale * inside + 0.5 * (inside - edges)
    return weighted_mean(jnp.sum(within, -1), batch.weight)
