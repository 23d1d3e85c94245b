"""Run folders written by hand: every metric that a report shows, without a training."""

from pathlib import Path
from typing import Any

import numpy as np

from pombu.training.metrics import MetricsFile
from pombu.training.run import Run, RunSpec, create

STAGES = ("explore", "collect", "fit", "imagine", "improve", "evaluate")
ITERATIONS = 12


def write_run(
    folder: Path,
    seed: int = 0,
    alpha: float = 0.5,
    task: str = "pombu/HalfCheetah-v0",
    algorithm: str = "pombu",
    preset: str = "fast",
    iterations: int = ITERATIONS,
) -> Run:
    """A run that learned something."""
    config: dict[str, Any] = {
        "env": {"id": task},
        "alpha": alpha,
        "beta": 10.0,
        "model": {"members": 5, "hidden": [512, 512]},
    }
    spec = RunSpec(algorithm, preset, seed, 2000 * ITERATIONS, config)
    run = create(folder, spec)
    file = MetricsFile(run.metrics)
    for row in rows(seed, alpha, iterations):
        file.append(row)
    return run


def rows(seed: int, alpha: float, iterations: int) -> list[dict[str, float]]:
    """Metrics with the usual names, and usual sizes."""
    draw = np.random.default_rng([seed, int(100 * alpha)])
    made = []
    for i in range(1, iterations + 1):
        learned = 1 - np.exp(-i / 5)
        real = 300 * learned * (1 + alpha / 5) + draw.normal(0, 12)
        row: dict[str, float] = {
            "iteration": i,
            "real_steps": 2000 * i,
            "imagined_steps": 100_000 * i,
            "return_real": real,
            "return_real_std": 20.0,
            "return_model": real + 90 / i + draw.normal(0, 8),
            "kl": 0.01 * (1 + 0.2 * draw.normal()),
            "uncertainty": 1.5 / np.sqrt(i),
            "penalty": 0.03 / np.sqrt(i),
            "p_improve_prob": 0.5 + 0.3 * (1 - learned),
            "entropy": 8 - 3 * learned,
            "value_loss": 5 / i,
        }
        for horizon in (1, 5, 20, 50):
            row[f"model_error_{horizon}"] = 0.05 * horizon**0.8 / np.sqrt(i)
        for number, stage in enumerate(STAGES):
            row[f"{stage}_seconds"] = 1.0 + number
        row["iteration_seconds"] = float(sum(range(1, len(STAGES) + 1)))
        row["elapsed_seconds"] = i * row["iteration_seconds"]
        made.append({name: float(value) for name, value in row.items()})
    return made
