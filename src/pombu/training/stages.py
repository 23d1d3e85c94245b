"""Names and times the stages of an iteration."""

import contextlib
import time
from collections.abc import Callable, Iterator


class StageTimer:
    """`with stage("fit"): ...` announces a stage and adds up its time.

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
