"""Ask and tell: real episodes that happen outside pombu, on a robot or elsewhere.

`propose` gives a policy for the next real episode; `observe` takes what happened. Each
time as many episodes are there as an iteration collects, the agent learns from them.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from pombu.algorithms.registry import able_to
from pombu.data import Normaliser
from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, Task
from pombu.errors import RunError, UsageError
from pombu.nn import StochasticPolicy
from pombu.rng import Keys
from pombu.rollout.real import act_alone
from pombu.training.algorithm import Algorithm, Explores, StageTimer
from pombu.training.metrics import require_finite


class Proposal:
    """A policy for one real episode: call it with each observation in turn."""

    def __init__(
        self,
        policy: StochasticPolicy,
        normaliser: Normaliser,
        task: Task,
        key: PRNGKeyArray,
    ) -> None:
        self._act = act_alone(policy, normaliser, 1, key)
        self._task = task
        self._step = 0

    def __call__(self, observation: Any) -> np.ndarray:
        """The action to take, in the environment's own units and bounds."""
        row = np.asarray(observation, np.float32).ravel()
        if row.shape != (self._task.observation_dim,):
            raise UsageError(
                f"The observation has shape {np.shape(observation)}; give "
                f"{self._task.observation_dim} entries."
            )
        if not np.isfinite(row).all():
            raise UsageError(
                "The observation has entries that are not finite: give finite ones."
            )
        drawn = self._act(row[None], self._step)
        self._step += 1
        box = self._task.action_box
        action = box.to_env(np.asarray(box.to_box(drawn))[0])
        if not np.isfinite(action).all():
            raise RunError(
                "The policy gave an action that is not finite: stop the episode, and "
                "go on from the last saved agent."
            )
        return action


def _explorer(learner: Algorithm[Any]) -> Explores[Any]:
    """The learner, if it says how to collect what it learns from."""
    if not isinstance(learner, Explores):
        raise UsageError(
            f"{learner.name} collects its real episodes itself: choose "
            f"{', '.join(able_to('explore'))} to propose and observe, or call learn."
        )
    return learner


def _waiting(state: Any, episodes: EpisodeStore) -> list[Episode]:
    """The last episodes, those that the state has not learned from yet."""
    learned = int(state.experience.observation.count)
    ends = np.cumsum([len(episode) for episode in episodes])
    return [one for one, end in zip(episodes, ends, strict=True) if end > learned]


def _is_round(config: Any, episodes: list[Episode]) -> bool:
    """Whether there are as many episodes as an iteration collects."""
    steps = sum(map(len, episodes))
    whole: bool = len(episodes) >= config.trajectories and steps >= config.least_steps
    return whole


def _policy_for(
    stack: tuple[StochasticPolicy, Normaliser],
    number: int,
    task: Task,
    key: PRNGKeyArray,
) -> Proposal:
    """The policy for the episode with this number since the last update."""
    policies, normaliser = stack
    turn = number % jax.tree.leaves(policies)[0].shape[0]
    policy = jax.tree.map(lambda leaf: leaf[turn], policies)
    return Proposal(policy, normaliser, task, key)


def _checked(episode: Episode, task: Task) -> Episode:
    """The episode in the dtypes of stored ones.

    Raises:
        UsageError: It does not fit the task.
    """
    try:
        observations = np.asarray(episode.observations, np.float32)
        actions = np.asarray(episode.actions, np.float32)
        rewards = np.asarray(episode.rewards, np.float32).ravel()
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"The episode cannot be read ({error}): give a pombu.Episode of arrays of "
            "numbers."
        ) from None
    steps = len(rewards)
    due = {
        "observations": (observations, (steps + 1, task.observation_dim)),
        "actions": (actions, (steps, task.action_dim)),
    }
    for name, (array, shape) in due.items():
        if not steps or array.size != shape[0] * shape[1]:
            raise UsageError(
                f"The episode has {steps} rewards and {name} of shape {array.shape}; "
                f"there must be at least one step, and {name} of shape {shape}."
            )
        if not (np.isfinite(array).all() and np.isfinite(rewards).all()):
            raise UsageError(
                f"The episode has {name} or rewards that are not finite: cut it off "
                "before they begin."
            )
    low, high = np.array([task.action_box.low, task.action_box.high], np.float32)
    return Episode(
        observations.reshape(steps + 1, -1),
        actions.reshape(steps, -1).clip(low, high),
        rewards,
        bool(episode.terminated),
    )


class AskTell:
    """The part of an agent that learns from episodes which others take."""

    learner: Algorithm[Any]
    state: Any
    episodes: EpisodeStore
    seed: int
    _explored: Any

    def propose(self) -> Proposal:
        """A policy for one real episode outside pombu; tell by `observe` what it did.

        It explores. To act with what was learned, use `predict`.
        """
        learner = _explorer(self.learner)
        number = len(self.episodes)
        since = len(_waiting(self.state, self.episodes))
        if self._explored is None:
            # Episodes not learned from yet must not change what is proposed next.
            learned = EpisodeStore(list(self.episodes)[: number - since])
            self._explored = learner.explore(self.state, learned)
        _, explorers = self._explored
        key = Keys(self.seed, number).jax("propose")
        return _policy_for(explorers, since, self.learner.task, key)

    def observe(self, episode: Episode) -> dict[str, float]:
        """Take in a real episode; learn once an iteration's worth of them is there.

        Returns:
            Metrics of the update; nothing while episodes are still being gathered.
        """
        _explorer(self.learner)
        self.episodes.append([_checked(episode, self.learner.task)])
        fresh = _waiting(self.state, self.episodes)
        if not _is_round(self.learner.config, fresh):
            return {}
        return self._learn_from_waiting()

    def _learn_from_waiting(self) -> dict[str, float]:
        """Learn from observed episodes that were not learned from yet."""
        if not isinstance(self.learner, Explores):
            return {}
        fresh = _waiting(self.state, self.episodes)
        if not fresh:
            return {}
        state, _ = self._explored or (self.state, None)
        state, metrics = self.learner.update(state, self.episodes, fresh, StageTimer())
        require_finite(metrics, int(state.iteration))
        self.state, self._explored = state, None
        return metrics
