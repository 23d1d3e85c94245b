"""n-step calibration in worlds whose rho and scale are known."""

import numpy as np
import pytest

from pombu.errors import UsageError
from pombu.uncertainty import expected_z_squared, q_uncertainty
from pombu.uncertainty.n_step import (
    STEPS,
    RealSteps,
    fit,
    mean_z_squared,
    scale_beside_noise,
    scale_for,
    windows,
)

GAMMA = 0.97


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def correlated(rng, rho, *shape):
    """Unit variance along the last axis, correlation rho^n n steps apart."""
    drawn = rng.normal(size=shape)
    for t in range(1, shape[-1]):
        drawn[..., t] = rho * drawn[..., t - 1] + np.sqrt(1 - rho**2) * drawn[..., t]
    return drawn


def world(rng, rho, scale, episodes=120, steps=160, members=40):
    """Members and truth from one posterior, whose errors are `scale` times as large.

    Many members, so that their finite number does not matter.
    """
    size = rng.gamma(4.0, 0.25, size=(episodes, steps))
    members_q = size * correlated(rng, rho, members, episodes, steps)
    real_q = scale * size * correlated(rng, rho, episodes, steps)
    lengths = np.full(episodes, steps)
    return RealSteps(members_q, real_q, lengths, np.zeros(episodes, bool))


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_rho_and_scale_are_found(rng, rho, scale):
    found = fit(world(rng, rho, scale), GAMMA)
    assert found.rho == pytest.approx(rho, abs=0.11 if rho < 0.9 else 0.04)
    assert found.scale == pytest.approx(scale, rel=0.12)
    assert found.coverage == pytest.approx(0.9, abs=0.03)
    assert found.episodes == 120


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_few_members_do_not_hide_the_dependence(rho):
    """Five members: the mean of z^2 would make 0.16 of 0.5, and 0.81 of 0.9."""
    found = [
        fit(world(np.random.default_rng(s), rho, 2.0, 40, members=5), GAMMA).rho
        for s in range(4)
    ]
    assert np.mean(found) == pytest.approx(rho, abs=0.13 if rho < 0.9 else 0.04)


def test_every_length_has_the_scale_of_its_own(rng):
    """An error that all members share grows with n, and no rho of the members knows."""
    members = rng.normal(size=(40, 60, 160))
    shared = 0.3 * rng.normal(size=(60, 1))
    real_q = rng.normal(size=(60, 160)) + shared
    real = RealSteps(members, real_q, np.full(60, 160), np.zeros(60, bool))
    found = fit(real, GAMMA)
    squares = mean_z_squared(real, GAMMA, found.rho)
    for n in STEPS:
        assert found.scales[n] ** 2 == pytest.approx(squares[n])
    assert found.scale**2 == pytest.approx(np.mean(list(squares.values())))
    assert found.coverage == pytest.approx(0.9, abs=0.03)
    assert found.scales[80] > 1.2 * found.scales[1]


def test_lengths_that_few_episodes_reach_have_no_scale(rng):
    real = world(rng, 0.0, 1.0, episodes=12, steps=100)
    lengths = np.full(12, 30)
    lengths[:4] = 100
    found = fit(real._replace(lengths=lengths), GAMMA)
    assert set(found.scales) == {1, 5, 20}


@pytest.mark.parametrize("noise", [0.0, 1.0, 4.0])
def test_the_scale_beside_noise_is_found(rng, noise):
    sigma = rng.uniform(0.5, 2.0, 20_000)
    error = 3.0 * sigma * rng.normal(size=20_000)
    error += np.sqrt(noise) * rng.normal(size=20_000)
    assert scale_beside_noise(error, sigma, noise) == pytest.approx(3.0, rel=0.03)


def test_noise_may_explain_every_error(rng):
    error = rng.normal(size=50)
    assert scale_beside_noise(error, np.ones(50), 9.0) == 0.0


def test_scales_between_known_lengths():
    known = {1: 1.0, 4: 4.0}
    for n, scale in ((1, 1.0), (2, 2.0), (4, 4.0), (100, 4.0)):
        assert scale_for(n, known) == pytest.approx(scale)


def test_independence_shows_as_mean_z_squared_that_rises_with_n(rng):
    real = world(rng, 0.9, 1.0)
    by_u = mean_z_squared(real, GAMMA, 0)
    assert list(by_u) == list(STEPS)
    assert by_u[1] == pytest.approx(expected_z_squared(40), abs=0.06)
    assert by_u[80] > 5
    for flat in (0.9, "full"):
        level = list(mean_z_squared(real, GAMMA, flat).values())
        assert max(level) / min(level) < 1.4


def test_errors_that_sigma_foresees_rank_high(rng):
    size = rng.gamma(1.0, size=(40, 1)) * np.ones(100)
    q = size * correlated(rng, 0.5, 20, 40, 100)
    error = size * correlated(rng, 0.5, 40, 100)
    real = RealSteps(q, error, np.full(40, 100), np.zeros(40, bool))
    assert fit(real, GAMMA).spearman > 0.4


# A linear-Gaussian world: the n-step return itself, not only its first order ----------

