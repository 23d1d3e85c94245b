"""What learners have in common: a task, counters, and often learned dynamics.

An algorithm's own file says what it does in which order; what several of them do alike
is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pombu.data import Experience, Normaliser, learn_from, no_experience
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import (
    Draw,
    ImaginationConfig,
    ModelConfig,
    MultiStepModelConfig,
    PlainReturnConfig,
)
from pombu.dynamics.ensemble import Ensemble
from pombu.dynamics.error import limited, prediction_error
from pombu.dynamics.fit import refit
from pombu.dynamics.model import (
    Dynamics,
    TerminationModel,
    dynamics_of,
    fit_termination,
    init_termination,
)
from pombu.envs import Episode, Task
from pombu.nn import MLP, GaussianPolicy, init_policy, init_value
from pombu.optim.config import BaselineConfig, PolicyConfig, TRPOPolicyConfig
from pombu.optim.metrics import fit_metrics
from pombu.optim.ppo import value_adam
from pombu.parallel import Workers
from pombu.rng import Keys
from pombu.rollout.imagine import rules_of
from pombu.rollout.plan import Imaginer, imaginer
from pombu.rollout.real import evaluate, policy_of
from pombu.training.algorithm import Policy, StageTimer

Metrics = dict[str, float]


class Progress(eqx.Module):
    """Where a run stands."""

    seed: np.ndarray
    iteration: np.ndarray
    real_steps: np.ndarray
    imagined_steps: np.ndarray


class Imagining(Progress):
    """A run that imagines with a Gaussian policy."""

    policy: GaussianPolicy
    experience: Experience
    ending: TerminationModel | None
    """Learned termination; None where it is known. Checkpoints have it by this name."""


class WithEnsemble(Imagining):
    """A run that imagines in an ensemble."""

    ensemble: Ensemble


class WithBaseline(WithEnsemble):
    """The same with a value function that may be a network."""

    value: MLP | None
    """V_phi; None where a linear baseline is fitted to every batch."""
    value_optimiser: Any


@runtime_checkable
class ModelLearnerConfig(Protocol):
    """What is read of the config of an algorithm that imagines."""

    @property
    def model(self) -> ModelConfig | MultiStepModelConfig:
        """The learned dynamics and its fit."""

    @property
    def imagination(self) -> ImaginationConfig:
        """Virtual trajectories."""

    @property
    def policy(self) -> PolicyConfig | TRPOPolicyConfig:
        """The policy and its update."""

    @property
    def returns(self) -> PlainReturnConfig:
        """Units of rewards."""

    @property
    def evaluation_episodes(self) -> int:
        """Real episodes per evaluation."""

    def rows(self, horizon: int) -> int:
        """Real transitions to make room for."""


@runtime_checkable
class EnsembleConfig(ModelLearnerConfig, Protocol):
    """The same where the model is an ensemble."""

    @property
    def model(self) -> ModelConfig:
        """The ensemble and its fit."""


C = TypeVar("C")
W = TypeVar("W", bound=ModelLearnerConfig)
E = TypeVar("E", bound=EnsembleConfig)
P = TypeVar("P", bound=Progress)
S = TypeVar("S", bound=Imagining)
T = TypeVar("T", bound=WithEnsemble)


def init_counters(seed: int) -> dict[str, Any]:
    """The counters of a run that has not begun."""
    names = ("iteration", "real_steps", "imagined_steps")
    return {"seed": np.asarray(seed), **{name: np.asarray(0) for name in names}}


def keys_of(state: Progress) -> Keys:
    """Random streams of the iteration under way."""
    return Keys(int(state.seed), int(state.iteration))


def share_done(state: Progress, iterations: int) -> float:
    """Share of the planned iterations that lies behind."""
    return min(int(state.iteration) / iterations, 1.0)


def after_iteration(state: P) -> P:
    """The state with one more iteration behind it."""
    counted: P = eqx.tree_at(lambda s: s.iteration, state, state.iteration + 1)
    return counted


def _fresh_policy(
    key: PRNGKeyArray, task: Task, config: PolicyConfig | TRPOPolicyConfig
) -> GaussianPolicy:
    """An untrained policy of the task's sizes."""
    dims = (task.observation_dim, task.action_dim)
    return init_policy(key, *dims, config.hidden, config.initial_log_std)


def fresh_value(
    key: PRNGKeyArray, task: Task, config: BaselineConfig
) -> dict[str, Any]:
    """The untrained V_phi of a state with a baseline, if it is to be a network."""
    if config.kind == "linear":
        return {"value": None, "value_optimiser": None}
    value = init_value(key, task.observation_dim, config.hidden)
    return {"value": value, "value_optimiser": value_adam(config).init(value)}


def as_noisy(
    policy: GaussianPolicy, config: PolicyConfig | TRPOPolicyConfig
) -> GaussianPolicy:
    """The policy with the noise of an untrained one."""
    noise = jnp.full_like(policy.log_std, config.initial_log_std)
    return GaussianPolicy(policy.mean, noise)


