"""An environment of your own, from its class to a policy: a cart on a rail."""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

from pombu import POMBU

PRESET, STEPS = ("smoke", 200) if "--smoke" in sys.argv else ("fast", 5000)


class Cart(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-5.0, 5.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1.0, 1.0, 2)
        return self.state, {}

    def step(self, action):
        velocity = self.state[1] + 0.05 * float(action[0])
        self.state = np.array([self.state[0] + 0.05 * velocity, velocity])
        reward = 1.0 - self.state[0] ** 2 - 0.1 * velocity**2
        return self.state, reward, bool(abs(self.state[0]) > 2.0), False, {}


def make_cart():
    return gymnasium.wrappers.TimeLimit(Cart(), 100)


agent = POMBU(make_cart, preset=PRESET, seed=0).learn(total_timesteps=STEPS)
env = make_cart()
start = observation = env.reset(seed=1)[0]
for _ in range(100):
    observation, *_ = env.step(agent.predict(observation, deterministic=True)[0])
print(f"brought the cart from {start[0]:+.2f} to {observation[0]:+.2f}")
