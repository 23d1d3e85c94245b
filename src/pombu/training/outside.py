"""Learning from real episodes that come from outside the learn loop."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np

from pombu.envs import Episode
from pombu.errors import UsageError
from pombu.training.algorithm import Algorithm, S
from pombu.training.episodes import EpisodeStore
from pombu.training.metrics import require_finite
from pombu.training.stages import StageTimer


@runtime_checkable
class Digests(Protocol[S]):
    """An algorithm that can be given real episodes instead of collecting them."""

    def digest(
        self,
        state: S,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[S, dict[str, float]]:
        """Learn from `collected`, which are among `episodes` already."""


@runtime_checkable
class Explores(Digests[S], Protocol[S]):
    """One that also says how to collect them."""

    def explore(self, state: S, episodes: EpisodeStore) -> tuple[S, Any]:
        """A stack of policies to collect the next real episodes with, and its units."""


def begin_from(
    algorithm: Algorithm[S], seed: int, logged: Sequence[Episode]
) -> tuple[S, EpisodeStore]:
    """A state that has learned from logged episodes before its first real step.

    They do not count as real steps of the run, whose budget is for steps yet to come.
    """
    if not isinstance(algorithm, Digests):
        raise UsageError(
            f"{algorithm.name} cannot start from logged data: choose pombu, meppo, "
            "metrpo or slbo, or leave the data out."
        )
    episodes = EpisodeStore(logged)
    state, metrics = algorithm.digest(
        algorithm.init(seed), episodes, list(logged), StageTimer()
    )
    require_finite(metrics, int(state.iteration))
    uncounted: S = eqx.tree_at(lambda s: s.real_steps, state, np.asarray(0))
    return uncounted, episodes
