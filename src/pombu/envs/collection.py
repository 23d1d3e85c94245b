"""Real episodes, as many at once as there are seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from pombu.envs.catalogue import CATALOGUE
from pombu.envs.environment import Array32
from pombu.envs.steppers import OneByOne, Outcome, Stepper, Together
from pombu.envs.task import Task
from pombu.errors import RunError, UsageError

Act = Callable[[Float[np.ndarray, "n obs"], int], Any]
"""`act(observations, step)` gives policy-space actions, one row per episode."""


@dataclass(frozen=True)
class Episode:
    """One real trajectory of T steps."""

    observations: Float[np.ndarray, "_ obs"]
    """One more than steps: the last is where the episode ended."""

    actions: Float[np.ndarray, "T act"]
    """In the environment's units and clipped: what it received."""

    rewards: Float[np.ndarray, "T"]
    terminated: bool
    """False when a time limit (or a fault) ended it."""

    def __len__(self) -> int:
        return len(self.rewards)


class CollectionError(RunError):
    """Collection stopped early; `episodes` holds every transition gathered before."""

    def __init__(self, message: str, episodes: list[Episode]) -> None:
        super().__init__(message)
        self.episodes = episodes


def collect(
    task: Task, act: Act, seeds: Sequence[int], batched: bool = True
) -> list[Episode]:
    """One real episode per seed, in the order of `seeds`.

    Args:
        task: Where to collect.
        act: Called with the observations of all episodes, row i belonging to
            `seeds[i]`, and the step's number. Rows of ended episodes are ignored.
        seeds: Each episode is reset with its own, so none depends on the others.
        batched: Step pombu's own tasks together: the result is the same, only sooner.

    Raises:
        CollectionError: The environment or the policy failed; holds what there was.
    """
    if not len(seeds):
        return []
    return collect_rounds(task, lambda _: (act, seeds), 0, batched)


def collect_rounds(
    task: Task,
    round_of: Callable[[int], tuple[Act, Sequence[int]]],
    least_steps: int,
    batched: bool = True,
) -> list[Episode]:
    """One round of episodes, and further ones until there are `least_steps` steps.

    Args:
        task: Where to collect.
        round_of: Gives a round's `act` and seeds, as `collect` takes them; all rounds
            have equally many seeds.
        least_steps: What to collect at least, where episodes end early.
        batched: As for `collect`.

    Raises:
        CollectionError: The environment or the policy failed; holds what there was.
    """
    own = any(entry.id == task.config.id for entry in CATALOGUE)
    done: list[Episode] = []
    act, seeds = round_of(0)
    stepper = (Together if own and batched else OneByOne)(task, len(seeds))
    try:
        while True:
            done += _run(task, act, stepper, seeds)
            if sum(map(len, done)) >= least_steps:
                return done
            act, seeds = round_of(len(done) // len(seeds))
    except CollectionError as error:
        raise CollectionError(str(error), [*done, *error.episodes]) from error
    finally:
        stepper.close()


def _run(task: Task, act: Act, stepper: Stepper, seeds: Sequence[int]) -> list[Episode]:
    n = len(seeds)
    record = _Record(task, n)
    first = stepper.reset(seeds)
    record.begin(first)
    _raise_fault(first, task, record)
    running = np.arange(n)
    for step in range(task.horizon):
        raw = np.asarray(act(record.latest, step), dtype=np.float32)
        if raw.shape != (n, task.action_dim):
            raise UsageError(
                f"act returned actions of shape {raw.shape}, but {task.config.id} with "
                f"{n} episodes needs {(n, task.action_dim)}: return a row per episode."
            )
        if not np.isfinite(raw[running]).all():
            raise CollectionError(
                f"The policy gave an action that is not finite in step {step} of "
                f"{task.config.id}; the steps before it are kept: lower the learning "
                "rate or look at the policy's inputs.",
                record.episodes(),
            )
        actions = task.action_box.to_box(raw)
        outcome = stepper.step(running, actions[running])
        record.add(outcome, actions[outcome.rows])
        _raise_fault(outcome, task, record)
        running = outcome.rows[~(outcome.terminated | outcome.truncated)]
        if not len(running):
            break
    return record.episodes()


def _raise_fault(outcome: Outcome, task: Task, record: "_Record") -> None:
    if outcome.fault is None:
        return
    episodes = record.episodes()
    kept = sum(len(episode) for episode in episodes)
    raise CollectionError(
        f"{task.config.id} {outcome.fault}; the {kept} transitions of this batch from "
        "before that are kept: mend the environment and resume.",
        episodes,
    )


class _Record:
    """The transitions of all episodes, one row each."""

    def __init__(self, task: Task, n: int) -> None:
        horizon = task.horizon
        self.latest = np.zeros((n, task.observation_dim), np.float32)
        self._observations = np.zeros(
            (n, horizon + 1, task.observation_dim), np.float32
        )
        self._actions = np.zeros((n, horizon, task.action_dim), np.float32)
        self._rewards = np.zeros((n, horizon), np.float32)
        self._lengths = np.zeros(n, np.intp)
        self._terminated = np.zeros(n, np.bool_)

    def begin(self, outcome: Outcome) -> None:
        self.latest[outcome.rows] = outcome.observations
        self._observations[:, 0] = self.latest

    def add(self, outcome: Outcome, actions: Array32) -> None:
        rows, at = outcome.rows, self._lengths[outcome.rows]
        self.latest[rows] = outcome.observations
        self._observations[rows, at + 1] = outcome.observations
        self._actions[rows, at] = actions
        self._rewards[rows, at] = outcome.rewards
        self._terminated[rows] = outcome.terminated
        self._lengths[rows] += 1

    def episodes(self) -> list[Episode]:
        return [
            Episode(
                observations=self._observations[row, : length + 1].copy(),
                actions=self._actions[row, :length].copy(),
                rewards=self._rewards[row, :length].copy(),
                terminated=bool(self._terminated[row]),
            )
            for row, length in enumerate(self._lengths)
            if length
        ]
