"""The paper's objectives by hand-computed values and by what they must do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.nn import init_policy
from pombu.optim.objectives import (
    clipped_surrogate,
    conservative_surrogate,
    exploration_advantage,
    surrogate,
    uncertainty_penalty,
    value_loss,
    weighted_mean,
)
from pombu.optim.ppo import Batch

RATIO = jnp.array([0.5, 0.9, 1.0, 1.1, 1.5, 1.5])
ADVANTAGE = jnp.array([2.0, -1.0, 3.0, 4.0, 2.0, -2.0])
UNCERTAINTY = jnp.array([1.0, 2.0, 5.0, 0.0, 3.0, 1.0])
ALL = jnp.ones(6)
SOME = jnp.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])


def test_hand_computed_values() -> None:
    """(r - 1) A is (-1, .1, 0, .4, 1, -1); epsilon = .2 makes the fifth .4."""
    assert float(surrogate(RATIO, ADVANTAGE, ALL)) == pytest.approx(-0.5 / 6)
    assert float(surrogate(RATIO, ADVANTAGE, SOME)) == pytest.approx(-1.0 / 4)
    clipped = clipped_surrogate(RATIO, ADVANTAGE, ALL, 0.2)
    assert float(clipped) == pytest.approx(-1.1 / 6)
    penalty = uncertainty_penalty(RATIO, UNCERTAINTY, ALL)
    assert float(penalty) == pytest.approx((0.5 + 0.2 + 1.5 + 0.5) / 6)
    both = conservative_surrogate(RATIO, ADVANTAGE, UNCERTAINTY, ALL, 0.2, 0.5)
    assert float(both) == pytest.approx(-1.1 / 6 - 0.5 * 2.7 / 6)
    loss = value_loss(ADVANTAGE, UNCERTAINTY, SOME)
    assert float(loss) == pytest.approx((1.0 + 4.0 + 1.0 + 9.0) / 4)


def test_a_falling_ratio_is_clipped_for_negative_advantages_only() -> None:
    ratio, advantage = jnp.array([0.1, 0.1]), jnp.array([1.0, -1.0])
    clipped = clipped_surrogate(ratio, advantage, jnp.ones(2), 0.2)
    assert float(clipped) == pytest.approx((-0.9 + 0.2) / 2)


def test_samples_without_weight_do_not_count() -> None:
    assert float(weighted_mean(jnp.array([1.0, 7.0]), jnp.array([1.0, 0.0]))) == 1.0
    assert float(weighted_mean(jnp.array([1.0, 7.0]), jnp.zeros(2))) == 0.0


def test_exploration_seeks_uncertainty() -> None:
    bold = exploration_advantage(ADVANTAGE, UNCERTAINTY, 10.0)
    assert bold.tolist() == [12.0, 19.0, 53.0, 4.0, 32.0, 8.0]


def make_batch(number: int = 64) -> tuple[Any, Batch]:
    """A policy and samples it drew, whose advantage is the first action."""
    draw = np.random.default_rng(0)
    policy = init_policy(jax.random.key(0), 3, 2, (8,))
    observations = jnp.asarray(draw.normal(size=(number, 3)), jnp.float32)
    actions, log_probs = policy.sample(observations, jax.random.key(1))
    return policy, Batch(
        observations,
        actions,
        log_probs,
        jnp.zeros(number),
        actions[:, 0] + observations[:, 0],
        jnp.asarray(draw.random(number), jnp.float32),
        jnp.ones(number),
    )


def ratio_to(policy: Any, batch: Batch, old: Any) -> Any:
    before = old.log_prob(batch.observations, batch.actions)
    return jnp.exp(policy.log_prob(batch.observations, batch.actions) - before)


def test_at_theta_old_the_penalty_and_its_gradient_are_zero() -> None:
    old, batch = make_batch()

    def penalty(policy: Any) -> Any:
        ratio = ratio_to(policy, batch, old)
        return uncertainty_penalty(ratio, batch.uncertainty, batch.weight)

    value, gradient = jax.value_and_grad(penalty)(old)
    assert float(value) == 0.0
    assert all(bool(jnp.all(leaf == 0.0)) for leaf in jax.tree.leaves(gradient))


def test_without_alpha_the_gradient_is_that_of_ppo() -> None:
    """PPO: E[min(r A, clip(r, 1 - eps, 1 + eps) A)], away from theta_old too."""
    old, batch = make_batch()
    moved = jax.tree.map(lambda x: x + 0.1, old)

    def ours(policy: Any) -> Any:
        return conservative_surrogate(
            ratio_to(policy, batch, old),
            batch.advantages,
            batch.uncertainty,
            batch.weight,
            0.2,
            0.0,
        )

    def ppo(policy: Any) -> Any:
        ratio = ratio_to(policy, batch, old)
        limited = jnp.clip(ratio, 0.8, 1.2)
        return jnp.mean(
            jnp.minimum(ratio * batch.advantages, limited * batch.advantages)
        )

    for policy in (old, moved):
        first, second = jax.grad(ours)(policy), jax.grad(ppo)(policy)
        for one, two in zip(
            jax.tree.leaves(first), jax.tree.leaves(second), strict=True
        ):
            np.testing.assert_allclose(one, two, atol=1e-6)
