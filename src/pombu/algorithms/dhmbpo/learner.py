"""DHMBPO: double-horizon model-based policy optimisation (Kubo et al., 2025).

One iteration collects real steps, fits the learned dynamics to all of them, and updates
actor and critics once per new step. Long rollouts without gradients (the distribution
horizon) find the states that the policy would visit; short ones with gradients (the
training horizon) start there, and both critics and actor learn from them.

DHMBPO-U has `kappa` or `bonus` above 0: sqrt(U), the uncertainty of Q by Algorithm 1
along the training rollout, is what the actor avoids and collection seeks.
"""

import math
from collections.abc import Sequence

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
from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.evaluation import explore, q_bias
from pombu.algorithms.dhmbpo.networks import Critics, Networks, init_critics
from pombu.algorithms.dhmbpo.training import REPORTED, Imagination, improve
from pombu.data import (
    Experience,
    Normaliser,
    build_dataset,
    learn_from,
    no_experience,
    regression,
)
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.error import prediction_error
from pombu.dynamics.homoscedastic import (
    HomoscedasticMembers,
    fit_homoscedastic,
    fresh_homoscedastic,
)
from pombu.dynamics.model import Dynamics, dynamics_of
from pombu.dynamics.termination import (
    TerminationModel,
    fit_termination,
    init_termination,
)
from pombu.envs import Episode, Task, collect_rounds
from pombu.nn import SquashedPolicy, init_squashed
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.real import Act, act_randomly, evaluate, round_keys
from pombu.training.algorithm import Policy, StageTimer


class State(Progress):
    """Everything that a run is, beside its episodes."""

    updates: np.ndarray
    """Updates of actor and critics so far."""
    learned_steps: np.ndarray
    """Real steps that actor and critics have learned from."""
    policy: SquashedPolicy
    critics: Critics
    targets: Critics
    log_temperature: Array
    bounds: Array
    members: HomoscedasticMembers
    experience: Experience
    ending: TerminationModel | None
    """Learned termination; None where it is known."""


