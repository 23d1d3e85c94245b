"""STEVE: Stochastic Ensemble Value Expansion (Buckman et al., 2018), synchronous.

One iteration collects real trajectories with the actor, then trains: models on real
transitions, critics on targets that are expanded in the models, the actor on the
critics. Targets come from copies of models and critics that are replaced from time to
time, so between two replacements models and actor-critic do not depend on one another
and train side by side, each in one compiled loop.

STEVE-U is the same with `weighting = bellman`: horizons are weighted by Algorithm 1's
uncertainty instead of the variance of the target's samples.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.algorithms.base import Metrics, Progress, TaskLearner, init_counters, keys_of
from pombu.algorithms.steve.config import STEVEConfig
from pombu.algorithms.steve.expansion import (
    ADAM,
    ActorCritic,
    ExpansionModel,
    Frozen,
    before_tanh,
    init_actor_critic,
    init_model,
    train_model,
    train_networks,
)
from pombu.data import Normaliser, Transitions, most_recent, transitions
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.ensemble import Layers
from pombu.envs import Episode, collect
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.real import act_randomly, evaluate
from pombu.training.algorithm import Policy, StageTimer


class State(Progress):
    """Everything that a run is, beside its episodes."""

    updates: np.ndarray
    """Gradient steps of actor and critics so far."""
    networks: ActorCritic
    networks_optimiser: Any
    model: ExpansionModel
    model_optimiser: Any
    frozen: Frozen


class Learner(TaskLearner[STEVEConfig]):
    """STEVE over one task: `init` a state, then `iterate` it."""

    algorithm = "steve"

    def init(self, seed: int) -> State:
        """Untrained networks."""
        config, task = self.config, self.task
        keys, sizes = Keys(seed, 0), (task.observation_dim, task.action_dim)
        networks = init_actor_critic(keys.jax("networks"), *sizes, config.actor_critic)
        model = init_model(keys.jax("model"), *sizes, config.model, task.frame_dim)
        return State(
            **init_counters(seed),
            updates=np.asarray(0),
            networks=networks,
            networks_optimiser=ADAM.init(networks),
            model=model,
            model_optimiser=ADAM.init(model),
            frozen=Frozen(networks.critics, model),
        )

    def policy(self, state: State) -> Policy:
        """The actor, to act with; its noise is that of collection."""
        actor, chance = state.networks.actor, self.config.explore_chance

        def act_with(
            observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
        ) -> np.ndarray:
            noise = 0.0 if deterministic else chance
            return np.asarray(_act(actor, observations, noise, key))

        return act_with

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Collect, train, evaluate."""
        config, task = self.config, self.task
        keys = keys_of(state)
        with stage("collect"):
            collected = self.collect(state, keys)
            episodes.append(collected)
        new = sum(map(len, collected))
        state = eqx.tree_at(
            lambda s: (s.iteration, s.real_steps),
            state,
            (state.iteration + 1, state.real_steps + new),
        )
        with stage("improve"):
            state, improved = self.improve(state, list(episodes), new, keys)
        with stage("evaluate"):
            number = stage.evaluation_episodes(config.evaluation_episodes)
            evaluated, _ = evaluate(task, self.policy(state), number, keys)
        return state, {
            **evaluated,
            **improved,
            "return_collected": float(np.mean([e.rewards.sum() for e in collected])),
        }

    def collect(self, state: State, keys: Keys) -> list[Episode]:
        """Real trajectories: random at first, then the actor's with its noise."""
        config, task = self.config, self.task
        seeds = keys.episodes("collect", config.trajectories)
        if int(state.real_steps) < config.learning_starts:
            return collect(task, act_randomly(len(seeds), task.action_dim, keys), seeds)
        policy, key = self.policy(state), keys.jax("collect")

        def explore(observations: np.ndarray, step: int) -> np.ndarray:
            actions: np.ndarray = policy(
                observations, False, jax.random.fold_in(key, step)
            )
            return actions

        return collect(task, explore, seeds)

    def improve(
        self, state: State, episodes: Sequence[Episode], new: int, keys: Keys
    ) -> tuple[State, Metrics]:
        """As many updates as the new steps ask for, from one replacement to the next.

        When learning starts, the models are ahead of actor and critics.
        """
        config = self.config
        if int(state.real_steps) < config.learning_starts:
            return state, {}
        left, reports = round(config.updates_per_step * new), []
        if not left:
            return state, {}
        data, filled = self.data(episodes)
        if not int(state.updates):
            model, optimiser, _ = train_model(
                state.model,
                state.model_optimiser,
                data,
                filled,
                keys.jax("pretrain"),
                config.model.pretraining,
                config,
            )
            state = eqx.tree_at(
                lambda s: (s.model, s.model_optimiser, s.frozen.model),
                state,
                (model, optimiser, model),
            )
        while left > 0:
            steps = config.target_period - int(state.updates) % config.target_period
            steps = min(steps, left)
            state, report = self.train(state, data, filled, steps, keys)
            reports.append((steps, report))
            left -= steps
        total = max(sum(steps for steps, _ in reports), 1)
        metrics = {
            name: sum(steps * float(report[name]) for steps, report in reports) / total
            for name in (reports[0][1] if reports else ())
        }
        return state, metrics

    def train(
        self, state: State, data: Transitions, filled: int, steps: int, keys: Keys
    ) -> tuple[State, dict[str, Array]]:
        """Updates of models and of actor and critics, side by side."""
        config, number = self.config, int(state.updates)
        modelled, improved = self.workers.both(
            partial(
                train_model,
                state.model,
                state.model_optimiser,
                data,
                filled,
                keys.jax("model", number),
                steps,
                config,
            ),
            partial(
                train_networks,
                state.networks,
                state.networks_optimiser,
                state.frozen,
                data,
                filled,
                keys.jax("networks", number),
                steps,
                config,
            ),
        )
        model, model_optimiser, model_loss = modelled
        networks, optimiser, report = improved
        frozen = state.frozen
        if (number + steps) % config.target_period == 0:
            frozen = Frozen(networks.critics, model)
        imagined = steps * config.batch_size * config.expansion * config.model.members
        trained: State = eqx.tree_at(
            lambda s: (
                s.updates,
                s.imagined_steps,
                s.networks,
                s.networks_optimiser,
                s.model,
                s.model_optimiser,
                s.frozen,
            ),
            state,
            (
                state.updates + steps,
                state.imagined_steps + imagined,
                networks,
                optimiser,
                model,
                model_optimiser,
                frozen,
            ),
        )
        return trained, {**report, "model_loss": model_loss}

    def data(self, episodes: Sequence[Episode]) -> tuple[Transitions, int]:
        """Real steps with actions in policy space, and how many there are."""
        config, box = self.config, self.task.action_box
        kept = most_recent(episodes, config.capacity)
        rows = transitions(kept, config.rows(self.task.horizon))
        unit = Normaliser(jnp.asarray(box.middle), jnp.asarray(box.unit))
        return rows._replace(actions=unit.normalise(rows.actions)), sum(map(len, kept))


@jit
def _act(
    actor: Layers,
    states: Float[Array, "n o"],
    chance: Float[Array, ""],
    key: PRNGKeyArray,
) -> Float[Array, "n a"]:
    """The actor's actions, some entries of which are drawn anew around them."""
    where, noise = jax.random.split(key)
    free = before_tanh(actor, states)
    drawn = free + jax.random.normal(noise, free.shape)
    explores = jax.random.uniform(where, free.shape) < chance
    return jnp.tanh(jnp.where(explores, drawn, free))
