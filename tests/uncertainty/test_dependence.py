"""Dependent errors: against loops, members rolled alone, and enumerated worlds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from posteriors import acyclic_posterior, random_policy

from pombu.errors import UsageError
from pombu.uncertainty import estimate, q_uncertainty
from pombu.uncertainty.algorithm1 import propagate, propagate_correlated
from pombu.uncertainty.tabular import Posterior, chain, pombu_bound
from pombu.uncertainty.tabular.posteriors import mean_values

torch = pytest.importorskip("torch")
CASES = [0, 0.3, 0.95, 1.0, "full"]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def arrays(rng):
    """Rewards and next values of 4 members on 12 steps of 3 trajectories, and tails."""
    continues = (rng.random((12, 3)) > 0.15).astype(float)
    return {
        "member_rewards": rng.normal(size=(4, 12, 3)),
        "member_next_values": 3 * rng.normal(size=(4, 12, 3)),
        "continues": continues,
        "beyond": rng.gamma(1.0, size=3),
    }


def by_loops(case, q, gamma, ddof, continues, beyond, member_beyond=None):
    """Every pair of steps of one trajectory, with its discount and its covariance."""
    K, H = q.shape
    delta = q - q.mean(0)
    covariance = delta.T @ delta / (K - ddof)
    std = np.sqrt(np.append(np.diagonal(covariance), beyond))
    found = np.zeros(H)
    for h in range(H):
        ends = [t for t in range(h, H) if continues[t] == 0]
        last = ends[0] if ends else H - 1
        for t in range(h, last + 1):
            for s in range(h, last + 1):
                shared = (
                    covariance[t, s]
                    if case == "full"
                    else float(case) ** abs(s - t) * std[t] * std[s]
                )
                found[h] += gamma ** (t + s - 2 * h) * shared
        if ends:
            continue
        found[h] += gamma ** (2 * (H - h)) * beyond
        if case == "full" and member_beyond is not None:
            tail = member_beyond - member_beyond.mean()
            found[h] += gamma ** (2 * (H - h)) * (tail @ tail) / (K - ddof)
            for t in range(h, H):
                cross = delta[:, t] @ tail / (K - ddof)
                found[h] += 2 * gamma ** (t + H - 2 * h) * cross
        elif case != "full":
            for t in range(h, H):
                shared = float(case) ** (H - t) * std[t] * std[H]
                found[h] += 2 * gamma ** (t + H - 2 * h) * shared
    return np.sqrt(found)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("gamma", "ddof"), [(1.0, 0), (0.9, 1)])
def test_equals_the_loops_in_jax_and_torch(arrays, rng, case, gamma, ddof):
    if case == "full":
        arrays["member_beyond"] = rng.normal(size=(4, 3))
    q = arrays["member_rewards"] + gamma * arrays["member_next_values"]
    want = np.stack(
        [
            by_loops(
                case,
                q[..., i],
                gamma,
                ddof,
                arrays["continues"][:, i],
                arrays["beyond"][i],
                arrays["member_beyond"][:, i] if case == "full" else None,
            )
            for i in range(3)
        ],
        axis=-1,
    )
    got = q_uncertainty(gamma=gamma, ddof=ddof, correlation=case, **arrays)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    ours = {name: jnp.asarray(x) for name, x in arrays.items()}
    got = q_uncertainty(gamma=gamma, ddof=ddof, correlation=case, **ours)
    assert isinstance(got, jax.Array)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    tensors = {name: torch.as_tensor(x) for name, x in arrays.items()}
    got = q_uncertainty(gamma=gamma, ddof=ddof, correlation=case, **tensors)
    assert isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got, want, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_gradients_agree_and_are_finite_where_members_agree(case):
    rewards = np.zeros((3, 4))
    rewards[0, 1] = 1.0
    values = np.zeros((3, 4))
    by_jax = jax.grad(
        lambda v: q_uncertainty(jnp.asarray(rewards), v, 0.9, correlation=case).sum()
    )(jnp.asarray(values))
    leaf = torch.tensor(values, requires_grad=True)
    q_uncertainty(torch.tensor(rewards), leaf, 0.9, correlation=case).sum().backward()
    assert np.all(np.isfinite(by_jax))
    assert np.any(np.asarray(by_jax) != 0)
    np.testing.assert_allclose(leaf.grad, by_jax, atol=1e-6)


def test_torch_gradients_match_finite_differences(rng):
    rewards = torch.tensor(rng.normal(size=(3, 4)), requires_grad=True)
    values, beyond = torch.tensor(rng.normal(size=(3, 4))), torch.tensor(0.5).double()
    for case in CASES:
        assert torch.autograd.gradcheck(
            lambda r, case=case: q_uncertainty(
                r, values, 0.9, correlation=case, beyond=beyond
            ),
            (rewards,),
        )


def test_constant_errors_have_the_closed_form():
    """d constant over a long time: U_rho / U_0 = (1 + gamma rho) / (1 - gamma rho)."""
    gamma, rho = 0.9, 0.8
    d = jnp.ones(400)
    ratio = propagate_correlated(d, gamma, rho)[0] / propagate(d, gamma)[0]
    assert float(ratio) == pytest.approx((1 + gamma * rho) / (1 - gamma * rho), 1e-4)


def test_full_correlation_bounds_what_the_members_show(rng):
    rewards, values = rng.normal(size=(2, 5, 20))
    low, high = (q_uncertainty(rewards, values, correlation=c) for c in ("full", 1.0))
    assert np.all(np.asarray(low) <= np.asarray(high) * (1 + 1e-5))


# Members rolled alone ----------------------------------------------------------------

A = np.array([[0.9, 0.2], [-0.1, 0.8]])
B = np.array([[0.1], [0.5]])
GAIN = np.array([[-0.3, -0.2]])
GAMMA = 0.95


def roll_alone(step, value, start, action, horizon):
    """A member's Q: its own states, the policy's actions, V past the last step."""
    state, total = start, 0.0
    for t in range(horizon):
        following, reward = step(state, action)
        total += GAMMA**t * reward
        state, action = following, GAIN @ following
    return total + GAMMA**horizon * value(state)


def along_shared(steps, value, rng, horizon):
    """A trajectory whose steps are made by random members; all members' opinions."""
    states, actions = [rng.normal(size=2)], [rng.normal(size=1)]
    rewards, values = np.zeros((2, len(steps), horizon))
    for t in range(horizon):
        made = [step(states[t], actions[t]) for step in steps]
        rewards[:, t] = [reward for _, reward in made]
        values[:, t] = [value(following) for following, _ in made]
        states.append(made[rng.integers(len(steps))][0])
        actions.append(GAIN @ states[-1])
    return states, actions, torch.tensor(rewards), torch.tensor(values)


