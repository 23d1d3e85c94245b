"""What the learn loop asks of an algorithm."""

from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
import numpy.typing as npt

from pombu.envs import Task
from pombu.training.episodes import EpisodeStore
from pombu.training.stages import StageTimer


@runtime_checkable
class Counters(Protocol):
    """What every state counts."""

    @property
    def iteration(self) -> Any:
        """Iterations done."""

    @property
    def real_steps(self) -> Any:
        """Steps taken in the real environment to learn from."""

    @property
    def imagined_steps(self) -> Any:
        """Steps taken in the learned world."""


S = TypeVar("S", bound=Counters)


@runtime_checkable
class Policy(Protocol):
    """A policy to act with."""

    def __call__(
        self, observations: npt.NDArray[np.float32], deterministic: bool, key: jax.Array
    ) -> Any:
        """Policy-space actions, one row per observation."""


@runtime_checkable
class Planner(Policy, Protocol):
    """A policy that remembers its plan from step to step, and has no noise of its own.

    Its rows are the same episodes from call to call.
    """

    def begin(self) -> "Planner":
        """The same planner as episodes begin."""


@runtime_checkable
class Algorithm(Protocol[S]):
    """A learner as three pure functions of its state.

    The state is a pytree of arrays. Together with the real episodes it is all that the
    next iteration depends on: every random draw comes from the seed and the counters.
    """

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def task(self) -> Task:
        """Where it learns."""

    @property
    def config(self) -> Any:
        """Its frozen dataclass, resolved."""

    def init(self, seed: int) -> S:
        """The state before the first iteration."""

    def iterate(
        self, state: S, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[S, dict[str, float]]:
        """One iteration: the next state, and its metrics by the paper's names.

        Real episodes to learn from are appended to `episodes`; those of an evaluation
        are not.
        """

    def policy(self, state: S) -> Policy:
        """The policy that the state holds."""
