"""MB-MPO: adaptation, and the gradient that goes through it."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pombu.algorithms.mbmpo.config import MBMPOConfig
from pombu.algorithms.mbmpo.learner import (
    Learner,
    adapt,
    adapt_to_all,
    judge,
    meta_divergence,
    meta_objective,
    meta_step,
    side_by_side,
)
from pombu.algorithms.registry import preset
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import ModelConfig, ReturnConfig
from pombu.envs import load
from pombu.errors import UsageError
from pombu.nn import GaussianPolicy, fit_linear, init_policy, predict_linear
from pombu.optim.config import TrustRegionConfig
from pombu.optim.ppo import Batch
from pombu.rollout.imagine import Imagined
from pombu.training.algorithm import StageTimer

TASKS, SAMPLES, RATE = 3, 20, 0.05


def batches(policies: GaussianPolicy, seed: int) -> Batch:
    """Samples of each policy with advantages that depend on state and action."""

    def one(policy: GaussianPolicy, key: jax.Array) -> Batch:
        first, second, third = jax.random.split(key, 3)
        observations = jax.random.normal(first, (SAMPLES, 2))
        actions, log_probs = policy.sample(observations, second)
        advantages = actions[:, 0] * observations[:, 0] - 0.5 * actions[:, 0] ** 2
        advantages = advantages + 0.1 * jax.random.normal(third, (SAMPLES,))
        zeros = jnp.zeros(SAMPLES)
        weight = jnp.ones(SAMPLES).at[-2:].set(0.0)
        return Batch(observations, actions, log_probs, zeros, advantages, zeros, weight)

    return jax.vmap(one)(policies, jax.random.split(jax.random.key(seed), TASKS))


def everywhere(policy: GaussianPolicy) -> GaussianPolicy:
    return jax.tree.map(lambda x: jnp.stack([x] * TASKS), policy)


def test_the_meta_gradient_is_that_of_finite_differences() -> None:
    with jax.enable_x64(True):
        policy = init_policy(jax.random.key(0), 2, 1, (4,))
        policy = jax.tree.map(lambda x: x.astype(jnp.float64), policy)
        policy = jax.tree.map(lambda x: x + 0.1, policy)
        before = batches(everywhere(policy), 1)
        adapted = adapt_to_all(policy, before, RATE)
        after = batches(adapted, 2)
        flat, restore = ravel_pytree(policy)

        @jax.jit
        def value(x: jax.Array) -> jax.Array:
            return meta_objective(restore(x), before, after, RATE)

        @jax.jit
        def divergence(x: jax.Array) -> jax.Array:
            return meta_divergence(restore(x), adapted, before, after, RATE)

        gradient = jax.jit(jax.grad(value))(flat)
        step = 1e-5 * np.eye(len(flat))
        expected = [(value(flat + e) - value(flat - e)) / 2e-5 for e in step]
        assert gradient.dtype == jnp.float64
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-9)

        first_order = jax.grad(lambda p: meta_objective(p, before, after, 0.0))(policy)
        assert not np.allclose(ravel_pytree(first_order)[0], expected, rtol=1e-3), (
            "what goes through the inner step must matter here"
        )
        slope = jax.jit(jax.grad(divergence))
        moved = flat + 0.1
        expected = [
            (divergence(moved + e) - divergence(moved - e)) / 2e-5 for e in step
        ]
        np.testing.assert_allclose(slope(moved), expected, rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(slope(flat), np.zeros(len(flat)), atol=1e-12)
        assert float(divergence(flat)) == pytest.approx(0.0, abs=1e-12)
        assert float(value(flat)) == pytest.approx(0.0, abs=1e-12)


def test_adaptation_is_one_policy_gradient_step() -> None:
    policy = init_policy(jax.random.key(0), 2, 1, ())
    batch = jax.tree.map(lambda x: x[0], batches(everywhere(policy), 1))
    adapted = adapt(policy, batch, RATE)
    noise = (batch.actions - policy.mean(batch.observations))[:, 0]
    count = float(batch.weight.sum())
    pull = np.asarray(batch.weight * batch.advantages * noise)
    slope = np.asarray(batch.observations).T @ pull / count
    moved = np.asarray(adapted.mean.weights[0] - policy.mean.weights[0])[:, 0]
    np.testing.assert_allclose(moved, RATE * slope, rtol=1e-4, atol=1e-7)
    spread = np.asarray(batch.weight * batch.advantages * (noise**2 - 1)).sum()
    widened = float((adapted.log_std - policy.log_std)[0])
    assert widened == pytest.approx(RATE * spread / count, rel=1e-4)


def test_a_meta_step_improves_within_the_region() -> None:
    policy = init_policy(jax.random.key(0), 2, 1, ())
    before = batches(everywhere(policy), 1)
    adapted = adapt_to_all(policy, before, RATE)
    after = batches(adapted, 2)
    region = TrustRegionConfig(conjugate_gradients=4)
    improved, report = meta_step(policy, adapted, before, after, RATE, region)
    assert 0 < float(report.kl) <= 0.01
    gain = float(meta_objective(improved, before, after, RATE))
    assert gain == pytest.approx(float(report.gain), rel=1e-3)
    assert gain > 0


def hand_made(seed: int) -> Imagined:
    rng = np.random.default_rng(seed)
    shape = (5, 4)
    zeros, ones = jnp.zeros(shape), jnp.ones(shape)
    return Imagined(
        observations=jnp.asarray(rng.normal(size=(*shape, 2)), jnp.float32),
        actions=jnp.zeros((*shape, 1)),
        log_probs=zeros,
        rewards=jnp.asarray(rng.normal(size=shape), jnp.float32),
        values=zeros,
        local=zeros,
        continues=ones,
        weight=ones,
        raw_rewards=ones * seed,
        masked=jnp.ones(()),
        beyond=jnp.zeros((1, 4)),
    )


def test_the_baseline_is_fitted_to_the_tasks_own_returns() -> None:
    imagined = hand_made(0)
    config = ReturnConfig(gamma=0.9, advantage_clip=None, standardise_advantages=False)
    judged = judge(imagined, False, config)
    rewards = np.asarray(imagined.rewards, np.float64)
    returns = np.zeros_like(rewards)
    later = np.zeros(4)
    for h in range(4, -1, -1):
        later = rewards[h] + 0.9 * later
        returns[h] = later
    goals = jnp.asarray(returns, jnp.float32)
    fitted = fit_linear(imagined.observations, goals, imagined.weight)
    values = predict_linear(fitted, imagined.observations)
    expected = returns - np.asarray(values)
    np.testing.assert_allclose(judged.goals.advantages, expected, atol=1e-3)
    loss = float(judged.baseline_loss)
    assert loss == pytest.approx(np.mean(expected**2), rel=1e-2)


def test_tasks_are_reported_side_by_side() -> None:
    stack = jax.tree.map(lambda *x: jnp.stack(x), hand_made(1), hand_made(2))
    joined = side_by_side(stack)
    assert joined.observations.shape == (5, 8, 2)
    np.testing.assert_array_equal(joined.raw_rewards[0], [1, 1, 1, 1, 2, 2, 2, 2])
    assert float(joined.masked) == 2.0


def test_each_adapted_policy_collects() -> None:
    config = replace(preset("mbmpo", "smoke", "Point2D", 10), updates=0)
    learner = Learner(load(config.env), config)
    state, _ = learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    assert state.adapted.log_std.shape == (2, 2)
    one, two = np.asarray(state.adapted.log_std)
    assert not np.array_equal(one, two)
    assert np.abs(one - np.asarray(state.policy.log_std)).max() < 0.1
    # Two policies that always go up and always go down: their actions tell whose an
    # episode is.
    still = jax.tree.map(jnp.zeros_like, state.adapted)
    signs = jnp.array([[0.5, 0.5], [-0.5, -0.5]])
    still = eqx.tree_at(lambda p: p.mean.biases[-1], still, signs)
    quiet = eqx.tree_at(lambda p: p.log_std, still, jnp.full((2, 2), -20.0))
    store = EpisodeStore()
    learner.iterate(eqx.tree_at(lambda s: s.adapted, state, quiet), store, StageTimer())
    assert len(store) == 2
    for episode, sign in zip(store, (1, -1), strict=True):
        np.testing.assert_array_equal(np.sign(episode.actions), sign)


def test_a_single_world_is_refused() -> None:
    with pytest.raises(UsageError, match="simulator"):
        MBMPOConfig(model=ModelConfig(kind="simulator"))
    with pytest.raises(UsageError, match="tasks_per_member"):
        MBMPOConfig(tasks_per_member=0)
