"""Keeping every core busy with the algorithm's own independent work.

The hot loops split into pieces that do not talk to each other: the K members' fits, the
value and the policy update, halves of an imagined batch, the exploration policies. Each
piece is compiled to run on one thread and the pieces run side by side, which costs no
synchronisation inside a step. How the work is cut never depends on how many cores there
are. The last digits of a number still may: XLA divides some large operations by the
threads it has. A run's checkpoints therefore name the number of cores.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")

Result = TypeVar("Result")


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` whose CPU code keeps to one thread; no accelerator minds."""
    import jax

    return jax.jit(
        function,
        compiler_options={"xla_cpu_multi_thread_eigen": False},
        **options,
    )


_inside = threading.local()


class Workers:
    """A few threads that run independent computations side by side.

    Work that a worker itself hands out is done by that worker, one piece after the
    other: waiting for its own pool could otherwise wait forever.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or usable_cores()
        self._pool = ThreadPoolExecutor(
            self.count, "pombu", lambda: setattr(_inside, "worker", True)
        )

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Apply `function` to every item; results in order, errors raised."""
        if getattr(_inside, "worker", False):
            return [ready(function(item)) for item in items]
        return list(self._pool.map(lambda item: ready(function(item)), items))

    def both(
        self, first: Callable[[], Item], second: Callable[[], Result]
    ) -> tuple[Item, Result]:
        """Run two computations side by side."""
        pair: list[Any] = self.map(lambda piece: piece(), (first, second))
        return pair[0], pair[1]

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def ready(result: Result) -> Result:
    """Wait for the arrays in the thread that asked for them, so that cores overlap."""
    import jax

    jax.block_until_ready(result)
    return result


def usable_cores() -> int:
    """Cores that this process may use: those it is pinned to, if it is."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_compilation_cache() -> None:
    """Let JAX keep compiled functions between runs.

    `JAX_COMPILATION_CACHE_DIR` chooses the folder, and empty turns the cache off; the
    default is `pombu/jax` under the user's cache folder. An unwritable folder is no
    reason to fail: it only means compiling anew.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "pombu" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    jax = sys.modules.get("jax")
    # JAX reads these variables once; a script may have chosen a folder of its own.
    if jax is not None and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