def linear_value(w, u, offset):
    """V(s) = v s + c of s' = A s + B a + offset, r = w s' + u a under a = GAIN s."""
    closed = A + B @ GAIN
    v = np.linalg.solve(
        np.eye(2) - GAMMA * closed.T, closed.T @ w + GAIN.T @ np.atleast_1d(u)
    )
    c = (w + GAMMA * v) @ offset / (1 - GAMMA)
    return lambda state: v @ state + c


def test_full_equals_members_rolled_alone_for_linear_dynamics_and_value(rng):
    """Members differ by offsets of state and reward: equal at every step, exactly."""
    w, u = rng.normal(size=2), 0.7
    offsets, bonuses = rng.normal(size=(5, 2)), rng.normal(size=5)
    bonuses -= bonuses.mean()

    def member(k):
        def step(s, a):
            following = A @ s + B @ a + offsets[k]
            return following, float(w @ following + u * a[0] + bonuses[k])

        return step

    steps = [member(k) for k in range(5)]
    value = linear_value(w, u, offsets.mean(0))
    states, actions, rewards, values = along_shared(steps, value, rng, 12)
    full = q_uncertainty(rewards, values, GAMMA, correlation="full")
    alone = [
        [roll_alone(step, value, states[h], actions[h], 12 - h) for step in steps]
        for h in range(12)
    ]
    np.testing.assert_allclose(full, np.std(alone, axis=1), rtol=1e-9)
    # U takes the same error at every step for independent ones: far too small.
    u = q_uncertainty(rewards, values, GAMMA)
    assert float(u[0]) < 0.5 * float(full[0])


