"""The loop of soft actor-critics that learn in learned dynamics.

One iteration collects real steps, fits the members to all of them, improves actor and
critics, and evaluates. An algorithm says how it improves them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.algorithms.base import (
    Metrics,
    Progress,
    TaskLearner,
    after_iteration,
    init_counters,
    keys_of,
)
from pombu.algorithms.config import ActorCriticConfig
from pombu.algorithms.soft_actor_critic import (
    NORMALISED,
    Critics,
    Imagination,
    Networks,
    Optimisers,
    Tail,
    fresh_optimisers,
    init_critics,
    q_bias,
)
from pombu.data import (
    Experience,
    Normaliser,
    build_dataset,
    learn_from,
    no_experience,
    regression,
)
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import HomoscedasticModelConfig, PlainReturnConfig
from pombu.dynamics.ensemble import Form
from pombu.dynamics.error import prediction_error
from pombu.dynamics.gaussian import (
    HomoscedasticMembers,
    fit_homoscedastic,
    fresh_homoscedastic,
)
from pombu.dynamics.model import (
    Dynamics,
    TerminationModel,
    dynamics_of,
    fit_termination,
    init_termination,
)
from pombu.envs import Episode, Task, collect_rounds
from pombu.nn import SquashedPolicy, init_squashed
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.imagine import ImaginationRules
from pombu.rollout.plan import outlook
from pombu.rollout.real import Act, act_randomly, evaluate, round_keys
from pombu.training.algorithm import Policy, StageTimer


class SoftState(Progress):
    """Everything that a run is, beside its episodes."""

    updates: np.ndarray
    """Updates of actor and critics so far."""
    learned_steps: np.ndarray
    """Real steps that actor and critics have learned from."""
    policy: SquashedPolicy
    """What acts: the actor, or the average of its latest weights."""
    actor: SquashedPolicy
    """What is trained, and collects."""
    memory: Optimisers
    """Adam's moments."""
    critics: Critics
    targets: Critics
    log_temperature: Array
    bounds: Array
    tail: Tail | None
    """U_psi; None where the critics' variance stands for it."""
    members: HomoscedasticMembers
    experience: Experience
    ending: TerminationModel | None
    """Learned termination; None where it is known. Checkpoints have it by this name."""


@runtime_checkable
class SoftConfig(Protocol):
    """What is read of the config of such an algorithm."""

    @property
    def trajectories(self) -> int:
        """Real trajectories per round."""

    @property
    def least_steps(self) -> int:
        """Real steps per iteration, at least."""

    @property
    def evaluation_episodes(self) -> int:
        """Real episodes per evaluation."""

    @property
    def learning_starts(self) -> int:
        """Real steps with random actions."""

    @property
    def runaway(self) -> float:
        """Standard deviations of the real data that an imagined state may be off."""

    @property
    def gamma(self) -> float:
        """Discount factor."""

    @property
    def model(self) -> HomoscedasticModelConfig:
        """The learned dynamics and its fit."""

    @property
    def actor_critic(self) -> ActorCriticConfig:
        """Actor, critics and temperature."""

    def rows(self, horizon: int) -> int:
        """Real transitions to make room for."""


C = TypeVar("C", bound=SoftConfig)


