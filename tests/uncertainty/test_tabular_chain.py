"""Appendix C against its closed forms, and Algorithm 1 on its trajectories."""

from fractions import Fraction

import numpy as np
import pytest

from pombu.uncertainty import q_uncertainty
from pombu.uncertainty.tabular import (
    assumptions,
    chain,
    exact_bound,
    pombu_bound,
    posterior_variance,
    ube_bound,
)
from pombu.uncertainty.tabular.posteriors import mean_values

HORIZONS = (2, 4, 8, 16)
PRINTED = {
    2: (0.42187500, 0.45312500, 5.3125),
    4: (0.50140381, 0.57696533, 21.58203),
    8: (0.50790948, 0.59247730, 85.66536),
    16: (0.50793651, 0.59259259, 341.66667),
}


def closed_forms(n, H):
    n4, n8, n16 = (Fraction(1, base**n) for base in (4, 8, 16))
    D = Fraction(32, 63) - Fraction(16, 9) * n4 - Fraction(4, 9) * n16
    D += Fraction(12, 7) * n8
    U = Fraction(16, 27) - Fraction(4, 9) * n4 - Fraction(8, 9) * n * n4
    U -= Fraction(4, 27) * n16
    B = (H**2 + Fraction(1, 4)) * Fraction(4, 3) * (1 - n4)
    return float(D), float(U), float(B)


@pytest.fixture(scope="module", params=HORIZONS)
def solved(request):
    H = request.param
    posterior, policy = chain(H)
    bounds = (posterior_variance, pombu_bound, ube_bound, exact_bound)
    return H, *(bound(posterior, policy, H) for bound in bounds)


def test_the_printed_numbers(solved):
    H, D, U, B, W = solved
    for got, want, digits in zip((D, U, B), PRINTED[H], (8, 8, 5), strict=True):
        assert round(got[0, H, 1], digits) == want
    np.testing.assert_allclose(W, D, rtol=1e-12, atol=0)


def test_the_closed_forms_at_every_step_and_state(solved):
    H, D, U, B, _ = solved
    for h in range(H):
        for i in range(1, H + 1):
            want = closed_forms(min(i, H - h), H)
            got = D[h, i, 1], U[h, i, 1]
            np.testing.assert_allclose(got, want[:2], rtol=1e-12)
            if i == H and h == 0:
                np.testing.assert_allclose(B[h, i, 1], want[2], rtol=1e-12)


def test_states_where_both_models_agree_are_certain(solved):
    _, D, U, B, W = solved
    for X in (D, U, B, W):
        assert not X[:, :, 0].any()
        assert not X[:, 0].any()
        assert not X[:, -1].any()


def test_enumeration_gives_the_same_variance():
    posterior, policy = chain(8)
    by_counting = posterior_variance(posterior, policy, 8, method="enumeration")
    np.testing.assert_allclose(
        posterior_variance(posterior, policy, 8), by_counting, rtol=1e-12
    )


def test_a_tight_q_max_tightens_ube():
    posterior, policy = chain(4)
    tight = ube_bound(posterior, policy, 4, q_max=2 * (1 - 2**-4))
    D = posterior_variance(posterior, policy, 4)
    assert round(tight[0, 4, 1] / D[0, 4, 1], 4) == 9.9744


def test_one_coin_for_the_whole_mdp_would_break_the_theorem():
    """The reading the docs reject: D = (1 - 2^-n)^2 exceeds U already at n = 2."""
    posterior, policy = chain(2)
    one_coin = (1 - 2**-2) ** 2
    assert pombu_bound(posterior, policy, 2)[0, 2, 1] < one_coin


def test_assumption_3_fails_on_the_chain_itself():
    report = assumptions(chain(3)[0])
    assert report.acyclic
    assert report.independent_states
    assert not report.independent_rewards
    assert report.reward_dependent_states == (1, 2, 3)
    assert "assumption 3" in str(report)
    assert "fails at states 1, 2, 3" in str(report)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_algorithm_1_on_chain_trajectories_approaches_u(gamma):
    H, count = 4, 200_000
    posterior, policy = chain(H)
    values = mean_values(posterior, policy, H, gamma)
    rng = np.random.default_rng(0)
    state, action = np.full(count, H), np.ones(count, int)
    rewards, next_values = [], []
    for h in range(H):
        rewards.append(posterior.R[:, state, action])
        next_values.append(posterior.P[:, state, action] @ values[h + 1])
        member = rng.integers(0, 2, count)
        state = posterior.P[member, state, action].argmax(axis=-1)
        action = rng.integers(0, 2, count)
    variance = (
        np.asarray(
            q_uncertainty(np.stack(rewards, 1), np.stack(next_values, 1), gamma)
        )[0]
        ** 2
    )
    U = pombu_bound(posterior, policy, H, gamma)[0, H, 1]
    standard_error = variance.std() / np.sqrt(count)
    assert abs(variance.mean() - U) < 4 * standard_error
    assert np.sqrt(variance).mean() < np.sqrt(U)
