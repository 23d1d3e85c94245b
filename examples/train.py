"""Train POMBU, see what it learned, and take the policy away.

`python examples/train.py` takes some minutes on two cores, `--smoke` far less.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from pombu import POMBU, StopAfter

SMOKE = "--smoke" in sys.argv
TASK, PRESET, STEPS = "HalfCheetah", "fast", 12_000
if SMOKE:
    TASK, PRESET, STEPS = "Point2D", "smoke", 40

agent = POMBU(TASK, preset=PRESET, seed=0)
agent.learn(total_timesteps=STEPS, callbacks=[StopAfter(seconds=600)])

# One real episode with the trained policy, and how sure it is of each Q-value.
env = agent.learner.task.make()
observation, _ = env.reset(seed=1)
observations, actions, total, over = [], [], 0.0, False
while not over:
    action, _ = agent.predict(observation, deterministic=True)
    observations.append(observation)
    actions.append(action)
    observation, reward, terminated, truncated, _ = env.step(action)
    total, over = total + float(reward), terminated or truncated
sigma = agent.q_uncertainty(np.stack(observations[::10]), np.stack(actions[::10]))
print(f"return {total:.1f}; sigma(Q) along the way: {np.round(sigma, 2)}")

folder = Path(tempfile.mkdtemp()) / "agent"
agent.save(folder)
print(f"saved: `pombu evaluate {folder}`, or POMBU.load({str(folder)!r}) in Python")
