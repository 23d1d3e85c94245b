"""Ctrl-C and `kill` ask a run to stop; it does so where nothing is lost."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Remembers which signal asked for a stop."""

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
