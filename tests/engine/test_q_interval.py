"""Q-values with dependent errors, in a world whose answers are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_estimates import ACTIONS, GAMMA, HORIZON, STATES, networks, rules, still

from pombu.analysis.plots import draw_reliability
from pombu.errors import UsageError
from pombu.rollout.held_out import Calibrated, interval, not_calibrated
from pombu.rollout.q_value import QEstimate, q_estimate, q_uncertainty


def calibrated(scale=2.0):
    numbers = (np.asarray(x) for x in (0.5, scale, 0.9, 0.3))
    return Calibrated(*numbers, np.asarray(20))


def estimate(dynamics, rho, rollouts=4):
    return q_estimate(
        *networks(),
        dynamics,
        rules(),
        STATES,
        ACTIONS,
        rollouts,
        jax.random.key(2),
        jnp.float32(rho),
    )


def test_without_dependence_it_is_the_uncertainty_of_algorithm_1():
    arguments = (*networks(), still(0.5), rules(), STATES, ACTIONS, 4)
    want = q_uncertainty(*arguments, jax.random.key(2))
    np.testing.assert_allclose(estimate(still(0.5), 0.0).sigma, want, rtol=1e-4)


def test_dependence_makes_it_larger():
    by_rho = [np.asarray(estimate(still(0.5), rho).sigma) for rho in (0.0, 0.5, 1.0)]
    assert np.all(np.diff(by_rho, axis=0) > 0)


def test_a_constant_reward_has_a_known_q_and_no_noise():
    found = estimate(still(), 0.0)
    whole = (1 - GAMMA**HORIZON) / (1 - GAMMA)
    np.testing.assert_allclose(found.q, [whole, 3 * whole], rtol=1e-5)
    np.testing.assert_allclose(found.noise, 0.0, atol=1e-3)


def test_the_ends_of_an_interval_are_known():
    """Half: 1.645 times the root of (2 sigma)^2 and a quarter of noise^2."""
    found = QEstimate(*(jnp.array([x, jnp.nan]) for x in (1.0, 3.0, 4.0)))
    found = found._replace(sigma=jnp.array([3.0, jnp.inf]))
    for of_return, share in ((False, 0.25), (True, 1.25)):
        low, high = interval(found, calibrated(), 4, 80, 0.9, of_return)
        half = 1.6448536 * np.sqrt(36 + share * 16)
        np.testing.assert_allclose([low[0], high[0]], [1 - half, 1 + half], rtol=1e-6)
        assert (low[1], high[1]) == (-np.inf, np.inf)


def test_an_interval_takes_the_scale_of_its_own_length():
    """Known for 1, 5 and 20 steps; 10 lies in between by its logarithm."""
    scales = np.array([1.0, 2.0, 8.0, 0.0])
    fitted = eqx.tree_at(lambda c: c.scales, calibrated(3.0), scales)
    found = QEstimate(jnp.zeros(1), jnp.ones(1), jnp.zeros(1))
    for steps, scale in ((1, 1.0), (5, 2.0), (10, 4.0), (20, 8.0), (200, 8.0)):
        _, high = interval(found, fitted, 4, steps)
        np.testing.assert_allclose(high, 1.6448536 * scale, rtol=1e-6)
    # Where no length is known alone, all of them together have to do.
    _, high = interval(found, calibrated(3.0), 4, 200)
    np.testing.assert_allclose(high, 1.6448536 * 3.0, rtol=1e-6)


def test_whole_episodes_widen_what_is_imagined_for_long():
    """Known for 20 steps and episodes of 200; along real ones the former goes on."""
    fitted = eqx.tree_at(
        lambda c: (c.scales, c.whole, c.horizon),
        calibrated(3.0),
        (np.array([1.0, 2.0, 2.0, 0.0]), np.asarray(8.0), np.asarray(200)),
    )
    assert fitted.scale_for(200) == pytest.approx(2.0)
    between = 2.0 * 4.0 ** (np.log(100 / 20) / np.log(200 / 20))
    for steps, scale in ((20, 2.0), (100, between), (200, 8.0), (1000, 8.0)):
        assert fitted.imagined_scale_for(steps) == pytest.approx(scale)


def test_no_interval_is_without_width():
    agreed = QEstimate(jnp.ones(1), jnp.zeros(1), jnp.ones(1))
    with pytest.raises(UsageError, match=r"pair 0.* two members"):
        interval(agreed, calibrated(), 4, 80)
    with pytest.raises(UsageError, match="evaluation_episodes of 5"):
        interval(agreed, not_calibrated(), 4, 80)
    with pytest.raises(UsageError, match=r"calibration\.use"):
        interval(agreed, None, 4, 80)
    with pytest.raises(UsageError, match="level is 1"):
        interval(agreed, calibrated(), 4, 80, level=1.0)


def test_the_reliability_diagram_shows_the_coverage_curve():
    error = np.random.default_rng(0).normal(size=500)
    figure = draw_reliability(error, np.ones(500), "perfect")
    line = figure.axes[0].lines[1]
    np.testing.assert_allclose(line.get_ydata(), line.get_xdata(), atol=0.08)
