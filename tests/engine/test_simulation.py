"""Real rollouts in the shape of imagined ones."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from pombu.data import Normaliser
from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.model import Dynamics
from pombu.envs import load
from pombu.nn import init_policy, init_value, predict_value
from pombu.rollout.plan import simulate


class Countdown(gymnasium.Env[Any, Any]):
    """Counts down from 2, 3 or 4 to its end; the reward is what is left."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 5))
        return np.array([self.left], np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        observation = np.array([self.left], np.float32)
        return observation, float(self.left), self.left == 0, False, {}


def in_units(return_std: float) -> Dynamics:
    """Dynamics of which only the units are used."""
    unit = Normaliser(jnp.ones(1), jnp.full(1, 2.0))
    layers = Layers((jnp.zeros((1, 2, 1)),), (jnp.zeros((1, 1)),))
    return Dynamics(layers, unit, unit, unit, None, jnp.float32(return_std))


def test_short_episodes_are_padded_and_end() -> None:
    task = load("test_simulation:Countdown", horizon=3)
    policy = init_policy(jax.random.key(0), 1, 1, (4,))
    value = init_value(jax.random.key(1), 1, (4,))
    seeds = list(range(12))
    imagined = simulate(
        policy,
        value,
        task,
        in_units(2.0),
        ReturnConfig(reward_clip=2.5),
        jax.random.key(2),
        seeds,
    )
    env = task.make()
    firsts = [int(env.reset(seed=seed)[0][0]) for seed in seeds]
    env.close()
    assert set(firsts) == {2, 3, 4}
    for n, first in enumerate(firsts):
        left = [first - h for h in range(3)]
        rewards = np.array([max(x - 1, 0) for x in left], float)
        assert imagined.raw_rewards[:, n].tolist() == rewards.tolist()
        scaled = np.minimum(rewards, 2.5) / 2.0
        assert imagined.rewards[:, n].tolist() == scaled.tolist()
        assert imagined.weight[:, n].tolist() == [float(x > 0) for x in left]
        assert imagined.continues[:, n].tolist() == [float(x > 1) for x in left]
        lived = min(first, 3)
        normal = (np.array(left[:lived]) - 1.0) / 2.0
        assert imagined.observations[:lived, n, 0].tolist() == normal.tolist()
    assert float(jnp.abs(imagined.local).max()) == 0.0
    np.testing.assert_allclose(
        imagined.log_probs,
        policy.log_prob(imagined.observations, imagined.actions),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        imagined.values, predict_value(value, imagined.observations), rtol=1e-6
    )


class Cut(Countdown):
    """The same, but time is up instead of all being over."""

    def step(self, action: Any) -> Any:
        observation, reward, over, _, info = super().step(action)
        return observation, reward, False, over, info


def test_what_lies_beyond_an_early_time_limit_is_expected() -> None:
    task = load("test_simulation:Cut", horizon=6)
    policy = init_policy(jax.random.key(0), 1, 1, (4,))
    value = init_value(jax.random.key(1), 1, (4,))
    rewards = {}
    for bootstrap in (False, True):
        returns = ReturnConfig(reward_clip=None, gamma=0.9, bootstrap=bootstrap)
        seeds = list(range(5))
        imagined = simulate(
            policy, value, task, in_units(1.0), returns, jax.random.key(2), seeds
        )
        rewards[bootstrap] = np.asarray(imagined.rewards)
        lived = np.asarray(imagined.weight).sum(0).astype(int)
        assert (lived < 6).all()
        assert np.asarray(imagined.continues)[lived - 1, np.arange(5)].max() == 0
    # Every episode ends in the state 0, which is normalised to -1/2.
    beyond = 0.9 * float(predict_value(value, jnp.array([[-0.5]]))[0])
    gained = rewards[True] - rewards[False]
    np.testing.assert_allclose(gained[lived - 1, np.arange(5)], beyond, rtol=1e-5)
    assert np.count_nonzero(gained) == 5
