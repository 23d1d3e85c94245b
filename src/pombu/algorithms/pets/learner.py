"""PETS: Probabilistic Ensembles with Trajectory Sampling (Chua et al., 2018).

There is no policy network: at every real step a planner searches the learned dynamics
for the action sequence with the best return, and the first action of it is taken. One
iteration collects real trajectories that way (the first ones at random), fits the
Gaussian ensemble to all real data and evaluates.

PETS-U is the same with kappa above 0: sequences are ranked by their mean return minus
kappa sqrt(U), the uncertainty of that return by Algorithm 1 along the sequence.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.algorithms.base import (
    Metrics,
    Progress,
    TaskLearner,
    init_counters,
    keys_of,
    share_done,
)
from pombu.algorithms.pets.config import PETSConfig, PlannerConfig
from pombu.algorithms.pets.planning import (
    Controller,
    Planned,
    PlanRules,
    Sequences,
    appraise,
    plan,
)
from pombu.data import (
    Experience,
    Normaliser,
    build_dataset,
    learn_from,
    no_experience,
    regression,
    returns_within,
)
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import GaussianModelConfig
from pombu.dynamics.gaussian import (
    GaussianEnsemble,
    fit_gaussian,
    fresh_gaussian,
    gaussian_adam,
)
from pombu.dynamics.model import Dynamics, dynamics_of
from pombu.envs import Episode, Task, collect
from pombu.nn import MLP, init_value
from pombu.optim.ppo import Batch, improve_value, value_adam
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.real import act_randomly
from pombu.training.algorithm import StageTimer


class State(Progress):
    """Everything that a run is, beside its episodes."""

    ensemble: GaussianEnsemble
    ensemble_optimiser: Any
    value: MLP
    value_optimiser: Any
    experience: Experience


class Learner(TaskLearner[PETSConfig]):
    """PETS over one task: `init` a state, then `iterate` it."""

    algorithm = "pets"

    def __init__(
        self,
        task: Task,
        config: PETSConfig,
        name: str = "",
        workers: int | None = None,
    ) -> None:
        super().__init__(task, config, name, workers)
        planner = config.planner
        self.rules = PlanRules(
            task.action_box,
            config.gamma,
            config.runaway,
            planner.propagation,
            1 if planner.propagation == "mean" else planner.particles,
        )

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        ensemble = fresh_gaussian(keys.jax("ensemble"), task, config.model)
        value = init_value(keys.jax("value"), task.observation_dim, config.value.hidden)
        return State(
            **init_counters(seed),
            ensemble=ensemble,
            ensemble_optimiser=gaussian_adam(ensemble),
            value=value,
            value_optimiser=value_adam(config.value).init(value),
            experience=no_experience(
                task.observation_dim, task.action_dim, task.frame_dim
            ),
        )

    def policy(self, state: State) -> Controller:
        """The planner, to act with."""
        config = self.config
        dynamics = self.dynamics(state)
        value = state.value if config.kappa else None

        def search(observation: np.ndarray, start: Array, key: PRNGKeyArray) -> Planned:
            found: Planned = _search(
                dynamics,
                value,
                self.rules,
                observation,
                start,
                key,
                config.kappa,
                config.planner,
            )
            return found

        return Controller(search, self.task.action_dim, config.planner, self.workers)

    def dynamics(self, state: State) -> Dynamics:
        """The learned dynamics as the state has it."""
        return _gaussian_dynamics(
            state.ensemble, state.experience, self.task, self.config.model
        )

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Collect by planning, fit, evaluate."""
        config, task = self.config, self.task
        keys = keys_of(state)
        seeds = keys.episodes("collect", config.trajectories)
        with stage("collect"):
            if int(state.iteration):
                controller = self.policy(state)
                act = controller.acting(keys.jax("collect"))
                collected = collect(task, act, seeds)
                planned = controller.metrics()
                planned |= self.surprise(state, collected)
            else:
                act = act_randomly(len(seeds), task.action_dim, keys)
                collected = collect(task, act, seeds)
                planned = {"entropy": task.action_dim * math.log(2.0)}
            episodes.append(collected)
        state = eqx.tree_at(
            lambda s: (s.real_steps, s.experience),
            state,
            (
                state.real_steps + sum(map(len, collected)),
                learn_from(state.experience, collected, config.gamma),
            ),
        )
        with stage("fit"):
            state, fitted = self.fit(state, episodes, keys)
        with stage("improve"):
            state, judged = self.improve(state, list(episodes), keys)
        steps = self.particles(planned.pop("sequence_steps", 0.0))
        with stage("evaluate"):
            evaluated, more = self.evaluate(state, collected, keys, stage)
        state = eqx.tree_at(
            lambda s: (s.iteration, s.imagined_steps),
            state,
            (state.iteration + 1, state.imagined_steps + int(steps + more)),
        )
        returns = [episode.rewards.sum() for episode in collected]
        return state, {
            **evaluated,
            **planned,
            **fitted,
            **judged,
            "return_collected": float(np.mean(returns)),
        }

    def fit(
        self, state: State, episodes: EpisodeStore, keys: Keys
    ) -> tuple[State, Metrics]:
        """Train the ensemble on all real data."""
        config = self.config
        inputs, targets = _gaussian_regression(
            list(episodes), state.experience, config.model
        )
        ensemble, optimiser, losses = fit_gaussian(
            state.ensemble,
            state.ensemble_optimiser,
            inputs,
            targets,
            config.model,
            config.rows(self.task.horizon),
            keys.numpy("fit"),
            self.workers,
        )
        fitted: State = eqx.tree_at(
            lambda s: (s.ensemble, s.ensemble_optimiser), state, (ensemble, optimiser)
        )
        return fitted, {"model_loss": float(losses.mean())}

    def improve(
        self, state: State, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[State, Metrics]:
        """Train V on what real trajectories earned within the planner's horizon.

        Only Algorithm 1 asks for it, so PETS without it has none.
        """
        config = self.config
        if not config.kappa:
            return state, {}
        rng = np.random.default_rng(keys.numpy("value rows"))
        batch = value_samples(state.experience, episodes, config, rng)
        done = share_done(state, config.iterations)
        value, optimiser, loss = improve_value(
            state.value,
            state.value_optimiser,
            batch,
            keys.numpy("value"),
            config.value.rate(done),
            config.value,
        )
        improved: State = eqx.tree_at(
            lambda s: (s.value, s.value_optimiser), state, (value, optimiser)
        )
        return improved, {"value_loss": float(loss)}

    def evaluate(
        self,
        state: State,
        collected: Sequence[Episode],
        keys: Keys,
        stage: StageTimer,
    ) -> tuple[Metrics, float]:
        """Returns of real episodes, and how many steps were imagined for them.

        A planner has no noise to leave out: both returns are the same.
        """
        steps, episodes = 0.0, collected
        number = stage.evaluation_episodes(self.config.evaluation_episodes)
        if number:
            controller = self.policy(state)
            seeds = keys.episodes("evaluate", number)
            act = controller.acting(keys.jax("evaluate"))
            episodes = collect(self.task, act, seeds)
            steps = self.particles(controller.metrics()["sequence_steps"])
        returns = np.array([episode.rewards.sum() for episode in episodes])
        names = ("return_real", "return_deterministic")
        means = {name: float(returns.mean()) for name in names}
        spreads = {f"{name}_std": float(returns.std()) for name in names}
        return {**means, **spreads}, steps

    def particles(self, steps: float) -> float:
        """Imagined steps in so many steps of sequences: one for each particle."""
        return steps * self.rules.particles

    def surprise(self, state: State, episodes: Sequence[Episode]) -> Metrics:
        """How far the mean prediction was off in episodes not yet learned from.

        Root mean squared error of one step, in standard deviations of the state.
        """
        states = np.concatenate([e.observations[:-1] for e in episodes])
        following = np.concatenate([e.observations[1:] for e in episodes])
        actions = np.concatenate([e.actions for e in episodes])
        dynamics = self.dynamics(state)
        members = dynamics.step(jnp.asarray(states), jnp.asarray(actions)).states
        gap = (np.asarray(jnp.mean(members, 0)) - following) / dynamics.observation.std
        return {"model_error_1": float(np.sqrt(np.mean(np.asarray(gap) ** 2)))}


@partial(jit, static_argnames="config")
def _search(
    dynamics: Dynamics,
    value: MLP | None,
    rules: PlanRules,
    observation: Float[Array, " o"],
    start: Float[Array, "h a"],
    key: PRNGKeyArray,
    kappa: Float[Array, ""],
    config: PlannerConfig,
) -> Planned:
    """One search over all candidates, particles and members."""

    def score(sequences: Sequences, key: PRNGKeyArray) -> Float[Array, " p"]:
        found = appraise(dynamics, rules, observation, sequences, key, value)
        if found.uncertainty is None:
            return found.returns
        return found.returns - kappa * found.uncertainty

    return plan(score, start, key, config)


def _gaussian_dynamics(
    ensemble: GaussianEnsemble,
    experience: Experience,
    task: Task,
    config: GaussianModelConfig,
) -> Dynamics:
    """Join the ensemble with its units; without normalised targets these are 1."""
    dynamics = dynamics_of(ensemble, experience, task, config)
    if config.normalise_targets:
        return dynamics

    def plain(units: Normaliser) -> Normaliser:
        return Normaliser(jnp.zeros_like(units.mean), jnp.ones_like(units.std))

    return replace(
        dynamics,
        delta=plain(dynamics.delta),
        reward=None if dynamics.reward is None else plain(dynamics.reward),
    )


def _gaussian_regression(
    episodes: Sequence[Episode], experience: Experience, config: GaussianModelConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the ensemble from all real data."""
    dataset = build_dataset(episodes, 1, 0.0, 0, 0)
    learned = config.reward == "learned"
    inputs, targets = regression(dataset, experience, learned)
    if config.normalise_targets:
        return inputs, targets
    changes = dataset.deltas[:, : len(experience.delta.mean)]
    raw = [changes, dataset.rewards[:, None]]
    return inputs, np.concatenate(raw if learned else raw[:1], 1)


def value_samples(
    experience: Experience,
    episodes: Sequence[Episode],
    config: PETSConfig,
    rng: np.random.Generator,
) -> Batch:
    """Random real states, and what was earned in the steps that a plan looks ahead."""
    states = np.concatenate([e.observations[:-1] for e in episodes])
    goals = np.concatenate(
        [
            returns_within(config.planner.horizon, e.rewards, config.gamma)
            for e in episodes
        ]
    )
    rows = rng.integers(0, len(states), config.value_samples)
    seen = jnp.asarray(states[rows], jnp.float32)
    normal = Normaliser.of(experience.observation).normalise(seen)
    zeros = jnp.zeros(len(rows))
    returns = jnp.asarray(goals[rows] / experience.returns.std[0], jnp.float32)
    return Batch(
        observations=normal,
        actions=zeros[:, None],
        log_probs=zeros,
        returns=returns,
        advantages=zeros,
        uncertainty=zeros,
        weight=jnp.ones(len(rows)),
    )
