"""Record a short training run of every algorithm, to compare later changes with.

    python -m tools.record_runs tests/fixtures/recorded-runs.json [ALGORITHM ...]

writes the metrics of each iteration without timings, a SHA-256 of the final weights,
and the platform and versions they hold for. Record on one core (`taskset -c 0`), as the
tests run.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pombu.algorithms import registry
from pombu.algorithms.registry import preset
from pombu.data.episodes import EpisodeStore
from pombu.envs import load
from pombu.training.algorithm import StageTimer

TASK = "Point2D"
SEED = 3
ITERATIONS = 2
_PACKAGES = ("jax", "jaxlib", "numpy", "optax", "mujoco", "stable-baselines3", "sbx-rl")


def record(name: str) -> dict[str, Any]:
    """What a short run of an algorithm comes to."""
    config = preset(name, "smoke", TASK)
    algorithm = registry.make(name, load(config.env), config)
    state, episodes = algorithm.init(SEED), EpisodeStore()
    rows = []
    for _ in range(ITERATIONS):
        state, metrics = algorithm.iterate(state, episodes, StageTimer())
        rows.append({key: float(value) for key, value in sorted(metrics.items())})
    return {
        "real_steps": int(state.real_steps),
        "imagined_steps": int(state.imagined_steps),
        "metrics": rows,
        "weights": weights_hash(state),
        "versions": versions(),
    }


def weights_hash(state: Any) -> str:
    """SHA-256 of every array of a state, with its place in the tree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        array = np.asarray(leaf)
        digest.update(
            f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode()
        )
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """What bits depend on: processor, number of cores, and packages that compute.

    Processors of one model name may differ in their vector instructions, and so in how
    a compiled program rounds: the flags tell them apart.
    """
    model, flags = (_cpuinfo(field) for field in ("model name", "flags"))
    found = {
        "machine": platform.machine(),
        "processor": model,
        "flags": hashlib.sha256(flags.encode()).hexdigest()[:12],
        "cores": str(len(os.sched_getaffinity(0))),
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


def _cpuinfo(field: str) -> str:
    """A field of the first processor, as Linux tells it; empty elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = (line.split(":", 1) for line in lines if ":" in line)
    return next((text.strip() for name, text in named if name.strip() == field), "")


def main(path: Path, names: Sequence[str]) -> None:
    """Write the record of every algorithm, or replace that of some."""
    runs = json.loads(path.read_text())["runs"] if names else {}
    for name in names or registry.ALGORITHMS:
        runs[name] = record(name)
    path.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
