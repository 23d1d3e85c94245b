"""The estimator on anybody's ensemble, Gaussian and Bayesian ones included."""

import numpy as np
import pytest

from pombu.errors import UsageError
from pombu.uncertainty import (
    diagnose,
    estimate,
    gaussian_member,
    last_layer_laplace,
    q_uncertainty,
)

GAINS = (0.9, 1.0, 1.2)


def member(gain):
    return lambda states, actions: gain * states + actions


def value(states):
    return -(states**2).sum(-1)


def reward(states, actions, next_states):
    return next_states[..., 0] - (actions**2).sum(-1)


@pytest.fixture
def trajectory():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 4, 2)), rng.normal(size=(6, 4, 2))


@pytest.fixture
def expected(trajectory):
    states, actions = trajectory
    following = [member(gain)(states, actions) for gain in GAINS]
    rewards = np.stack([reward(states, actions, s) for s in following])
    return q_uncertainty(rewards, np.stack([value(s) for s in following]), 0.9)


@pytest.mark.parametrize("kind", ["numpy", "jax", "torch"])
def test_plain_callables_of_every_kind(trajectory, expected, kind):
    module = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch"}[kind]
    library = pytest.importorskip(module)
    states, actions = (library.asarray(x.astype(np.float32)) for x in trajectory)
    members = [member(gain) for gain in GAINS]
    got = estimate(members, value, states, actions, 0.9, reward=reward)
    assert isinstance(got, type(states))
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_members_may_predict_rewards_and_leave_a_last_axis(trajectory, expected):
    states, actions = trajectory

    def with_reward(gain):
        def predict(s, a):
            following = member(gain)(s, a)
            return following, reward(s, a, following)[..., None]

        return predict

    members = [with_reward(gain) for gain in GAINS]
    got = estimate(members, lambda s: value(s)[..., None], states, actions, 0.9)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_networks_with_torch_gradients_are_accepted():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nets = [torch.nn.Linear(4, 2) for _ in range(3)]
    critic = torch.nn.Linear(2, 1)
    members = [
        lambda s, a, net=net: (s + net(torch.cat([s, a], -1)), s[..., 0])
        for net in nets
    ]
    got = estimate(members, critic, torch.zeros(5, 7, 2), torch.ones(5, 7, 2))
    assert got.shape == (5, 7)
    assert np.all(np.asarray(got) > 0)


def test_gaussian_members_that_agree_are_certain_however_noisy(trajectory):
    states, actions = trajectory
    noisy = gaussian_member(lambda s, a: (s + a, np.ones_like(s)), samples=4)
    got = estimate([noisy, noisy], value, states, actions, reward=reward)
    np.testing.assert_allclose(got, 0.0, atol=1e-6)


def test_gaussian_members_with_no_noise_are_deterministic_ones(trajectory, expected):
    states, actions = trajectory
    members = [
        gaussian_member(lambda s, a, g=g: (member(g)(s, a), 0 * s)) for g in GAINS
    ]
    got = estimate(members, value, states, actions, 0.9, reward=reward)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_gaussian_noise_enters_through_the_mean_of_the_value_only():
    """V = -|s|^2 and noise of std g: E V(s') = -|m|^2 - 2 g^2; d = Var_k(2 g_k^2)."""
    states = np.zeros((1, 1, 2))
    noises = (0.5, 1.0)
    members = [
        gaussian_member(lambda s, a, g=g: (s, g * np.ones_like(s)), samples=20_000)
        for g in noises
    ]
    got = estimate(members, value, states, states, reward=lambda s, a, n: 0 * s[..., 0])
    want = np.std([2 * g**2 for g in noises])
    np.testing.assert_allclose(got, [[want]], rtol=0.03)


def test_laplace_is_the_exact_posterior_of_a_linear_gaussian_system():
    rng = np.random.default_rng(0)
    X, W, noise = (
        rng.normal(size=(40, 3)),
        rng.normal(size=(3, 2)),
        np.array([0.1, 0.5]),
    )
    Y = X @ W + noise * rng.normal(size=(40, 2))
    posterior = last_layer_laplace(X, Y, prior_precision=2.0, noise_std=noise)
    S = np.linalg.inv(X.T @ X + 2.0 * np.eye(3))
    np.testing.assert_allclose(posterior.mean, S @ X.T @ Y)
    weights = posterior.sample(200_000)
    np.testing.assert_allclose(weights.mean(axis=0), posterior.mean, atol=2e-3)
    for i, sigma in enumerate(noise):
        covariance = np.cov(weights[:, :, i].T)
        np.testing.assert_allclose(
            covariance, sigma**2 * S, atol=2e-2 * sigma**2 * S.max()
        )


