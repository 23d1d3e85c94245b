"""The paper's lemma and theorems on hundreds of random posteriors."""

import numpy as np
import pytest
from hypothesis import given, settings
from posteriors import acyclic_posterior, build, draws, random_policy

from pombu.uncertainty.tabular import (
    DirichletPosterior,
    Posterior,
    assumptions,
    backup,
    exact_bound,
    pombu_bound,
    pombu_local,
    posterior_variance,
    ube_bound,
)

many = settings(max_examples=150, deadline=None, derandomize=True)


def at_most(smaller, larger, slack=1e-9):
    assert np.all(smaller <= larger + slack)


@many
@given(draws)
def test_d_equals_w_and_u_bounds_it(draw):
    problem = build(draw)
    D = posterior_variance(*problem)
    U = pombu_bound(*problem)
    clipped = exact_bound(*problem, clip=True)
    np.testing.assert_allclose(exact_bound(*problem), D, rtol=0, atol=1e-9)
    at_most(D, clipped)
    at_most(clipped, U)


@many
@given(draws)
def test_the_same_for_dirichlet_rows(draw):
    problem = build(draw, "dirichlet", states=7)
    D = posterior_variance(*problem)
    U = pombu_bound(*problem)
    np.testing.assert_allclose(exact_bound(*problem), D, rtol=0, atol=1e-9)
    at_most(D, U)
    at_most(U, ube_bound(*problem))
    assert assumptions(problem[0]).independent_rewards


@many
@given(draws)
def test_u_is_tighter_than_b_under_assumption_3(draw):
    for family in ("known rewards", "independent rewards"):
        problem = build(draw, family)
        assert assumptions(problem[0]).independent_rewards
        at_most(pombu_bound(*problem), ube_bound(*problem))


@many
@given(draws)
def test_enumeration_equals_the_recursion(draw):
    problem = build(draw)
    counted = posterior_variance(*problem, method="enumeration")
    followed = posterior_variance(*problem, method="recursion")
    np.testing.assert_allclose(followed, counted, rtol=0, atol=1e-10)
    exact = exact_bound(*problem, method="enumeration")
    np.testing.assert_allclose(exact, counted, rtol=0, atol=1e-9)


@many
@given(draws)
def test_lemma_1(draw):
    problem = build(draw)
    posterior, policy, _, gamma = problem
    D = posterior_variance(*problem)
    local = pombu_local(*problem)
    at_most(D, backup(local, posterior, policy, gamma, following=D))


@settings(many, max_examples=40)
@given(draws)
def test_theorem_2(draw):
    """Sweeps with a converging local term reach U from anywhere."""
    problem = build(draw)
    posterior, policy, horizon, gamma = problem
    rng = np.random.default_rng(horizon)
    local, U = pombu_local(*problem), pombu_bound(*problem)
    estimate = 100 * rng.normal(size=U.shape)
    for i in range(45):
        wrong = local + 2.0**-i * rng.normal(size=U.shape)
        estimate = backup(wrong, posterior, policy, gamma, following=estimate)
    np.testing.assert_allclose(estimate, U, rtol=0, atol=1e-9)


