"""SLBO's own parts: its noise, its entropy, and its alternation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from pombu.algorithms.registry import preset
from pombu.algorithms.slbo.config import NoiseConfig
from pombu.algorithms.slbo.learner import Learner, limited_entropy, with_noise
from pombu.envs import load
from pombu.errors import UsageError
from pombu.nn import GaussianPolicy, init_policy
from pombu.optim.ppo import Batch


def test_noise_is_that_of_a_loop_and_starts_at_zero_plus_one_draw() -> None:
    config = NoiseConfig(theta=0.25, sigma=0.5)
    act = with_noise(lambda o, t: np.ones((3, 2)), (3, 2), config, (1, 2))
    found = np.stack([act(np.zeros((3, 4)), t) for t in range(5)]) - 1.0
    rng = np.random.default_rng([1, 2])
    level = np.zeros((3, 2))
    for step in found:
        level = 0.75 * level + 0.5 * rng.standard_normal((3, 2), np.float32)
        np.testing.assert_allclose(step, level, rtol=1e-5, atol=1e-6)


def test_noise_settles_at_its_stationary_spread() -> None:
    config = NoiseConfig()
    act = with_noise(lambda o, t: np.zeros((4000, 1)), (4000, 1), config, (0,))
    for step in range(60):
        level = act(np.zeros((4000, 1)), step)
    theta, sigma = config.theta, config.sigma
    expected = sigma / np.sqrt(1 - (1 - theta) ** 2)
    assert level.std() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, -1.0), (1.5, 0.0), (-3.0, 1.0)])
def test_the_limited_entropy_is_the_integral(mean: float, log_std: float) -> None:
    policy = init_policy(jax.random.key(0), 3, 1, ())
    still = jax.tree.map(jnp.zeros_like, policy.mean)
    net = replace(still, biases=(jnp.array([mean]),))
    policy = GaussianPolicy(net, jnp.array([log_std]))
    zeros = jnp.zeros(2)
    batch = Batch(
        jnp.zeros((2, 3)), jnp.zeros((2, 1)), zeros, zeros, zeros, zeros, jnp.ones(2)
    )
    density = norm(mean, np.exp(log_std))
    expected, _ = quad(lambda a: -density.pdf(a) * density.logpdf(a), -2, 2)
    assert float(limited_entropy(policy, batch)) == pytest.approx(expected, abs=1e-4)


def test_the_whole_line_has_the_usual_entropy() -> None:
    policy = init_policy(jax.random.key(0), 3, 2, (4,), log_std=-0.5)
    zeros = jnp.zeros(2)
    batch = Batch(
        jnp.ones((2, 3)), jnp.zeros((2, 2)), zeros, zeros, zeros, zeros, jnp.ones(2)
    )
    usual = 2 * (-0.5 + 0.5 * np.log(2 * np.pi * np.e))
    assert float(limited_entropy(policy, batch, 50.0)) == pytest.approx(usual, rel=1e-5)


def test_a_minibatch_that_cannot_be_filled_is_refused() -> None:
    config = preset("slbo", "smoke", "Point2D")
    config = replace(config, value=replace(config.value, minibatch=10_000))
    with pytest.raises(UsageError, match=r"value\.minibatch is 10000"):
        Learner(load(config.env), config)


def test_a_task_without_reward_function_needs_a_learned_one() -> None:
    learned = preset("slbo", "smoke", "Pendulum-v1")
    task = load(learned.env)
    network = Learner(task, learned).init(0).network
    assert network.biases[-1].shape == (1, 4), "three state changes and the reward"
    known = replace(learned, model=replace(learned.model, reward="known"))
    with pytest.raises(UsageError, match=r"model\.reward"):
        Learner(task, known).init(0)