def test_laplace_members_have_the_predictive_variance():
    """One step, V linear: sigma^2 = sum_o v_o^2 noise_o^2 x S x in closed form."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 4))
    noise, v = np.array([0.3, 0.2]), np.array([1.5, -0.5])
    Y = X @ rng.normal(size=(4, 2)) + noise * rng.normal(size=(60, 2))
    posterior = last_layer_laplace(X, Y, noise_std=noise)
    states, actions = rng.normal(size=(1, 5, 2)), rng.normal(size=(1, 5, 2))

    def features(s, a):
        return np.concatenate([s, a], axis=-1)

    members = posterior.members(features, 4000)
    got = estimate(
        members,
        lambda s: s @ v,
        states,
        actions,
        ddof=1,
        reward=lambda s, a, n: 0 * n[..., 0],
    )
    x = features(states, actions)[0]
    S = posterior.factor @ posterior.factor.T
    want = np.sqrt(np.einsum("nf,fg,ng->n", x, S, x) * np.sum((v * noise) ** 2))
    np.testing.assert_allclose(np.asarray(got)[0], want, rtol=0.05)


def test_laplace_estimates_its_noise():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(5000, 3))
    Y = X @ rng.normal(size=(3, 1)) + 0.7 * rng.normal(size=(5000, 1))
    np.testing.assert_allclose(last_layer_laplace(X, Y).noise_std, 0.7, rtol=0.03)


def drifting(error):
    """s' = s + a + error: a member whose mistake repeats at every step."""
    return lambda states, actions: states + actions + error


def test_diagnosis_finds_errors_that_persist():
    """With r = s'_0, a member alone is off by e (1 + ... + H); mixed steps hide it."""
    H, errors = 10, np.array([-1.0, 1.0])
    members = [drifting(np.array([e, 0.0])) for e in errors]
    starts = np.zeros((3, 2))
    diagnosis = diagnose(
        members,
        value=lambda s: 0 * s[..., 0],
        policy=lambda s: 0 * s,
        starts=starts,
        horizon=H,
        reward=lambda s, a, n: n[..., 0],
    )
    np.testing.assert_allclose(diagnosis.member_variance, (H * (H + 1) / 2) ** 2)
    np.testing.assert_allclose(diagnosis.u, H, rtol=1e-6)
    assert diagnosis.ratio == pytest.approx((H * (H + 1) / 2) ** 2 / H)


def test_one_step_has_nothing_to_diagnose():
    members = [drifting(np.array([e, 0.0])) for e in (-1.0, 0.5, 2.0)]
    diagnosis = diagnose(
        members,
        value=lambda s: 0 * s[..., 0],
        policy=lambda s: 0 * s,
        starts=np.zeros((2, 2)),
        horizon=1,
        gamma=0.9,
        ddof=1,
        reward=lambda s, a, n: n[..., 0],
    )
    np.testing.assert_allclose(diagnosis.u, diagnosis.member_variance, rtol=1e-6)
    assert diagnosis.ratio == pytest.approx(1.0)


def test_the_diagnosis_of_a_single_member_is_undefined():
    diagnosis = diagnose(
        [drifting(0.0)], value, lambda s: 0 * s, np.ones((2, 2)), 3, reward=reward
    )
    assert np.isnan(diagnosis.ratio)


def test_the_diagnosis_of_no_member_is_refused():
    with pytest.raises(UsageError, match="members is empty"):
        diagnose([], value, lambda s: 0 * s, np.ones((2, 2)), 3, reward=reward)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": []}, "members is empty"),
        ({"reward": None}, r"members\[0\] predicts no reward"),
        ({"members": [lambda s, a: s[..., :1]]}, r"members\[0\] gave next states"),
        ({"value": lambda s: s}, r"value\(members\[0\]\) has shape"),
        ({"reward": lambda s, a, n: s}, "reward has shape"),
        ({"gamma": 2.0}, "gamma is 2"),
    ],
)
def test_bad_input_is_named(trajectory, change, message):
    states, actions = trajectory
    good = {
        "members": [member(1.0)],
        "value": value,
        "states": states,
        "actions": actions,
        "reward": reward,
    }
    with pytest.raises(UsageError, match=message):
        estimate(**(good | change))


def test_more_bad_input_is_named(trajectory):
    states, _ = trajectory
    noisy = gaussian_member(lambda s, a: (s, s))
    with pytest.raises(UsageError, match="one next state"):
        diagnose([noisy], value, lambda s: s, states[0], 2, reward=reward)
    with pytest.raises(UsageError, match="horizon is 0"):
        diagnose([member(1.0)], value, lambda s: s, states[0], 0, reward=reward)
    with pytest.raises(UsageError, match="samples is 0"):
        gaussian_member(lambda s, a: (s, s), samples=0)
    with pytest.raises(UsageError, match=r"features has shape \(3, 2\)"):
        last_layer_laplace(np.zeros((3, 2)), np.zeros((4, 1)))
    with pytest.raises(UsageError, match=r"targets\[1, 0\] is not finite"):
        last_layer_laplace(np.zeros((2, 1)), np.array([[0.0], [np.nan]]))
    with pytest.raises(UsageError, match="prior_precision is 0"):
        last_layer_laplace(np.zeros((2, 1)), np.zeros((2, 1)), prior_precision=0)
    posterior = last_layer_laplace(np.ones((2, 1)), np.ones((2, 1)))
    with pytest.raises(UsageError, match="count is 0"):
        posterior.sample(0)
