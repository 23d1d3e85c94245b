"""`make demo`: POMBU learns HalfCheetah for a few minutes, and you see what it learned.

The same by hand: `pombu train --env HalfCheetah --preset fast --total-steps 12000`.
"""

import sys
from pathlib import Path

import numpy as np

from pombu.cli import main
from pombu.envs import collect, load
from pombu.studies.curves import read_curves

STEPS, MINUTES, EPISODES = 12_000, 4.0, 20


def free_folder() -> Path:
    numbers = range(1, 1000)
    return next(p for n in numbers if not (p := Path(f"runs/demo-{n}")).exists())


def random_return() -> float:
    task = load("HalfCheetah")
    rng = np.random.default_rng(0)
    shape = (EPISODES, task.action_dim)
    episodes = collect(task, lambda *_: rng.uniform(-1, 1, shape), range(EPISODES))
    return float(np.mean([episode.rewards.sum() for episode in episodes]))


def demo() -> int:
    run = free_folder()
    flags = f"--env HalfCheetah --preset fast --seed 7 --total-steps {STEPS}"
    limit = ["--max-minutes", str(MINUTES), "--out", str(run)]
    for command in (
        ["train", *flags.split(), *limit],
        ["evaluate", str(run), "--episodes", str(EPISODES)],
        ["plot", str(run)],
    ):
        if code := main(command):
            return code
    best = max(row["return_real"] for row in read_curves([run])[0].rows)
    print(f"\nReturn per episode: random {random_return():.0f}, POMBU {best:.0f}.")
    print(f"Learning curve: {run}/returns.png, numbers: {run}/metrics.csv")
    print(f"Next: `pombu resume {run} --total-steps 40000`, `pombu --help` (the")
    print("command is .venv/bin/pombu until you activate .venv).")
    return 0


if __name__ == "__main__":
    sys.exit(demo())