@pytest.mark.parametrize("kind", ["slopes", "quadratic value"])
def test_full_equals_members_rolled_alone_to_first_order(kind):
    """The relative gap shrinks in proportion to the members' differences."""

    def gap(size):
        rng = np.random.default_rng(3)
        changes = (
            rng.normal(size=(5, 2, 2)) if kind == "slopes" else np.zeros((5, 2, 2))
        )
        offsets = rng.normal(size=(5, 2))
        changes, offsets = (size * (x - x.mean(0)) for x in (changes, offsets))
        w = rng.normal(size=2)

        def member(k):
            def step(s, a):
                following = (A + changes[k]) @ s + B @ a + offsets[k]
                if kind == "slopes":
                    return following, float(w @ following)
                return following, -float(following @ following)

            return step

        if kind == "slopes":
            value = linear_value(w, 0.0, np.zeros(2))
        else:
            closed, P = A + B @ GAIN, np.zeros((2, 2))
            for _ in range(400):
                P = closed.T @ (np.eye(2) + GAMMA * P) @ closed
            value = lambda s: -(s @ P @ s)  # noqa: E731
        steps = [member(k) for k in range(5)]
        states, actions, rewards, values = along_shared(steps, value, rng, 15)
        full = float(q_uncertainty(rewards, values, GAMMA, correlation="full")[0])
        alone = [roll_alone(s, value, states[0], actions[0], 15) for s in steps]
        return abs(full / np.std(alone) - 1)

    assert gap(1e-3) < 0.01
    assert gap(1e-4) < 0.2 * gap(1e-3)


def test_estimate_takes_a_correlation(rng):
    members = [lambda s, a, e=e: (s + a + e, s[..., 0] + e) for e in (-1.0, 0.0, 1.0)]
    states = rng.normal(size=(10, 4, 2))
    none, full = (
        estimate(members, lambda s: 0 * s[..., 0], states, states, correlation=c)
        for c in (0, "full")
    )
    steps = np.arange(10, 0, -1.0)[:, None] * np.ones(4)
    np.testing.assert_allclose(none, np.sqrt(2 / 3 * steps), rtol=1e-5)
    np.testing.assert_allclose(full, np.sqrt(2 / 3) * steps, rtol=1e-5)


# Finite MDPs: one draw decides the world, so states are not independent --------------


def q_of_worlds(posterior, policy, horizon, gamma):
    """Q of every member as a whole world, [K, H, S, A]: assumption 2 does not hold."""
    found = []
    for P, R in zip(posterior.P, posterior.R, strict=True):
        values = mean_values(Posterior(P[None], R[None]), policy, horizon, gamma)
        found.append([R + gamma * P @ v for v in values[1:]])
    return np.array(found)


def variance(x, weights):
    mean = np.tensordot(weights, x, 1)
    return np.tensordot(weights, (x - mean) ** 2, 1)


def test_rewards_that_share_their_error_make_u_too_small(rng):
    """A known walk with r_k(s) = e_k g(s): F is the enumerated D, U is less."""
    S, K = 6, 4
    P = np.zeros((K, S + 1, 1, S + 1))
    P[:, np.arange(S), 0, np.arange(1, S + 1)] = 1.0
    P[:, S, 0, S] = 1.0
    R = np.zeros((K, S + 1, 1))
    R[:, :S, 0] = np.outer(rng.normal(size=K), rng.uniform(0.5, 1.5, S))
    posterior, policy = Posterior(P, R, np.full(K, 1 / K)), np.ones((S + 1, 1))
    D = variance(q_of_worlds(posterior, policy, S, 0.9), posterior.weights)
    U = pombu_bound(posterior, policy, S, 0.9)
    walked = np.arange(S)
    rewards = torch.tensor(R[:, :S, 0])
    next_values = mean_values(posterior, policy, S, 0.9)[walked + 1, walked + 1]
    values = torch.tensor(np.tile(next_values, (K, 1)))
    full = q_uncertainty(rewards, values, 0.9, correlation="full")
    none = q_uncertainty(rewards, values, 0.9)
    np.testing.assert_allclose(full**2, D[walked, walked, 0], rtol=1e-9)
    np.testing.assert_allclose(none**2, U[walked, walked, 0], rtol=1e-9)
    assert U[0, 0, 0] < 0.3 * D[0, 0, 0]


