"""Random posteriors for the property tests."""

import numpy as np
from hypothesis import strategies as st

from pombu.uncertainty.tabular import DirichletPosterior, Posterior


def random_rows(rng, next_states, size, shape):
    """Sparse random distributions over the given next states."""
    rows = np.zeros((*shape, size))
    for index in np.ndindex(*shape):
        count = rng.integers(1, len(next_states) + 1)
        chosen = rng.choice(next_states, count, replace=False)
        rows[index][chosen] = rng.dirichlet(np.ones(count))
    return rows


def random_order(rng, states):
    """A labelling in which states only lead to later ones; the last one is the end."""
    order = rng.permutation(states)
    return [(order[i], order[i + 1 :]) for i in range(states - 1)], order[-1]


def random_policy(rng, states, actions):
    policy = rng.dirichlet(np.ones(actions), size=states)
    policy[rng.random(states) < 0.2] = np.eye(actions)[0]
    return policy


def acyclic_posterior(rng, states, actions, members, known_rewards=False):
    P = np.zeros((members, states, actions, states))
    R = rng.normal(size=(members, states, actions))
    if known_rewards:
        R[:] = R[0]
    edges, end = random_order(rng, states)
    for state, later in edges:
        P[:, state] = random_rows(rng, later, states, (members, actions))
    P[:, end, :, end] = 1.0
    R[:, end] = 0.0
    return Posterior(P, R, rng.dirichlet(np.ones(members)))


def independent_rewards(posterior, rng, kinds=2):
    """The same transitions with rewards drawn independently: assumption 3 holds."""
    members = len(posterior.P)
    R = rng.normal(size=(kinds, *posterior.R.shape[1:]))
    R[:, posterior.terminal] = 0.0
    shares = rng.dirichlet(np.ones(kinds))
    return Posterior(
        np.repeat(posterior.P, kinds, axis=0),
        np.tile(R, (members, 1, 1)),
        np.outer(posterior.weights, shares).reshape(-1),
    )


def dirichlet_posterior(rng, states, actions):
    alpha = np.zeros((states, actions, states))
    edges, end = random_order(rng, states)
    for state, later in edges:
        alpha[state][:, later] = rng.gamma(1.0, size=(actions, len(later)))
    alpha[end, :, end] = 1.0
    mean = rng.normal(size=(states, actions))
    var = rng.gamma(1.0, size=(states, actions))
    mean[end] = var[end] = 0.0
    return DirichletPosterior(alpha, mean, var)


# Only plain numbers are drawn: the posteriors are built inside the tests, because the
# run-time type checker uses `random`, which hypothesis forbids while it draws.
draws = st.tuples(st.integers(0, 2**32), st.sampled_from([1.0, 0.9, 0.3]))


def build(draw, family="finite", states=5, members=3):
    """(posterior, policy, horizon, gamma); horizons below and above the depth."""
    seed, gamma = draw
    rng = np.random.default_rng(seed)
    S, A = rng.integers(2, states + 1), rng.integers(1, 4)
    if family == "dirichlet":
        posterior = dirichlet_posterior(rng, S, A)
    else:
        K = rng.integers(1, members + 1)
        posterior = acyclic_posterior(rng, S, A, K, family == "known rewards")
    if family == "independent rewards":
        posterior = independent_rewards(posterior, rng)
    return posterior, random_policy(rng, S, A), int(rng.integers(1, S + 2)), gamma
