"""Times of several pieces of work, taken turn by turn."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax

from pombu.parallel import ready

Work = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Seconds of each piece of work, round by round."""

    rounds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Seconds that the work takes."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, other: str) -> float:
        """How many times longer `name` takes than `other`: the median over rounds.

        Both were measured right after one another in each round, so what disturbs the
        machine for longer disturbs both.
        """
        pairs = zip(self.rounds[name], self.rounds[other], strict=True)
        return statistics.median(a / b for a, b in pairs)


def seconds(work: Work) -> float:
    """Time of one call, until its arrays are there."""
    start = time.perf_counter()
    ready(work())
    return time.perf_counter() - start


def take_turns(pieces: Mapping[str, Work], repeats: int, budget: float) -> Times:
    """Warm up, then time the pieces one after the other, round after round.

    Args:
        pieces: what to time, by name.
        repeats: rounds.
        budget: seconds after which no further round begins; there are at least two.
    """
    for work in pieces.values():
        seconds(work)
    rounds: dict[str, list[float]] = {name: [] for name in pieces}
    end = time.perf_counter() + budget
    for number in range(repeats):
        if number >= 2 and time.perf_counter() > end:
            break
        for name, work in pieces.items():
            rounds[name].append(seconds(work))
    return Times(rounds)


class CompileClock:
    """Adds up the time that JAX spends on tracing and compiling inside a `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> "CompileClock":
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *exception: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += duration_secs
