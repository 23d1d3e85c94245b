"""What the learn loop asks of an algorithm, and what it hands to one.

`Algorithm` is the interface of every learner. Some can do more: `Updatable` learns from
episodes that somebody else collected, and `Explores` also says how to collect them.
With `StageTimer` an iteration tells the loop which part of it is under way.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
import numpy.typing as npt

from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, Task


class StageTimer:
    """Names and times the stages of an iteration: `with stage("fit"): ...`.

    Stages are where a run can be stopped between its checkpoints: `before` is called as
    each one begins and may raise.
    """

    def __init__(
        self,
        before: Callable[[str], None] | None = None,
        after: Callable[[str, float], None] | None = None,
    ) -> None:
        """Call `before(name)` and `after(name, seconds)` around each stage."""
        self._before = before
        self._after = after
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time one stage; a stage entered again adds to its total."""
        if self._before is not None:
            self._before(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        if self._after is not None:
            self._after(name, seconds)

    @property
    def columns(self) -> dict[str, float]:
        """Seconds per stage since the last reset, as columns of `metrics.csv`."""
        return {f"{name}_seconds": total for name, total in self._seconds.items()}

    def reset(self) -> None:
        """Start the next iteration's totals."""
        self._seconds.clear()


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
        """Steps taken in the learned dynamics."""


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


@runtime_checkable
class Updatable(Protocol[S]):
    """An algorithm that can be given real episodes instead of collecting them."""

    def update(
        self,
        state: S,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[S, dict[str, float]]:
        """Learn from `collected`, which are among `episodes` already."""


@runtime_checkable
class Explores(Updatable[S], Protocol[S]):
    """One that also says how to collect them."""

    def explore(self, state: S, episodes: EpisodeStore) -> tuple[S, Any]:
        """A stack of policies to collect the next real episodes with, and its units."""
