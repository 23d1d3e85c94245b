"""Algorithm 1 against its own pseudo-code, written out as loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.errors import UsageError
from pombu.uncertainty import local_uncertainty, propagate, q_uncertainty


def pseudo_code(rewards, next_values, gamma, ddof=0):
    K, H = rewards.shape
    D = np.zeros(H + 1)
    for i in reversed(range(H)):
        q = [rewards[j, i] + gamma * next_values[j, i] for j in range(K)]
        mean = sum(q) / K
        d = sum((q_j - mean) ** 2 for q_j in q) / (K - ddof)
        D[i] = d + gamma**2 * D[i + 1]
    return np.sqrt(D[:H])


@pytest.fixture
def arrays(rng):
    return rng.normal(size=(5, 30, 4)), 3 * rng.normal(size=(5, 30, 4))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("ddof", [0, 1])
def test_equals_the_pseudo_code(arrays, gamma, ddof):
    rewards, values = arrays
    got = q_uncertainty(rewards, values, gamma, ddof)
    want = [pseudo_code(rewards[..., b], values[..., b], gamma, ddof) for b in range(4)]
    np.testing.assert_allclose(got, np.stack(want, -1), rtol=1e-5)


def test_accepts_numpy_jax_torch_and_lists(arrays):
    torch = pytest.importorskip("torch")
    rewards, values = (a.astype(np.float32) for a in arrays)
    want = q_uncertainty(rewards, values)
    assert type(want) is np.ndarray
    kinds = (jnp.asarray, jax.Array), (torch.as_tensor, torch.Tensor)
    for convert, kind in (*kinds, (np.ndarray.tolist, jax.Array)):
        got = q_uncertainty(convert(rewards), convert(values))
        assert isinstance(got, kind)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    for case in (0, 0.5, "full"):
        assert type(q_uncertainty(rewards, values, correlation=case)) is np.ndarray
    traced = jax.jit(lambda: q_uncertainty(rewards, values))()
    np.testing.assert_allclose(traced, want, rtol=1e-6)
    with_gradient = torch.as_tensor(rewards).requires_grad_()
    np.testing.assert_allclose(q_uncertainty(with_gradient, values), want, rtol=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_one_member_has_no_uncertainty(rng, ddof):
    one = rng.normal(size=(1, 7))
    assert np.array_equal(q_uncertainty(one, one, ddof=ddof), np.zeros(7))


def test_gradient_is_finite_where_members_agree():
    rewards = jnp.zeros((3, 4)).at[0, 1].set(1.0)
    gradient = jax.grad(lambda v: q_uncertainty(rewards, v).sum())(jnp.zeros((3, 4)))
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient)[:, 2:] == 0)
    assert np.any(np.asarray(gradient)[:, :2] != 0)


def test_gradient_matches_finite_differences(arrays):
    rewards, values = (jnp.asarray(a[..., 0]) for a in arrays)
    direction = jnp.ones_like(values).at[0].set(-1.0)
    _, slope = jax.jvp(
        lambda v: q_uncertainty(rewards, v, 0.9), (values,), (direction,)
    )
    step = 1e-2
    ahead = q_uncertainty(rewards, values + step * direction, 0.9)
    behind = q_uncertainty(rewards, values - step * direction, 0.9)
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), atol=5e-3)


def test_the_covariance_of_reward_and_value_is_kept(rng):
    rewards = jnp.asarray(rng.normal(size=(6, 3)))
    np.testing.assert_allclose(local_uncertainty(rewards, -rewards, 1.0), 0, atol=1e-6)


def test_nothing_flows_back_over_an_end():
    d = jnp.array([1.0, 2.0, 4.0, 8.0])
    continues = jnp.array([1.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(propagate(d, 0.5, continues), [1.5, 2.0, 6.0, 8.0])
    np.testing.assert_allclose(propagate(d, 1.0), [15.0, 14.0, 12.0, 8.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 0.0}, r"gamma is 0.0; it must lie in \(0, 1\]"),
        ({"gamma": 1.5}, r"gamma is 1.5"),
        ({"gamma": float("nan")}, r"gamma is nan"),
        ({"ddof": 2}, r"ddof is 2"),
        ({"member_rewards": np.zeros((2, 4))}, r"\(2, 4\).*\(2, 3\)"),
        (
            {"member_next_values": np.array([[0, 0, 0], [0, np.nan, 0]])},
            r"member_next_values\[1, 1\] is nan",
        ),
        (
            {
                "member_rewards": np.zeros((2, 0)),
                "member_next_values": np.zeros((2, 0)),
            },
            "at least one member",
        ),
    ],
)
def test_bad_input_is_named(change, message):
    good = {"member_rewards": np.zeros((2, 3)), "member_next_values": np.zeros((2, 3))}
    with pytest.raises(UsageError, match=message):
        q_uncertainty(**(good | change))
