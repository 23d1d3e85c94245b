"""Hand over to a safe controller wherever the agent is not sure of its Q-value.

The same three lines could stop the episode or ask a person instead.
"""

import sys

import numpy as np

from pombu import POMBU, preset
from pombu.algorithms.pombu.config import CalibrationConfig

NAME, STEPS = ("smoke", 60) if "--smoke" in sys.argv else ("fast", 1500)
config = preset("pombu", NAME, "Point2D")
agent = POMBU(
    config=config,
    seed=0,
    evaluation_episodes=max(5, config.evaluation_episodes),
    calibration=CalibrationConfig(use=True),
).learn(total_timesteps=STEPS)
env = agent.learner.task.make()


def width(observation, action):
    low, high = agent.q_interval(observation, action, level=0.9)
    return float(high[0] - low[0])


# Twice what is usual at the start of an episode is too much.
starts = [env.reset(seed=seed)[0] for seed in range(10)]
limit = 2 * np.median([width(s, agent.predict(s)[0]) for s in starts])
observation, handed_over, steps, over = env.reset(seed=100)[0], 0, 0, False
while not over:
    action, _ = agent.predict(observation, deterministic=True)
    if width(observation, action) > limit:
        action, handed_over = np.zeros_like(action), handed_over + 1  # stand still
    observation, _, terminated, truncated, _ = env.step(action)
    steps, over = steps + 1, terminated or truncated
print(f"the safe controller took over in {handed_over} of {steps} steps")
