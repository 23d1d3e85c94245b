"""What the machine can do at best: large matrix products on all cores."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pombu.benchmarks.timing import seconds
from pombu.workers import Workers, jit


def gflops(
    dtype: DTypeLike, sizes: Sequence[int], workers: Workers, repeats: int
) -> float:
    """The most operations per nanosecond that any way of multiplying reached.

    One product spread over all cores and one product per core compete. The best and not
    the median counts: a limit that a disturbance lowered would flatter every share.
    """
    return max(
        max(_together(size, dtype, repeats), _apart(size, dtype, workers, repeats))
        for size in sizes
    )


def _multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _together(size: int, dtype: DTypeLike, repeats: int) -> float:
    multiply = jax.jit(_multiply)
    a = jnp.ones((size, size), dtype)
    seconds(lambda: multiply(a, a))
    return 2e-9 * size**3 / min(seconds(lambda: multiply(a, a)) for _ in range(repeats))


def _apart(size: int, dtype: DTypeLike, workers: Workers, repeats: int) -> float:
    multiply = jit(_multiply)
    a = jnp.ones((size, size), dtype)

    def everyone() -> object:
        return workers.map(lambda _: multiply(a, a), range(workers.count))

    seconds(everyone)
    best = min(seconds(everyone) for _ in range(repeats))
    return 2e-9 * workers.count * size**3 / best
