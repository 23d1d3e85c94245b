"""Theorem 4: L_sr is the first-order approximation of the improvement of J."""

import jax
import jax.numpy as jnp
import numpy as np

from pombu.optim import objectives

S, A, H = 4, 3, 5


def forward(P, policy, start):
    """State distributions of steps 1..H."""
    occupied = [start]
    for _ in range(H - 1):
        occupied.append(jnp.einsum("s,sa,sat->t", occupied[-1], policy, P))
    return jnp.stack(occupied)


def performance(P, R, start, theta):
    policy = jax.nn.softmax(theta)
    return jnp.einsum("hs,sa,sa->", forward(P, policy, start), policy, R)


def advantages(P, R, policy):
    value, steps = jnp.zeros(S), []
    for _ in range(H):
        q = R + P @ value
        value = (policy * q).sum(axis=-1)
        steps.append(q - value[:, None])
    return jnp.stack(steps[::-1])


def surrogate(P, R, start, theta, old):
    """E over (M, pi_old) of sum_h r_theta(s,a) A_old(s,a), every (h,s,a) a sample."""
    pi_old = jax.nn.softmax(old)
    ratio = jnp.broadcast_to(jax.nn.softmax(theta) / pi_old, (H, S, A))
    visits = forward(P, pi_old, start)[:, :, None] * pi_old
    samples = (ratio, advantages(P, R, pi_old), visits)
    return H * objectives.surrogate(*(x.reshape(-1) for x in samples))


def test_value_and_gradient_agree_at_the_old_parameters():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        P = jnp.asarray(rng.dirichlet(np.ones(S), size=(S, A)))
        R = jnp.asarray(rng.normal(size=(S, A)))
        start = jnp.asarray(rng.dirichlet(np.ones(S)))
        old = jnp.asarray(rng.normal(size=(S, A)))
        np.testing.assert_allclose(surrogate(P, R, start, old, old), 0, atol=1e-12)
        got = jax.grad(lambda theta: surrogate(P, R, start, theta, old))(old)
        want = jax.grad(lambda theta: performance(P, R, start, theta))(old)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        assert np.abs(want).max() > 1e-2
        elsewhere = old + 0.5 * jnp.asarray(rng.normal(size=(S, A)))
        improvement = performance(P, R, start, elsewhere) - performance(
            P, R, start, old
        )
        assert abs(surrogate(P, R, start, elsewhere, old) - improvement) > 1e-4
