"""`make demo`: POMBU learns HalfCheetah for a few minutes, and you see what it learned.

The same by hand: `pombu train --env HalfCheetah --preset fast --seed 7 --total-steps
12000 --max-minutes 4`, then `pombu evaluate` and `pombu plot` with the run's folder.
"""

import sys
from pathlib import Path

import numpy as np

from pombu.analysis.curves import read_curves
from pombu.cli import main
from pombu.envs import collect, load

TASK, PRESET, STEPS, EPISODES = "HalfCheetah", "fast", 12_000, 20
if "--smoke" in sys.argv:
    TASK, PRESET, STEPS, EPISODES = "Point2D", "smoke", 80, 2

run = next(p for n in range(1, 1000) if not (p := Path(f"runs/demo-{n}")).exists())
what = f"--env {TASK} --preset {PRESET} --seed 7 --total-steps {STEPS} --max-minutes 4"
for command in (
    f"train {what} --out {run}",
    f"evaluate {run} --episodes {EPISODES}",
    f"plot {run}",
):
    if code := main(command.split()):
        sys.exit(code)

task, rng = load(TASK), np.random.default_rng(0)
shape = (EPISODES, task.action_dim)
episodes = collect(task, lambda *_: rng.uniform(-1, 1, shape), range(EPISODES))
random = np.mean([episode.rewards.sum() for episode in episodes])
best = max(row["return_real"] for row in read_curves([run])[0].rows)
print(f"\nReturn per episode: random {random:.0f}, POMBU at its best {best:.0f}.")
print(f"Learning curve: {run}/returns.png, numbers: {run}/metrics.csv")
print(f"Next: `pombu resume {run} --total-steps 40000`, `pombu --help` (the")
print("command is .venv/bin/pombu until you activate .venv).")