class Learner(TaskLearner[DHMBPOConfig]):
    """DHMBPO over one task: `init` a state, then `iterate` it."""

    algorithm = "dhmbpo"

    def __init__(
        self,
        task: Task,
        config: DHMBPOConfig,
        name: str = "",
        workers: int | None = None,
    ) -> None:
        super().__init__(task, config, name, workers)
        aim = config.actor_critic.target_entropy
        self.target_entropy = -float(task.action_dim) if aim is None else aim

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys, sizes = Keys(seed, 0), (task.observation_dim, task.action_dim)
        critics = init_critics(keys.jax("critics"), *sizes, config.actor_critic)
        return State(
            **init_counters(seed),
            updates=np.asarray(0),
            learned_steps=np.asarray(0),
            policy=init_squashed(
                keys.jax("policy"), *sizes, config.actor_critic.hidden
            ),
            critics=critics,
            targets=critics,
            log_temperature=jnp.asarray(
                math.log(config.actor_critic.temperature), jnp.float32
            ),
            bounds=jnp.array([-1.0, 1.0], jnp.float32),
            members=fresh_homoscedastic(keys.jax("members"), task, config.model),
            experience=no_experience(*sizes, task.frame_dim),
            ending=init_termination(keys.jax("ending"), task, config.model.termination),
        )

    def policy(self, state: State) -> Policy:
        """The actor, to act with."""
        actor, normaliser = state.policy, self.normaliser(state)

        def act_with(
            observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
        ) -> np.ndarray:
            if deterministic:
                return np.asarray(_mean(actor, normaliser, observations))
            return np.asarray(_sample(actor, normaliser, observations, key))

        return act_with

    def explorer(self, state: State) -> Policy:
        """The actor with a bonus for uncertainty, to collect with."""
        networks, world = self.networks(state), self.world(state)

        def act_with(
            observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
        ) -> np.ndarray:
            chosen = explore(networks, world, observations, key, self.config)
            return np.asarray(chosen)

        return act_with

    def networks(self, state: State) -> Networks:
        """What updates change."""
        return Networks(
            state.policy,
            state.critics,
            state.targets,
            state.log_temperature,
            state.bounds,
        )

    def world(self, state: State) -> Imagination:
        """Where rollouts happen."""
        return Imagination(self.dynamics(state), self.task.action_box)

    def normaliser(self, state: State) -> Normaliser:
        """The units in which networks see states."""
        return Normaliser.of(state.experience.observation)

    def dynamics(self, state: State) -> Dynamics:
        """The learned dynamics as the state has it."""
        return dynamics_of(
            state.members,
            state.experience,
            self.task,
            self.config.model,
            state.ending,
        )

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Collect, fit, improve, evaluate."""
        keys = keys_of(state)
        with stage("collect"):
            collected = self.collect(state, keys)
            episodes.append(collected)
        state, learned = self.update(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated = self.evaluate(state, keys, stage)
        return state, {**evaluated, **learned}

    def collect(self, state: State, keys: Keys) -> list[Episode]:
        """Real trajectories: random at first, then the policy's with its noise."""
        config, task = self.config, self.task
        random = int(state.real_steps) < config.learning_starts
        policy = self.policy(state)
        if config.bonus and int(state.updates):
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
        state: State,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[State, Metrics]:
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
        if int(state.real_steps) >= config.learning_starts:
            with stage("fit"):
                state, fitted = self.fit(state, list(episodes), keys)
            with stage("improve"):
                state, improved = self.improve(state, list(episodes), keys)
            metrics |= {**fitted, **improved}
        return after_iteration(state), metrics

    def fit(
        self, state: State, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[State, Metrics]:
        """Train the members on all real data."""
        config = self.config
        model = config.model
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
            config.rows(self.task.horizon),
            keys.numpy("fit"),
            self.workers,
        )
        ending, found = fit_termination(state.ending, episodes, state.experience, keys)
        learned: State = eqx.tree_at(
            lambda s: (s.members, s.ending),
            state,
            (members, ending),
            is_leaf=lambda leaf: leaf is None,
        )
        return learned, {**fitted, **found}

    def improve(
        self, state: State, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[State, Metrics]:
        """As many updates as the steps ask for that were not learned from yet."""
        config = self.config
        new = int(state.real_steps - state.learned_steps)
        every = config.distribution.every
        blocks = round(config.updates_per_step * new / every)
        warmup = round(config.critic_updates / every)
        real, filled = self.real_states(episodes)
        networks, report, uncertainty = improve(
            self.networks(state),
            self.world(state),
            real,
            filled,
            int(state.updates),
            warmup,
            blocks,
            keys.jax("improve"),
            self.target_entropy,
            config,
        )
        distribution = config.distribution.starts * config.distribution.steps
        training = every * config.batch_size * config.training_steps
        state = eqx.tree_at(
            lambda s: (
                s.policy,
                s.critics,
                s.targets,
                s.log_temperature,
                s.bounds,
                s.updates,
                s.learned_steps,
                s.imagined_steps,
            ),
            state,
            (
                networks.policy,
                networks.critics,
                networks.targets,
                networks.log_temperature,
                networks.bounds,
                state.updates + (warmup + blocks) * every,
                state.real_steps,
                state.imagined_steps + (warmup + blocks) * (distribution + training),
            ),
        )
        metrics = dict(zip(REPORTED, np.asarray(report).tolist(), strict=True))
        return state, {
            **metrics,
            "sqrt_u": float(uncertainty),
            "q_lower": float(networks.bounds[0]),
            "q_upper": float(networks.bounds[1]),
        }

    def real_states(self, episodes: Sequence[Episode]) -> tuple[Array, int]:
        """Stored real states that were acted in, padded, and how many there are."""
        states = np.concatenate([episode.observations[:-1] for episode in episodes])
        capacity = self.config.rows(self.task.horizon)
        while capacity < len(states):
            capacity *= 2
        padded = np.pad(states, ((0, capacity - len(states)), (0, 0)))
        return jnp.asarray(padded, jnp.float32), len(states)

    def evaluate(self, state: State, keys: Keys, stage: StageTimer) -> Metrics:
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
