"""The whole benchmark: every figure of `pombu bench`, measured in one run."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from pombu.benchmarks import (
    baselines,
    collection,
    growth,
    limit,
    planners,
    without,
)
from pombu.benchmarks.comparison import compare
from pombu.benchmarks.timing import CompileClock, take_turns
from pombu.benchmarks.workload import Workload, paper_workload
from pombu.training.loop import peak_memory
from pombu.training.run import provenance

Figures = dict[str, Any]
STORED = 20_000
SIZES = (1024, 2048)
"""Of the matrices whose product shows the machine's limit."""


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    repeats: int
    budget: float
    """Seconds after which a comparison begins no further round."""
    fit_steps: int
    """Gradient steps per member in a timed fit."""
    collections: int
    """Batches of real episodes per task."""
    whole_iterations: bool
    """See how whole iterations grow with data; else one short fit plus one update."""


FULL = Effort(9, 90.0, fit_steps=80, collections=5, whole_iterations=True)
QUICK = Effort(3, 20.0, fit_steps=10, collections=2, whole_iterations=False)


def run(effort: Effort, say: Callable[[str], None]) -> Figures:
    """Measure everything.

    Args:
        effort: how long to measure.
        say: told what is being measured.
    """
    started = time.perf_counter()
    before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    say("time per iteration as data grows")
    # First of all, so that the peak of memory is the engine's and not PyTorch's.
    with CompileClock() as compiling:
        iteration = growth.measure(effort.whole_iterations)
    memory = peak_memory()
    say("collection of real steps")
    collected = collection.measure(effort.collections)
    say("the machine's limit")
    work = paper_workload(STORED, effort.fit_steps)
    limits = _limits(work)
    compared = compare(work, limits, effort.repeats, effort.budget, say)
    say("the cost of uncertainty")
    uncertain = _uncertainty(work, effort)
    say("the baselines")
    return {
        "limit": limits,
        **compared,
        **uncertain,
        "baselines": baselines.measure(effort.repeats, effort.budget),
        **planners.measure(effort.repeats, effort.budget, limits["f32_gflops"]),
        "iteration": {
            "measured": "iteration" if effort.whole_iterations else "fit and update",
            "seconds": {str(size): spent for size, spent in iteration.items()},
            "growth_200k_over_20k": iteration[200_000] / iteration[20_000],
        },
        "compile": {"seconds": compiling.seconds},
        "memory": {"peak_mb": memory},
        "collection": collected,
        "machine": {
            **provenance(),
            "usable_cores": work.learner.workers.count,
            "load_before": before,
        },
        "total_seconds": time.perf_counter() - started,
    }


def _limits(work: Workload) -> dict[str, float]:
    workers = work.learner.workers
    return {
        "f32_gflops": limit.gflops(jnp.float32, SIZES, workers, 9),
        "bf16_gflops": limit.gflops(jnp.bfloat16, SIZES[:1], workers, 3),
    }


def _uncertainty(work: Workload, effort: Effort) -> Figures:
    """A whole update of POMBU beside one of MEPPO, which knows no uncertainty."""
    times = take_turns(
        {"pombu": work.update, "meppo": lambda: without.update(work)},
        effort.repeats,
        effort.budget,
    )
    ratio = times.ratio("pombu", "meppo")
    return {
        "uncertainty": {
            "with_seconds": times.median("pombu"),
            "without_seconds": times.median("meppo"),
            "overhead": ratio - 1.0,
        },
        "pombu_over_meppo": ratio,
    }
