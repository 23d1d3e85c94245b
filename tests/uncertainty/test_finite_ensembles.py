"""The factors of a finite ensemble against simulation."""

import math

import numpy as np
import pytest

from pombu.errors import UsageError
from pombu.uncertainty import expected_z_squared, q_uncertainty, variance_factor


@pytest.mark.parametrize(
    ("members", "steps", "ddof", "known"),
    [
        (5, 1, 1, 2.4),
        (7, 1, 1, 12 / 7),
        (5, 1, 0, 3.0),
        (7, 1, 0, 2.0),
        (8, 1, 0, 1.8),
        (5, math.inf, 0, 1.5),
        (7, math.inf, 0, 4 / 3),
        (8, math.inf, 0, 9 / 7),
        (3, 1, 0, math.inf),
        (2, 1, 1, math.inf),
    ],
)
def test_known_values(members, steps, ddof, known):
    assert expected_z_squared(members, steps, ddof) == pytest.approx(known)


def simulate(K, steps, repeats=40_000):
    """Rewards of K members and of the truth, all from one Gaussian posterior."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(K + 1, steps, repeats)).astype(np.float32)
    return drawn[:K], drawn[K]


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(
    ("correlation", "steps", "counted"), [(0, 1, 1), (0, 10, 10), ("full", 10, 1)]
)
def test_z_squared_by_simulation(correlation, steps, counted, ddof):
    """Errors are fresh at every step: U sums n variances, F has one whole sum."""
    K = 9
    members, truth = simulate(K, steps)
    sigma = q_uncertainty(
        members, np.zeros_like(members), 1.0, ddof, correlation=correlation
    )
    z = (truth.sum(0) - members.mean(0).sum(0)) / np.asarray(sigma)[0]
    want = expected_z_squared(K, counted, ddof)
    assert np.mean(z**2) == pytest.approx(want, rel=0.04)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("K", [2, 5, 12])
def test_variance_factors_by_simulation(K, ddof):
    members, truth = simulate(K, 1)
    variance = members[:, 0].var(axis=0, ddof=ddof).mean()
    mean = members[:, 0].mean(0)
    errors = {
        "posterior": truth[0],  # the posterior has mean 0 and variance 1
        "prediction": truth[0] - mean,
        "mean": mean,  # members scatter around a truth of 0
    }
    for purpose, error in errors.items():
        factor = variance_factor(K, purpose, ddof)
        assert factor * variance == pytest.approx(np.mean(error**2), rel=0.04)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: variance_factor(1), "members is 1; a spread needs 2"),
        (lambda: variance_factor(5, "truth"), "purpose is 'truth'.*prediction"),
        (lambda: variance_factor(5, ddof=2), "ddof is 2"),
        (lambda: expected_z_squared(0), "members is 0"),
        (lambda: expected_z_squared(5, 0), "steps is 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(UsageError, match=message):
        call()
