"""TRPO against closed forms, and that it never leaves its trust region."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from pombu.errors import UsageError
from pombu.nn import GaussianPolicy, init_policy, kl
from pombu.optim.config import TrustRegionConfig
from pombu.optim.ppo import Batch
from pombu.optim.trpo import conjugate_gradient, improve_policy, trust_region_step

EXACT = TrustRegionConfig(damping=0.0, conjugate_gradients=20)


def positive_definite(dim: int, seed: int) -> jax.Array:
    root = jax.random.normal(jax.random.key(seed), (dim, dim))
    return root @ root.T / dim + 0.5 * jnp.eye(dim)


def batch_of(policy: GaussianPolicy, seed: int, size: int = 64) -> Batch:
    keys = jax.random.split(jax.random.key(seed), 3)
    observations = jax.random.normal(keys[0], (size, 3))
    actions, log_probs = policy.sample(observations, keys[1])
    advantages = jax.random.normal(keys[2], (size,))
    zeros = jnp.zeros(size)
    return Batch(
        observations, actions, log_probs, zeros, advantages, zeros, jnp.ones(size)
    )


def test_conjugate_gradients_solve_in_as_many_steps_as_dimensions() -> None:
    matrix, target = positive_definite(6, 0), jnp.arange(1.0, 7.0)
    found = conjugate_gradient(lambda v: matrix @ v, target, 6)
    np.testing.assert_allclose(found, jnp.linalg.solve(matrix, target), rtol=1e-4)


def test_conjugate_gradients_stay_at_the_solution() -> None:
    found = conjugate_gradient(lambda v: 2.0 * v, jnp.array([1.0, -3.0]), 30)
    np.testing.assert_array_equal(found, [0.5, -1.5])


def test_a_linear_objective_in_a_quadratic_region_has_a_closed_form() -> None:
    fisher, slope = positive_definite(5, 1), jnp.array([1.0, -2.0, 0.5, 3.0, 0.0])
    start = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([-1.0, 0.0, 4.0])}
    origin, _ = ravel_pytree(start)

    def objective(x: dict[str, jax.Array]) -> jax.Array:
        return slope @ ravel_pytree(x)[0]

    def divergence(x: dict[str, jax.Array]) -> jax.Array:
        gap = ravel_pytree(x)[0] - origin
        return 0.5 * gap @ fisher @ gap

    # Round-off may place the full step a hair outside; the region must let it in.
    config = replace(EXACT, kl_tolerance=1.001)
    stepped, report = trust_region_step(start, objective, divergence, config)
    natural = jnp.linalg.solve(fisher, slope)
    length = jnp.sqrt(2 * config.max_kl / (slope @ natural))
    np.testing.assert_allclose(
        ravel_pytree(stepped)[0], origin + length * natural, rtol=1e-5
    )
    assert float(report.fraction) == 1.0
    np.testing.assert_allclose(report.kl, config.max_kl, rtol=1e-4)
    np.testing.assert_allclose(report.gain, length * slope @ natural, rtol=1e-4)


def test_the_fisher_matrix_of_a_gaussian_policy_is_known() -> None:
    """In mean and log-std it is diag(1/sigma^2, 2); the chain rule does the rest."""
    policy = init_policy(jax.random.key(0), 3, 2, (4,))
    policy = GaussianPolicy(policy.mean, jnp.array([0.3, -0.5]))
    flat, restore = ravel_pytree(policy)
    observation = jnp.array([[0.5, -1.0, 2.0]])
    divergence = jax.jit(jax.hessian(lambda x: kl(policy, restore(x), observation)[0]))
    hessian = divergence(flat)
    jacobian = jax.jacobian(
        lambda x: jnp.concatenate([restore(x).mean(observation)[0], restore(x).log_std])
    )(flat)
    inner = jnp.concatenate([jnp.exp(-2 * policy.log_std), jnp.full(2, 2.0)])
    expected = jacobian.T @ (inner[:, None] * jacobian)
    np.testing.assert_allclose(hessian, expected, rtol=1e-4, atol=1e-6)


def test_one_constant_action_has_the_known_natural_gradient() -> None:
    """With F = diag(1/sigma^2, 2) the natural gradient is (sigma^2 g_mu, g_s / 2)."""
    policy = init_policy(jax.random.key(3), 3, 1, ())
    policy = GaussianPolicy(
        jax.tree.map(jnp.zeros_like, policy.mean), jnp.array([0.4], jnp.float32)
    )
    size, sigma = 256, float(jnp.exp(0.4))
    observations = jnp.zeros((size, 3))
    actions, log_probs = policy.sample(observations, jax.random.key(4))
    advantages = actions[:, 0] - 0.5 * actions[:, 0] ** 2
    zeros = jnp.zeros(size)
    batch = Batch(
        observations, actions, log_probs, zeros, advantages, zeros, jnp.ones(size)
    )
    config = replace(EXACT, max_kl=1e-5, kl_tolerance=1.1)
    improved, report = improve_policy(policy, batch, config)
    noise = actions[:, 0] / sigma
    slope_mean = jnp.mean(advantages * noise / sigma)
    slope_std = jnp.mean(advantages * (noise**2 - 1))
    natural = jnp.array([sigma**2 * slope_mean, slope_std / 2])
    scale = jnp.sqrt(2 * config.max_kl / (jnp.array([slope_mean, slope_std]) @ natural))
    assert float(report.fraction) == 1.0
    step = [improved.mean.biases[-1][0], improved.log_std[0] - policy.log_std[0]]
    np.testing.assert_allclose(step, scale * natural, rtol=1e-3)


# Each region is compiled anew, hence few of them: one tame, one that invites too much.
CAREFUL = TrustRegionConfig()
RECKLESS = TrustRegionConfig(
    max_kl=0.5, damping=0.0, kl_tolerance=1.5, conjugate_gradients=3, accept_ratio=0.0
)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    config=st.sampled_from([CAREFUL, RECKLESS]),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
)
def test_no_step_is_accepted_outside_the_region_or_downhill(
    seed: int, config: TrustRegionConfig, scale: float
) -> None:
    policy = init_policy(jax.random.key(seed), 3, 2, (8,))
    batch = batch_of(policy, seed + 1)
    batch = batch._replace(advantages=scale * batch.advantages)
    improved, report = improve_policy(policy, batch, config)
    distance = float(jnp.mean(kl(policy, improved, batch.observations)))
    assert distance <= config.max_kl * config.kl_tolerance * (1 + 1e-4)
    ratio = jnp.exp(
        improved.log_prob(batch.observations, batch.actions) - batch.log_probs
    )
    gain = float(jnp.mean((ratio - 1) * batch.advantages))
    assert gain >= -1e-6 * scale
    assert (float(report.fraction) > 0) == (float(report.kl) > 0)


def test_without_an_acceptable_step_the_policy_stays_bit_for_bit() -> None:
    policy = init_policy(jax.random.key(0), 3, 2, (8,))
    batch = batch_of(policy, 1)
    # No step that is tried stays within a ten-millionth of the region.
    config = TrustRegionConfig(kl_tolerance=1e-7)
    stayed, report = improve_policy(policy, batch, config)
    for before, after in zip(
        jax.tree.leaves(policy), jax.tree.leaves(stayed), strict=True
    ):
        np.testing.assert_array_equal(before, after)
    assert [float(x) for x in report] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("poison", [0.0, np.nan])
def test_no_gradient_or_no_number_means_no_step(poison: float) -> None:
    policy = init_policy(jax.random.key(0), 3, 2, (8,))
    batch = batch_of(policy, 1)
    batch = batch._replace(advantages=jnp.full(64, poison))
    stayed, report = improve_policy(policy, batch, TrustRegionConfig())
    np.testing.assert_array_equal(stayed.log_std, policy.log_std)
    assert float(report.fraction) == 0.0


def test_masked_samples_have_no_say() -> None:
    policy = init_policy(jax.random.key(0), 3, 2, (8,))
    whole = batch_of(policy, 1)
    half = jax.tree.map(lambda x: x[:32], whole)
    weight = jnp.concatenate([jnp.ones(32), jnp.zeros(32)])
    spoilt = whole._replace(weight=weight)
    first, _ = improve_policy(policy, half, TrustRegionConfig())
    second, _ = improve_policy(policy, spoilt, TrustRegionConfig())
    np.testing.assert_allclose(first.log_std, second.log_std, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_kl", 0.0), ("kl_tolerance", -1.0), ("backtrack", 1.0), ("backtracks", 0)],
)
def test_impossible_regions_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        TrustRegionConfig(**{field: value})