A, W = 0.9, 1.5
VALUE = A * W / (1 - GAMMA * A)


def linear_world(rng, offsets, truth, episodes=6, steps=30):
    """s' = A s + b, r = W s'; members know A and differ in b; V is the mean model's.

    V(s) = VALUE s + constant is exact for the members' mean offset.
    """
    mean = offsets.mean()
    constant = (W + GAMMA * VALUE) * mean / (1 - GAMMA)
    states = np.zeros((episodes, steps + 1))
    states[:, 0] = rng.normal(size=episodes)
    for t in range(steps):
        states[:, t + 1] = A * states[:, t] + truth
    following = A * states[:, :-1] + offsets[:, None, None]

    def q(after):
        return W * after + GAMMA * (VALUE * after + constant)

    real = RealSteps(
        q(following),
        q(states[:, 1:]),
        np.full(episodes, steps),
        np.zeros(episodes, bool),
    )
    return real, states, constant


def test_windows_are_n_step_returns_of_a_linear_world(rng):
    """Error: real n-step return with V at its end, less V of the mean model before.

    F: the spread of members rolled alone for n steps.
    """
    offsets, n = rng.normal(size=5), 7
    real, states, constant = linear_world(rng, offsets, 0.8)
    found = windows(real, n, GAMMA, "full")
    stride = 1
    begin = np.arange(0, 30 - n + 1, stride)
    discounts = GAMMA ** np.arange(n)
    value = VALUE * states + constant
    error = []
    for episode in range(6):
        for t in begin:
            rewards = W * states[episode, t + 1 : t + n + 1]
            whole = discounts @ rewards + GAMMA**n * value[episode, t + n]
            error.append(whole - value[episode, t])
    np.testing.assert_allclose(found.error, error, rtol=1e-8)

    def alone(offset, state):
        total = 0.0
        for i in range(n):
            state = A * state + offset
            total += GAMMA**i * W * state
        return total + GAMMA**n * (VALUE * state + constant)

    spread = np.std([alone(b, states[0, 0]) for b in offsets])
    np.testing.assert_allclose(found.sigma, spread, rtol=1e-8)
    # Every error is b - mean(b) times one factor, every step the same: z is known.
    z = (0.8 - offsets.mean()) / offsets.std()
    np.testing.assert_allclose(found.error / found.sigma, z, rtol=1e-8)
    assert fit(real, GAMMA).rho == 1.0
    assert fit(real, GAMMA).scale == pytest.approx(abs(z))


@pytest.mark.parametrize("correlation", [0, 0.7, "full"])
def test_windows_agree_with_q_uncertainty(rng, correlation):
    q, T = rng.normal(size=(4, 3, 12)), 12
    real = RealSteps(q, q[0], np.full(3, T), np.zeros(3, bool))
    found = windows(real, T, 0.9, correlation, ddof=1)
    members = np.moveaxis(q, 1, 2)
    want = q_uncertainty(members, 0 * members, 0.9, ddof=1, correlation=correlation)[0]
    np.testing.assert_allclose(found.sigma, want, rtol=1e-5)
    np.testing.assert_array_equal(found.episode, [0, 1, 2])


def test_time_limits_cut_windows_off_and_ends_do_not(rng):
    q = rng.normal(size=(4, 2, 6))
    real = RealSteps(q, q[0], np.array([6, 4]), np.array([False, True]))
    found = windows(real, 3, 1.0)
    np.testing.assert_array_equal(found.episode, [0, 0, 0, 0, 1, 1, 1, 1])
    one_step = q[0] - q.mean(0)
    np.testing.assert_allclose(found.error[-1], one_step[1, 3])
    np.testing.assert_allclose(found.error[4], one_step[1, :3].sum())


def test_what_has_no_z_is_left_out(rng):
    q = rng.normal(size=(3, 6, 10))
    q[:, 0] = 1.0
    q[0, 1, 4] = np.inf
    real = RealSteps(q, np.zeros((6, 10)), np.full(6, 10), np.zeros(6, bool))
    found = windows(real, 1, 0.9)
    assert 0 not in found.episode
    assert np.sum(found.episode == 1) == 9
    assert np.all(np.isfinite(found.error / found.sigma))
    assert np.isfinite(fit(real, 0.9).scale)


def test_bad_input_is_named(rng):
    whole = np.full(6, 10), np.zeros(6, bool)
    good = RealSteps(rng.normal(size=(3, 6, 10)), np.zeros((6, 10)), *whole)
    agreed = good._replace(member_q=np.ones((3, 6, 10)))
    for call, message in (
        (lambda: fit(good._replace(lengths=np.full(4, 10)), GAMMA), "4 real episodes"),
        (lambda: fit(agreed, GAMMA), "nothing to calibrate"),
        (lambda: windows(good, 0, GAMMA), "n is 0"),
        (lambda: windows(good._replace(lengths=np.full(4, 10)), 1, GAMMA), "lengths"),
        (
            lambda: windows(good._replace(real_q=np.zeros((6, 9))), 1, GAMMA),
            r"real_q \(6, 9\)",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            call()
