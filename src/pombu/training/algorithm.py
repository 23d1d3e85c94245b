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
from pombu.envs import CATALOGUE, Episode, Task

FINAL_EPISODES, FEWEST_FINAL = 20, 5
"""Episodes of each kind that measure a policy at the end of its run, at most and, where
evaluation has a limit, at least."""
LONG_EPISODES = 200
"""Episodes above this many steps are long: by default their evaluation is limited."""
LONG_SHARE = 0.2
"""Steps of evaluations per real step where episodes are long and nothing is said."""
SELDOM = 5
"""A run with a limit evaluates its first iteration, and every fifth after that, however
little the limit pays for: the best checkpoint is known by its return."""


def usual_share(task: Task) -> float | None:
    """The share of evaluation where the user names none; None sets no limit.

    pombu's own tasks have none: what evaluates them is part of their presets, and of
    the results that are published.
    """
    own = any(entry.id == task.config.id for entry in CATALOGUE)
    return None if own or task.horizon <= LONG_EPISODES else LONG_SHARE


def affordable_episodes(
    wanted: int,
    share: float | None,
    horizon: int,
    real_steps: tuple[int, int],
    iteration: int,
) -> int:
    """Episodes of each kind, with and without noise, that an evaluation may have.

    Long episodes first make an evaluation smaller, down to one episode of each kind,
    and then rarer. Each counts as if it lasted to the time limit, so that the answer
    follows from counters alone: a resumed run needs to know nothing else.

    Args:
        wanted: as many as the config asks for.
        share: steps of evaluations per real step; None sets no limit, 0 allows none.
        horizon: steps that an episode may take.
        real_steps: those before the iteration and after it.
        iteration: how many came before.
    """
    if share is None:
        return wanted
    per_step = share / (2 * horizon)
    before, after = (int(per_step * steps) for steps in real_steps)
    due = int(share > 0 and iteration % SELDOM == 0)
    return min(wanted, max(after - before, due))


def final_episodes(share: float | None, horizon: int, real_steps: int) -> int:
    """Episodes of each kind at the end of a run: with noise, without, and random."""
    if share is None:
        return FINAL_EPISODES
    paid = int(share * real_steps / (3 * horizon))
    return min(max(paid, FEWEST_FINAL), FINAL_EPISODES)


class StageTimer:
    """Names and times the stages of an iteration: `with stage("fit"): ...`.

    Stages are where a run can be stopped between its checkpoints: `before` is called as
    each one begins and may raise. The timer also knows how many episodes an iteration
    may spend on evaluation.
    """

    def __init__(
        self,
        before: Callable[[str], None] | None = None,
        after: Callable[[str, float], None] | None = None,
        evaluation: Callable[[int], int] | None = None,
    ) -> None:
        """Call `before(name)` and `after(name, seconds)` around each stage.

        `evaluation(wanted)` says how many episodes an evaluation may have.
        """
        self._before = before
        self._after = after
        self._evaluation = evaluation
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

    def evaluation_episodes(self, wanted: int) -> int:
        """Episodes that this iteration's evaluation may have, of those wanted."""
        return wanted if self._evaluation is None else self._evaluation(wanted)

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
        are not, and there are as many as `stage.evaluation_episodes` allows. Without
        any the metrics have no `return_real`.
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
class LearnsOffline(Protocol[S]):
    """One that can improve its policy from stored episodes alone."""

    def offline(
        self, state: S, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[S, dict[str, float]]:
        """One iteration without a real step to learn from.

        The first one fits the dynamics. Real steps are not counted, and there is an
        evaluation only if `stage.evaluation_episodes` allows it.
        """


@runtime_checkable
class Explores(Updatable[S], Protocol[S]):
    """One that also says how to collect them."""

    def explore(self, state: S, episodes: EpisodeStore) -> tuple[S, Any]:
        """A stack of policies to collect the next real episodes with, and its units."""


def random_policy(task: Task) -> Policy:
    """Uniform random actions: what a return has to be compared with."""

    def act(observations: Any, deterministic: bool, key: jax.Array) -> Any:
        shape = (len(observations), task.action_dim)
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)

    return act


def late_start_warning(algorithm: Algorithm[S], total_steps: int) -> str | None:
    """What to say where most real steps go by before anything is learned."""
    first = getattr(algorithm.config, "learning_starts", 0)
    if 2 * first <= total_steps:
        return None
    return (
        f"{algorithm.name} learns nothing in its first {first:,} real steps "
        f"(learning_starts), and the run has {total_steps:,}: lower that number, or "
        "take more steps."
    )
