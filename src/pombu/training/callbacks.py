"""Callbacks: code that is called as a run goes on, and what else can stop it.

class Shout(Callback):
    def on_iteration(self, progress):
        print(progress.iteration, progress.metrics["return_real"])
"""

import contextlib
import dataclasses
import math
import numbers
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from pombu.errors import StoppedError, UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    algorithm: str
    environment: str
    seed: int
    total_steps: int
    iteration: int
    real_steps: int
    imagined_steps: int
    metrics: Mapping[str, float]
    """Of the last iteration; empty before the first."""
    returns: Sequence[float]
    """`return_real` of every iteration so far."""
    state: Any
    """The algorithm's state."""
    folder: Path | None
    """The run folder, where there is one."""
    offline: int = 0
    """First iterations, which learn from stored episodes alone."""
    last_iteration: int | None = None
    """The iteration that ends the run, where one does: its steps may be fewer then."""


class Callback:
    """Base class: does nothing; a callback redefines the methods it needs."""

    def on_start(self, progress: Progress) -> None:
        """The run begins, or goes on after an interruption."""

    def on_stage(self, name: str) -> None:
        """A stage of an iteration begins."""

    def on_stage_end(self, name: str, seconds: float) -> None:
        """A stage of an iteration is done."""

    def on_iteration(self, progress: Progress) -> bool | None:
        """An iteration is done; returning False stops the run."""

    def on_evaluation(self, progress: Progress) -> bool | None:
        """The iteration also measured the policy; returning False stops the run."""

    def on_message(self, text: str) -> None:
        """Something that a user should read."""

    def on_stop(self, progress: Progress) -> None:
        """The run has ended, for whatever reason."""


CallbackLike = Callback | Callable[[Progress], bool | None]
"""A callback, or a function that is called after every iteration."""


class CallFunction(Callback):
    """A function as a callback: it is called after every iteration."""

    def __init__(self, function: Callable[[Progress], bool | None]) -> None:
        """Call this."""
        self._function = function

    def on_iteration(self, progress: Progress) -> bool | None:
        """Pass on what the function says: False stops the run."""
        return self._function(progress)


def as_callbacks(given: Any) -> list[Callback]:
    """One callback, several or none, some of them perhaps functions, as a list.

    Raises:
        UsageError: Something is neither.
    """
    several = given if isinstance(given, list | tuple) else [given]
    found = []
    for one in several:
        if isinstance(one, Callback):
            found.append(one)
        elif callable(one) and not hasattr(one, "init_callback"):
            found.append(CallFunction(one))
        elif one is not None:
            raise UsageError(
                f"a callback is {one!r:.80}: give a pombu.Callback, or a function that "
                "takes a Progress (callbacks of Stable-Baselines3 see another loop)."
            )
    return found


class CallbackList(Callback):
    """Several callbacks as one: each is called, in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        """Call these."""
        self._callbacks = tuple(callbacks)

    def on_start(self, progress: Progress) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            callback.on_start(progress)

    def on_stage(self, name: str) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            callback.on_stage(name)

    def on_stage_end(self, name: str, seconds: float) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            callback.on_stage_end(name, seconds)

    def on_iteration(self, progress: Progress) -> bool | None:
        """Pass it on; False if anyone said so."""
        answers = [callback.on_iteration(progress) for callback in self._callbacks]
        return False not in answers

    def on_evaluation(self, progress: Progress) -> bool | None:
        """Pass it on; False if anyone said so."""
        answers = [callback.on_evaluation(progress) for callback in self._callbacks]
        return False not in answers

    def on_message(self, text: str) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            callback.on_message(text)

    def on_stop(self, progress: Progress) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            callback.on_stop(progress)


def _is_finite(number: Any) -> bool:
    return isinstance(number, numbers.Real) and math.isfinite(number)


class StopAtReturn(Callback):
    """Stops once the mean real return reaches a target."""

    def __init__(self, target: float, metric: str = "return_real") -> None:
        """Stop when `metric` is at least `target`."""
        if not _is_finite(target):
            raise UsageError(
                f"the target return is {target!r:.80}: it must be a finite number."
            )
        self.target = target
        self.metric = metric

    def on_evaluation(self, progress: Progress) -> bool | None:
        """Compare the last return with the target."""
        if self.metric not in progress.metrics:
            known = ", ".join(sorted(progress.metrics))
            raise UsageError(f"there is no metric {self.metric}; there are {known}.")
        return progress.metrics[self.metric] < self.target


class StopAfter(Callback):
    """Stops at the end of the first iteration after a wall-clock limit."""

    def __init__(self, seconds: float) -> None:
        """Stop `seconds` after the start; a resumed run starts counting anew."""
        if not (_is_finite(seconds) and seconds > 0):
            raise UsageError(
                f"the limit is {seconds!r:.80} seconds: it must be a finite number "
                "above 0."
            )
        self.seconds = seconds
        self._end = float("inf")

    def on_start(self, progress: Progress) -> None:
        """Start the clock."""
        self._end = time.monotonic() + self.seconds

    def on_iteration(self, progress: Progress) -> bool | None:
        """Look at the clock."""
        return time.monotonic() < self._end


class StopRequest:
    """Which signal asked for a stop, if one did."""

    def __init__(self) -> None:
        """No signal has come."""
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


class StopNow(BaseException):
    """Ends an iteration between two stages; no `except Exception` may swallow it."""


@contextlib.contextmanager
def stop_requests(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while inside; the second one interrupts at once."""
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.signal = number
        name = signal.Signals(number).name
        notify(f"{name}: stopping after this stage; once more stops at once.")

    # Only the main thread may handle signals; elsewhere the caller's own rules hold.
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def stop_error(number: int) -> BaseException:
    """What to raise once a signal was heeded and nothing is left to lose."""
    kept = "Stopped; the agent keeps every finished iteration."
    if number == signal.SIGINT:
        return KeyboardInterrupt(kept)
    return StoppedError(kept, number)