def test_one_coin_for_the_whole_chain_exceeds_u():
    """Appendix C with a shared coin: D = (1 - 2^-n)^2, 0.5625 against U = 0.4531."""
    for H in (2, 4, 8):
        posterior, policy = chain(H)
        D = variance(q_of_worlds(posterior, policy, H, 1.0), posterior.weights)
        U = pombu_bound(posterior, policy, H)
        assert D[0, H, 1] == pytest.approx((1 - 2.0**-H) ** 2)
        assert U[0, H, 1] < D[0, H, 1]


def every_trajectory(posterior, policy, horizon, state, action):
    """All trajectories of the mean MDP that begin with a pair, and their chances."""
    found = [([(state, action)], 1.0)]
    for _ in range(horizon - 1):
        longer = []
        for pairs, chance in found:
            rows = posterior.mean_transitions[pairs[-1]]
            longer += [
                ([*pairs, (s, a)], chance * rows[s] * policy[s, a])
                for s in np.flatnonzero(rows)
                for a in np.flatnonzero(policy[s])
            ]
        found = longer
    return found


@pytest.mark.parametrize("seed", range(4))
def test_whole_worlds_by_enumeration_of_trajectories(seed):
    """The members' mean sums give D to first order; the mean of F is at least that.

    F of one trajectory also keeps where that trajectory happened to go (as U does), so
    its mean over trajectories bounds D from above, also where U does not.
    """
    rng = np.random.default_rng(seed)
    wide, H, gamma = acyclic_posterior(rng, 4, 2, 3), 3, 0.9
    policy = random_policy(rng, 4, 2)
    start = int(np.argmax(wide.possible.any(1).sum(1)))

    def first_order(size):
        P = wide.mean_transitions + size * (wide.P - wide.mean_transitions)
        R = wide.mean_rewards + size * (wide.R - wide.mean_rewards)
        posterior = Posterior(P, R, np.full(3, 1 / 3))
        D = variance(q_of_worlds(posterior, policy, H, gamma), posterior.weights)
        values = mean_values(posterior, policy, H, gamma)
        full, sums = 0.0, np.zeros(3)
        for pairs, chance in every_trajectory(posterior, policy, H, start, 0):
            rewards = np.array([[r[pair] for pair in pairs] for r in R])
            after = np.array(
                [[p[pair] @ values[t + 1] for t, pair in enumerate(pairs)] for p in P]
            )
            sigma = q_uncertainty(
                torch.tensor(rewards), torch.tensor(after), gamma, correlation="full"
            )
            full += chance * float(sigma[0]) ** 2
            q = rewards + gamma * after
            sums += chance * ((q - q.mean(0)) @ gamma ** np.arange(H))
        return np.var(sums) / D[0, start, 0], full / D[0, start, 0]

    exact, bound = first_order(1e-3)
    assert exact == pytest.approx(1.0, abs=0.02)
    assert bound >= exact - 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correlation": 1.5}, r"correlation is 1.5; it must be a number in \[0, 1\]"),
        ({"correlation": -0.1}, "correlation is -0.1"),
        ({"correlation": float("nan")}, "correlation is nan"),
        ({"correlation": "half"}, "correlation is 'half'"),
        ({"continues": np.ones(2)}, r"continues has shape \(2,\).*\(3,\)"),
        ({"beyond": np.ones(2)}, r"beyond has shape \(2,\)"),
        ({"beyond": np.float64(-1.0)}, "beyond has a negative entry"),
        ({"beyond": np.float64(np.inf)}, r"beyond\[\] is inf"),
        ({"member_beyond": np.zeros(2)}, "only correlation='full'"),
        (
            {"member_beyond": np.zeros(3), "correlation": "full"},
            r"member_beyond has shape \(3,\)",
        ),
    ],
)
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_bad_input_is_named(change, message, convert):
    names = ("member_rewards", "member_next_values")
    good = {name: convert(np.zeros((2, 3))) for name in names}
    with pytest.raises(UsageError, match=message):
        q_uncertainty(**(good | change))
