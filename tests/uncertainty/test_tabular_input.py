"""Bad input to the tabular library is named, with its index."""

import subprocess
import sys

import numpy as np
import pytest

from pombu.errors import UsageError
from pombu.uncertainty.tabular import (
    DirichletPosterior,
    Posterior,
    chain,
    exact_bound,
    pombu_bound,
    posterior_variance,
    ube_bound,
)
from pombu.uncertainty.tabular.posteriors import horizon_and_gamma


def members(K=2, S=3, A=2):
    P = np.zeros((K, S, A, S))
    P[..., -1] = 1.0
    return P, np.zeros((K, S, A)), np.full(K, 1 / K)


def changed(array, index, value):
    copy = np.array(array, dtype=float)
    copy[index] = value
    return copy


P, R, WEIGHTS = members()
ALPHA, MEAN, VAR = np.ones((3, 2, 3)), np.zeros((3, 2)), np.zeros((3, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((changed(P, (1, 0, 1, 2), 0.9), R, WEIGHTS), r"P\[1, 0, 1\] sums to 0.9"),
        ((changed(P, (1, 0, 1, 0), -0.1), R, WEIGHTS), r"P\[1, 0, 1, 0\] is -0.1"),
        ((changed(P, (0, 2, 0, 1), np.nan), R, WEIGHTS), r"P\[0, 2, 0, 1\] is nan"),
        ((P[0], R, WEIGHTS), r"P has shape \(3, 2, 3\).*\[K,S,A,S\]"),
        ((P[..., :2], R, WEIGHTS), r"P has shape \(2, 3, 2, 2\)"),
        ((P, R[:, :2], WEIGHTS), r"R has shape \(2, 2, 2\); P asks for .*\(2, 3, 2\)"),
        ((P, changed(R, (0, 1, 0), np.inf), WEIGHTS), r"R\[0, 1, 0\] is inf"),
        ((P, R, np.ones(2)), r"weights sums to 2"),
        ((P, R, np.array([1.5, -0.5])), r"weights\[1\] is -0.5"),
        ((P, R, np.ones(3) / 3), r"weights has shape \(3,\)"),
    ],
)
def test_posterior_refuses(arguments, message):
    with pytest.raises(UsageError, match=message):
        Posterior(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((changed(ALPHA, (1, 0, 2), -1), MEAN, VAR), r"alpha\[1, 0, 2\] is -1"),
        ((changed(ALPHA, (1, 0), 0), MEAN, VAR), r"alpha\[1, 0\] is all 0"),
        ((ALPHA[..., :2], MEAN, VAR), r"alpha has shape"),
        ((ALPHA, MEAN[:2], VAR), r"reward_mean has shape \(2, 2\)"),
        ((ALPHA, MEAN, changed(VAR, (2, 1), -3)), r"reward_var\[2, 1\] is -3"),
        ((ALPHA, changed(MEAN, (0, 0), np.nan), VAR), r"reward_mean\[0, 0\] is nan"),
    ],
)
def test_dirichlet_posterior_refuses(arguments, message):
    with pytest.raises(UsageError, match=message):
        DirichletPosterior(*arguments)


@pytest.mark.parametrize(
    "function", [posterior_variance, pombu_bound, ube_bound, exact_bound]
)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"gamma": 0.0}, "gamma is 0.0"),
        ({"gamma": 1.01}, "gamma is 1.01"),
        ({"gamma": np.nan}, "gamma is nan"),
        ({"policy": np.full((4, 2), 0.4)}, r"policy\[0\] sums to 0.8"),
        ({"policy": np.full((3, 2), 0.5)}, r"policy has shape \(3, 2\)"),
    ],
)
def test_functions_refuse(function, change, message):
    posterior, policy = chain(2)
    arguments = {"policy": policy, "horizon": 2, "gamma": 1.0} | change
    with pytest.raises(UsageError, match=message):
        function(posterior, **arguments)


def test_more_refusals():
    posterior, policy = chain(2)
    with pytest.raises(UsageError, match="q_max is -1"):
        ube_bound(posterior, policy, 2, q_max=-1.0)
    with pytest.raises(UsageError, match="horizon is 0"):
        chain(0)
    with pytest.raises(UsageError, match=r"horizon is 2.5"):
        horizon_and_gamma(2.5, 1.0)


def cyclic(S, K=2):
    rng = np.random.default_rng(0)
    return Posterior(
        rng.dirichlet(np.ones(S), size=(K, S, 1)), rng.normal(size=(K, S, 1))
    )


def test_small_cyclic_posteriors_are_enumerated_large_ones_refused():
    assert posterior_variance(cyclic(4), np.ones((4, 1)), 3).shape == (3, 4, 1)
    with pytest.raises(UsageError, match=r"state 0 can be visited twice\) and .*MDPs"):
        posterior_variance(cyclic(30), np.ones((30, 1)), 3)
    with pytest.raises(UsageError, match="assumption 1 fails: state 0"):
        posterior_variance(cyclic(4), np.ones((4, 1)), 3, method="recursion")
    loop = DirichletPosterior(np.ones((2, 1, 2)), np.zeros((2, 1)), np.zeros((2, 1)))
    with pytest.raises(UsageError, match="infinitely many MDPs"):
        posterior_variance(loop, np.ones((2, 1)), 3)


def test_a_known_absorbing_state_with_reward_is_a_cycle():
    paid = Posterior(P, changed(R, (slice(None), 2), 1.0), WEIGHTS)
    with pytest.raises(UsageError, match="state 2 can be visited twice"):
        posterior_variance(paid, np.full((3, 2), 0.5), 2, method="recursion")


def test_too_many_covariances_are_refused():
    states = 300
    P = np.zeros((1, states, 1, states))
    P[..., -1] = 1.0
    posterior = Posterior(P, np.zeros((1, states, 1)))
    with pytest.raises(UsageError, match="300 states over 60 steps"):
        posterior_variance(posterior, np.ones((states, 1)), 60)


def test_arrays_are_copied_and_read_only():
    mine = P.copy()
    posterior = Posterior(mine, R, WEIGHTS)
    mine[:] = 7.0
    assert posterior.P.max() == 1.0
    with pytest.raises(ValueError, match="read-only"):
        posterior.P[0] = 0.0


def test_the_tabular_library_does_not_import_jax():
    code = "import sys, pombu.uncertainty.tabular; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