def test_dirichlet_moments_equal_those_of_a_finite_posterior():
    """D and U see two moments only: match them by a mixture and compare.

    With probability pbar_i the row is pbar + sqrt(c)(e_i - pbar), c = 1/(alpha0 + 1);
    its mean and covariance are the Dirichlet's. Integer alphas of one total let every
    state use the same member weights.
    """
    rng = np.random.default_rng(3)
    S, A, total = 5, 2, 3
    alpha = np.zeros((S, A, S))
    for s in range(S - 1):
        for a in range(A):
            later = rng.integers(s + 1, S, size=total)
            np.add.at(alpha[s, a], later, 1.0)
    alpha[-1, :, -1] = total
    mean, var = rng.normal(size=(S, A)), rng.gamma(1.0, size=(S, A))
    mean[-1] = var[-1] = 0.0
    picks = np.stack(np.meshgrid(*[np.arange(total)] * A, *[[-1, 1]] * A)).reshape(
        2 * A, -1
    )
    P = np.zeros((picks.shape[1], S, A, S))
    R = np.zeros((picks.shape[1], S, A))
    mean_row = alpha / total
    for k, pick in enumerate(picks.T):
        for s in range(S):
            for a in range(A):
                corner = np.repeat(np.arange(S), alpha[s, a].astype(int))[pick[a]]
                P[k, s, a] = mean_row[s, a] + 0.5 * (np.eye(S)[corner] - mean_row[s, a])
                R[k, s, a] = mean[s, a] + pick[A + a] * np.sqrt(var[s, a])
    finite, dirichlet = Posterior(P, R), DirichletPosterior(alpha, mean, var)
    policy = random_policy(rng, S, A)
    for quantity in (posterior_variance, pombu_bound, exact_bound):
        np.testing.assert_allclose(
            quantity(finite, policy, 6, 0.9),
            quantity(dirichlet, policy, 6, 0.9),
            atol=1e-15,
        )
    np.testing.assert_allclose(
        ube_bound(finite, policy, 6, 0.9, q_max=2.0),
        ube_bound(dirichlet, policy, 6, 0.9, q_max=2.0),
        atol=1e-15,
    )


def test_dirichlet_local_term_of_ube_has_its_closed_form():
    alpha = np.zeros((4, 1, 4))
    alpha[0, 0, 1:] = [1.0, 2.0, 3.0]
    alpha[1:, 0, 3] = 1.0
    zeros = np.zeros((4, 1))
    posterior = DirichletPosterior(alpha, zeros, zeros)
    B = ube_bound(posterior, np.ones((4, 1)), 1, q_max=5.0)
    np.testing.assert_allclose(B[0, 0, 0], 25.0 * (3 - 1) / (6.0 + 1.0))


def test_a_cycle_makes_u_an_underestimate():
    """Self-loop with known transitions and R in {0, 1}: D = H^2/4 but U = H/4."""
    P = np.ones((2, 1, 1, 1))
    R = np.array([0.0, 1.0]).reshape(2, 1, 1)
    posterior, policy, H = Posterior(P, R), np.ones((1, 1)), 6
    assert assumptions(posterior).cyclic_states == (0,)
    np.testing.assert_allclose(
        posterior_variance(posterior, policy, H)[0], H**2 / 4, rtol=1e-12
    )
    np.testing.assert_allclose(pombu_bound(posterior, policy, H)[0], H / 4, rtol=1e-12)


def test_a_state_met_at_two_times_needs_both_time_indices():
    """s_0 reaches s_2 directly or through s_1: two correlated values of s_2."""
    P = np.zeros((2, 4, 1, 4))
    R = np.zeros((2, 4, 1))
    P[:, 0, 0, 1:3] = 0.5
    P[:, 1, 0, 2] = 1.0
    P[:, 2:, 0, 3] = 1.0
    R[1, 2] = 1.0
    posterior, policy = Posterior(P, R), np.ones((4, 1))
    D = posterior_variance(posterior, policy, 3)
    np.testing.assert_allclose(D[0, 0, 0], 0.25, rtol=1e-12)
    assert assumptions(posterior).acyclic


def test_one_member_is_certain():
    rng = np.random.default_rng(0)
    posterior = acyclic_posterior(rng, 4, 2, 1)
    policy = random_policy(rng, 4, 2)
    for quantity in (posterior_variance, pombu_bound, exact_bound, ube_bound):
        np.testing.assert_allclose(quantity(posterior, policy, 3), 0.0, atol=1e-15)


@pytest.mark.parametrize("x64", [False, True])
def test_float64_whatever_jax_is_set_to(x64):
    import jax

    with jax.enable_x64(x64):
        before = jax.numpy.zeros(1).dtype
        rng = np.random.default_rng(0)
        posterior = acyclic_posterior(rng, 4, 2, 2)
        U = pombu_bound(posterior, random_policy(rng, 4, 2).astype(np.float32), 3)
        assert U.dtype == np.float64
        assert jax.numpy.zeros(1).dtype == before