class SoftLearner(TaskLearner[C], ABC, Generic[C]):
    """A soft actor-critic in learned dynamics: `init` a state, then `iterate` it."""

    critic_form: Form = NORMALISED

    def __init__(
        self, task: Task, config: C, name: str = "", workers: int | None = None
    ) -> None:
        super().__init__(task, config, name, workers)
        aim = config.actor_critic.target_entropy
        self.target_entropy = -float(task.action_dim) if aim is None else aim

    def init(self, seed: int) -> SoftState:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys, sizes = Keys(seed, 0), (task.observation_dim, task.action_dim)
        settings = config.actor_critic
        critics = init_critics(keys.jax("critics"), *sizes, settings, self.critic_form)
        actor = init_squashed(keys.jax("policy"), *sizes, settings.hidden)
        log_temperature = jnp.asarray(math.log(settings.temperature), jnp.float32)
        bounds = jnp.array([-1.0, 1.0], jnp.float32)
        tail = self.fresh_tail(seed)
        networks = Networks(
            actor, actor, critics, critics, log_temperature, bounds, tail
        )
        return SoftState(
            **init_counters(seed),
            updates=np.asarray(0),
            learned_steps=np.asarray(0),
            policy=actor,
            actor=actor,
            memory=fresh_optimisers(networks, settings.learning_rate),
            critics=critics,
            targets=critics,
            log_temperature=log_temperature,
            bounds=bounds,
            tail=tail,
            members=fresh_homoscedastic(keys.jax("members"), task, config.model),
            experience=no_experience(*sizes, task.frame_dim),
            ending=init_termination(keys.jax("ending"), task, config.model.termination),
        )

    def fresh_tail(self, seed: int) -> Tail | None:
        """An untrained U_psi, for an algorithm that has one."""
        return None

    @abstractmethod
    def improve(
        self, state: SoftState, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[SoftState, Metrics]:
        """As many updates as the steps ask for that were not learned from yet."""

    def explorer(self, state: SoftState) -> Policy:
        """What collects: the actor with its noise."""
        return self._act_with(state.actor, state)

    def policy(self, state: SoftState) -> Policy:
        """What has been learned, to act with."""
        return self._act_with(state.policy, state)

    def _act_with(self, actor: SquashedPolicy, state: SoftState) -> Policy:
        normaliser = self.normaliser(state)

        def act_with(
            observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
        ) -> np.ndarray:
            if deterministic:
                return np.asarray(_mean(actor, normaliser, observations))
            return np.asarray(_sample(actor, normaliser, observations, key))

        return act_with

    def networks(self, state: SoftState) -> Networks:
        """What updates change."""
        return Networks(
            state.actor,
            state.policy,
            state.critics,
            state.targets,
            state.log_temperature,
            state.bounds,
            state.tail,
        )

    def optimisers(self, state: SoftState) -> Optimisers:
        """Adam's moments at the start of an iteration: kept, or new ones."""
        settings = self.config.actor_critic
        if settings.keep_moments:
            return state.memory
        return fresh_optimisers(self.networks(state), settings.learning_rate)

    def with_networks(
        self, state: SoftState, networks: Networks, memory: Optimisers
    ) -> SoftState:
        """The state after updates."""
        learned: SoftState = eqx.tree_at(
            lambda s: (
                s.actor,
                s.policy,
                s.critics,
                s.targets,
                s.log_temperature,
                s.bounds,
                s.tail,
                s.memory,
            ),
            state,
            (
                networks.policy,
                networks.average,
                networks.critics,
                networks.targets,
                networks.log_temperature,
                networks.bounds,
                networks.tail,
                memory,
            ),
            is_leaf=lambda leaf: leaf is None,
        )
        return learned

    def imagination(self, state: SoftState) -> Imagination:
        """Where rollouts happen."""
        return Imagination(self.dynamics(state), self.task.action_box)

    def normaliser(self, state: SoftState) -> Normaliser:
        """The units in which networks see states."""
        return Normaliser.of(state.experience.observation)

    def dynamics(self, state: SoftState) -> Dynamics:
        """The learned dynamics as the state has it."""
        return dynamics_of(
            state.members,
            state.experience,
            self.task,
            self.config.model,
            state.ending,
        )

    def iterate(
        self, state: SoftState, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[SoftState, Metrics]:
        """Collect, fit, improve, evaluate."""
        keys = keys_of(state)
        with stage("collect"):
            collected = self.collect(state, keys)
            episodes.append(collected)
        state, learned = self.update(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated = self.evaluate(state, keys, stage)
        return state, {**evaluated, **learned}

    def collect(self, state: SoftState, keys: Keys) -> list[Episode]:
        """Real trajectories: random at first, then the policy's with its noise."""
        config, task = self.config, self.task
        # What was learned from logged episodes is better than chance.
        untaught = not int(state.updates)
        random = untaught and int(state.real_steps) < config.learning_starts
        policy = self.explorer(state)

        def round_of(index: int) -> tuple[Act, list[int]]:
            part, seeds = round_keys(index, config.trajectories, keys)
            if random:
                return act_randomly(len(seeds), task.action_dim, keys), seeds
            key = keys.jax("collect", *part)

            def explore(observations: np.ndarray, step: int) -> np.ndarray:
                own = jax.random.fold_in(key, step)
                actions: np.ndarray = policy(observations, False, own)
                return actions

            return explore, seeds

        return collect_rounds(task, round_of, config.least_steps)

    def update(
        self,
        state: SoftState,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[SoftState, Metrics]:
        """Learn from newly collected episodes, which are among `episodes` already."""
        config, keys = self.config, keys_of(state)
        steps = sum(map(len, collected))
        state = eqx.tree_at(
            lambda s: (s.experience, s.real_steps),
            state,
            (
                learn_from(state.experience, collected, config.gamma),
                state.real_steps + steps,
            ),
        )
        metrics: Metrics = {
            "return_collected": float(np.mean([e.rewards.sum() for e in collected]))
        }
        if int(state.updates) or int(state.real_steps) >= config.learning_starts:
            with stage("fit"):
                state, fitted = self.fit(state, list(episodes), keys)
            with stage("improve"):
                state, improved = self.improve(state, list(episodes), keys)
            metrics |= {**fitted, **improved}
        return after_iteration(state), metrics

    def offline(
        self, state: SoftState, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[SoftState, Metrics]:
        """An iteration that learns from stored episodes alone.

        The members are fitted once, for they do not change. There are as many updates
        as an iteration's real steps would ask for.
        """
        config, keys, stored = self.config, keys_of(state), list(episodes)
        taken, learned = state.real_steps, state.learned_steps
        if not int(state.experience.observation.count):
            experience = learn_from(state.experience, stored, config.gamma)
            state = eqx.tree_at(lambda s: s.experience, state, experience)
        metrics: Metrics = {}
        if not int(state.updates):
            # To the fit all of them are new.
            state = _with_steps(state, episodes.steps, 0)
            with stage("fit"):
                state, metrics = self.fit(state, stored, keys)
        due = max(config.least_steps, config.trajectories * self.task.horizon)
        state = _with_steps(state, episodes.steps, episodes.steps - due)
        with stage("improve"):
            state, improved = self.improve(state, stored, keys)
        state = _with_steps(state, int(taken), int(learned))
        penalty = getattr(config, "kappa", 0.0) * improved["sqrt_u"]
        improved["penalty_share"] = penalty / max(abs(improved["q_mean"]), 1e-12)
        with stage("evaluate"):
            returns = PlainReturnConfig(
                gamma=config.gamma, reward_clip=None, scale_rewards=False
            )
            rules = ImaginationRules(
                self.task.action_box, returns, self.task.horizon, config.runaway
            )
            policy, dynamics = state.policy, self.dynamics(state)
            promised = outlook(policy, dynamics, rules, self.task, stored, keys)
            evaluated = self.evaluate(state, keys, stage)
        return after_iteration(state), {
            **evaluated,
            **metrics,
            **improved,
            **promised,
        }

    def fit(
        self, state: SoftState, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[SoftState, Metrics]:
        """Train the members, and learned termination, on all real data.

        Members are trained for a number of steps that follows the new rows.
        """
        model = self.config.model
        dataset = build_dataset(
            episodes, model.members, model.validation_fraction, int(state.seed), 0
        )
        inputs, targets = regression(
            dataset, state.experience, model.reward == "learned"
        )
        members, fitted = fit_homoscedastic(
            state.members,
            inputs,
            targets,
            dataset.validation,
            int(state.real_steps - state.learned_steps),
            model,
            self.config.rows(self.task.horizon),
            keys.numpy("fit"),
            self.workers,
        )
        termination, found = fit_termination(
            state.ending, episodes, state.experience, keys
        )
        learned: SoftState = eqx.tree_at(
            lambda s: (s.members, s.ending),
            state,
            (members, termination),
            is_leaf=lambda leaf: leaf is None,
        )
        return learned, {**fitted, **found}

    def stored(self, rows: np.ndarray) -> Array:
        """Rows of real data, padded to a size that changes as rarely as can be."""
        capacity = self.config.rows(self.task.horizon)
        while capacity < len(rows):
            capacity *= 2
        padding = [(0, capacity - len(rows))] + [(0, 0)] * (rows.ndim - 1)
        return jnp.asarray(np.pad(rows, padding), jnp.float32)

    def evaluate(self, state: SoftState, keys: Keys, stage: StageTimer) -> Metrics:
        """Returns of real episodes, and how well Q and the model predict them."""
        number = stage.evaluation_episodes(self.config.evaluation_episodes)
        evaluated, real = evaluate(self.task, self.policy(state), number, keys)
        if not (real and int(state.updates)):
            return evaluated
        bias = q_bias(
            self.networks(state),
            self.normaliser(state),
            self.task.action_box,
            real,
            self.task.horizon,
            self.config.gamma,
            keys.jax("bias"),
        )
        error = prediction_error(self.dynamics(state), real, self.task.horizon)
        return {**evaluated, **error, "q_bias": bias}


def _with_steps(state: SoftState, real: int, learned: int) -> SoftState:
    """The state with so many real steps, and learned from so many of them."""
    counted: SoftState = eqx.tree_at(
        lambda s: (s.real_steps, s.learned_steps),
        state,
        (np.asarray(real), np.asarray(learned)),
    )
    return counted


@jit
def _mean(
    policy: SquashedPolicy, normaliser: Normaliser, observations: Float[Array, "n o"]
) -> Float[Array, "n a"]:
    return policy.mode(normaliser.normalise(observations))


@jit
def _sample(
    policy: SquashedPolicy,
    normaliser: Normaliser,
    observations: Float[Array, "n o"],
    key: PRNGKeyArray,
) -> Float[Array, "n a"]:
    return policy.sample(normaliser.normalise(observations), key)[0]