class TaskLearner(Generic[C]):
    """An algorithm over one task."""

    algorithm: ClassVar[str]
    """As on the command line, where the run has no name of its own."""

    def __init__(
        self, task: Task, config: C, name: str = "", workers: int | None = None
    ) -> None:
        self.name = name or self.algorithm
        self.task = task
        self.config = config
        self.workers = Workers(workers)


class ModelLearner(TaskLearner[W], ABC, Generic[W, S]):
    """An algorithm whose policy learns from imagined trajectories."""

    def __init__(
        self,
        task: Task,
        config: W,
        name: str = "",
        workers: int | None = None,
        draw: Draw = "trajectory",
    ) -> None:
        super().__init__(task, config, name, workers)
        self.rules = rules_of(
            task, config.returns, config.imagination, config.model, draw
        )

    def fresh_fields(self, seed: int) -> dict[str, Any]:
        """What every such state begins with: an untrained policy, and no experience."""
        config, task, keys = self.config, self.task, Keys(seed, 0)
        return {
            **init_counters(seed),
            "policy": _fresh_policy(keys.jax("policy"), task, config.policy),
            "experience": no_experience(
                task.observation_dim, task.action_dim, task.frame_dim
            ),
            "ending": init_termination(
                keys.jax("ending"), task, config.model.termination
            ),
        }

    @abstractmethod
    def dynamics(self, state: S) -> Dynamics:
        """The learned dynamics as the state has it."""

    def policy(self, state: S) -> Policy:
        """pi_theta, to act with."""
        return policy_of(state.policy, self.normaliser(state))

    def normaliser(self, state: S) -> Normaliser:
        """The units in which policies see states."""
        return Normaliser.of(state.experience.observation)

    def add_episodes(self, state: S, collected: Sequence[Episode]) -> S:
        """Count new real episodes, and learn units from them."""
        returns = self.config.returns
        experience = learn_from(
            state.experience, collected, returns.gamma, returns.reward_clip
        )
        steps = sum(map(len, collected))
        added: S = eqx.tree_at(
            lambda s: (s.experience, s.real_steps),
            state,
            (experience, state.real_steps + steps),
        )
        return added

    def fit_termination(
        self, state: S, episodes: EpisodeStore, keys: Keys
    ) -> tuple[S, Metrics]:
        """Learn where episodes end, unless it is known."""
        termination, found = fit_termination(
            state.ending, list(episodes), state.experience, keys
        )
        learned: S = eqx.tree_at(
            lambda s: s.ending, state, termination, is_leaf=lambda leaf: leaf is None
        )
        return learned, found

    def imaginer(
        self,
        state: S,
        episodes: EpisodeStore,
        keys: Keys,
        dynamics: Dynamics | None = None,
    ) -> Imaginer:
        """Gives virtual trajectories in the learned dynamics, or in the simulator."""
        known = list(episodes)
        return imaginer(
            self.config.model.kind,
            self.task,
            limited(
                dynamics or self.dynamics(state), self.rules.disagreement_stop, known
            ),
            self.rules,
            known,
            keys,
            self.workers,
        )

    def imagined(self, state: S, trajectories: int) -> S:
        """Count the steps of imagined trajectories."""
        steps = state.imagined_steps + trajectories * self.rules.horizon
        counted: S = eqx.tree_at(lambda s: s.imagined_steps, state, steps)
        return counted

    def evaluate(self, state: S, keys: Keys, stage: StageTimer) -> Metrics:
        """Returns of real episodes, and how well the model predicts them."""
        return self.evaluation(state, keys, stage)[0]

    def evaluation(
        self, state: S, keys: Keys, stage: StageTimer
    ) -> tuple[Metrics, list[Episode]]:
        """The same, and the real episodes of the stochastic policy."""
        number = stage.evaluation_episodes(self.config.evaluation_episodes)
        evaluated, real = evaluate(self.task, self.policy(state), number, keys)
        if self.config.model.kind == "simulator" or not real:
            return evaluated, real
        return {
            **evaluated,
            **prediction_error(self.dynamics(state), real, self.task.horizon),
        }, real


class EnsembleLearner(ModelLearner[E, T], Generic[E, T]):
    """The same where the model is an ensemble."""

    def dynamics(self, state: T) -> Dynamics:
        """The learned dynamics as the state has it."""
        return dynamics_of(
            state.ensemble,
            state.experience,
            self.task,
            self.config.model,
            state.ending,
        )

    def fit(
        self,
        state: T,
        episodes: EpisodeStore,
        keys: Keys,
        collected: Sequence[Episode] | None = None,
    ) -> tuple[T, Metrics]:
        """Train the ensemble on all real data, of which `collected` is new."""
        ensemble, report = refit(
            state.ensemble,
            self.task,
            list(episodes),
            state.experience,
            self.config.model,
            self.config.rows(self.task.horizon),
            keys,
            int(state.iteration),
            self.workers,
            None if collected is None else sum(map(len, collected)),
        )
        fitted: T = eqx.tree_at(lambda s: s.ensemble, state, ensemble)
        fitted, found = self.fit_termination(fitted, episodes, keys)
        return fitted, {**fit_metrics(report), **found}
