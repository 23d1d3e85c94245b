"""The true posterior variance of Q, by covariance recursion or by enumeration.

Which of the two holds depends on the paper's assumptions, and `assumptions` says which
of them a posterior meets. Enumeration goes over every MDP of a small finite posterior.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.tabular.posteriors import (
    Posterior,
    TabularPosterior,
    horizon_and_gamma,
    mean_values,
    policy_average,
    policy_for,
)

WEIGHT_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Assumptions:
    """The three assumptions of the paper for one posterior.

    Attributes:
        acyclic: assumption 1, no MDP visits a state twice.
        cyclic_states: the states that some MDP can visit twice.
        independent_states: assumption 2; both posterior families are built that way.
        independent_rewards: assumption 3, ``R_s`` is independent of ``P_s``.
        reward_dependent_states: the states where it is not.
    """

    acyclic: bool
    cyclic_states: tuple[int, ...]
    independent_states: bool
    independent_rewards: bool
    reward_dependent_states: tuple[int, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                _line(1, "no state is visited twice", self.cyclic_states),
                _line(2, "states are independent of each other", ()),
                _line(
                    3,
                    "rewards are independent of transitions",
                    self.reward_dependent_states,
                ),
            ]
        )


def assumptions(posterior: TabularPosterior) -> Assumptions:
    """Check assumptions 1-3; a known absorbing state without reward is no cycle."""
    cyclic = _states_where(np.diagonal(_reachable(posterior)))
    dependent = _reward_dependent(posterior)
    return Assumptions(
        acyclic=not cyclic,
        cyclic_states=cyclic,
        independent_states=True,
        independent_rewards=not dependent,
        reward_dependent_states=dependent,
    )


def _reachable(posterior: TabularPosterior) -> Bool[ndarray, "S S"]:
    """Whether state t can follow state s after one or more steps, ``[s, t]``.

    Because states are drawn independently, an edge of any member can follow an edge of
    any other: a cycle in the union of the members' graphs is a cycle in some MDP.
    """
    paths = np.asarray(posterior.possible.any(axis=1))
    paths[posterior.terminal, posterior.terminal] = False
    while True:
        counts = paths.astype(np.float32) @ paths.astype(np.float32)
        longer = paths | (counts > 0)
        if np.array_equal(longer, paths):
            return paths
        paths = longer


def _reward_dependent(posterior: TabularPosterior) -> tuple[int, ...]:
    if not isinstance(posterior, Posterior):
        return ()
    return tuple(
        state
        for state in range(posterior.P.shape[1])
        if not _factorises(
            posterior.P[:, state], posterior.R[:, state], posterior.weights
        )
    )


def _factorises(P: ndarray, R: ndarray, weights: ndarray) -> bool:
    """Whether the members' joint distribution of (P, R) is a product of marginals."""
    P_kind, R_kind = _kinds(P), _kinds(R)
    joint = np.zeros((P_kind.max() + 1, R_kind.max() + 1))
    np.add.at(joint, (P_kind, R_kind), weights)
    product = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    return bool(np.abs(joint - product).max() <= WEIGHT_TOLERANCE)


def _kinds(x: ndarray) -> ndarray:
    """For each member, which of the distinct values it has."""
    _, kind = np.unique(x.reshape(len(x), -1), axis=0, return_inverse=True)
    return kind.reshape(-1)


def _states_where(mask: Bool[ndarray, " S"]) -> tuple[int, ...]:
    """The indices of the states marked in ``mask``."""
    return tuple(int(i) for i in np.flatnonzero(mask))


def _line(number: int, meaning: str, where: tuple[int, ...]) -> str:
    verdict = f"fails at states {', '.join(map(str, where))}" if where else "holds"
    return f"assumption {number} ({meaning}): {verdict}"


MDPS_AT_MOST = 2**18
# Entries of P per batch: 2**21 float64 are 16 MiB.
BATCH_ENTRIES = 2**21


def _mdp_count(posterior: Posterior) -> int:
    """How many different MDPs the posterior can draw."""
    return prod(len(member) for member, _ in _choices(posterior))


def _every_mdp(
    posterior: Posterior,
) -> Iterator[
    tuple[
        Float64[ndarray, "M S A S"], Float64[ndarray, "M S A"], Float64[ndarray, " M"]
    ]
]:
    """Batches of transitions, rewards and probabilities that cover every MDP once."""
    choices = _choices(posterior)
    counts = tuple(len(member) for member, _ in choices)
    states = range(len(choices))
    total = prod(counts)
    batch = max(1, BATCH_ENTRIES // posterior.P[0].size)
    for start in range(0, total, batch):
        picks = np.unravel_index(np.arange(start, min(start + batch, total)), counts)
        members = [choices[s][0][picks[s]] for s in states]
        yield (
            np.stack([posterior.P[members[s], s] for s in states], axis=1),
            np.stack([posterior.R[members[s], s] for s in states], axis=1),
            np.prod([choices[s][1][picks[s]] for s in states], axis=0),
        )


def _choices(posterior: Posterior) -> list[tuple[ndarray, Float64[ndarray, " N"]]]:
    """Per state: one member for each distinct row block, and its probability."""
    drawn = np.flatnonzero(posterior.weights > 0)
    choices = []
    for state in range(posterior.P.shape[1]):
        blocks = np.column_stack(
            [
                posterior.P[drawn, state].reshape(len(drawn), -1),
                posterior.R[drawn, state],
            ]
        )
        _, first, kind = np.unique(
            blocks, axis=0, return_index=True, return_inverse=True
        )
        probability = np.bincount(kind.reshape(-1), weights=posterior.weights[drawn])
        choices.append((drawn[first], probability))
    return choices


Method = Literal["auto", "recursion", "enumeration"]

# The recursion keeps one covariance per pair of (state, step): 2**28 float64 are 2 GiB.
COVARIANCES_AT_MOST = 2**28


@dataclass(frozen=True)
class ValueMoments:
    """What the posterior says about Q.

    Attributes:
        q_variance: ``D[Q^h_sa]``.
        gap: ``g^h_sa = E_M[V_{P,pi}[Q^{h+1} - Qbar^{h+1}]]``, the variance over next
            state and action inside each MDP; never negative.
    """

    q_variance: Float64[ndarray, "H S A"]
    gap: Float64[ndarray, "H S A"]


def posterior_variance(
    posterior: TabularPosterior,
    policy: Any,
    horizon: int,
    gamma: float | int = 1.0,
    method: Method = "auto",
) -> Float64[ndarray, "H S A"]:
    """The exact variance ``D[Q^h_sa]`` over the posterior.

    Args:
        posterior: a `Posterior` or a `DirichletPosterior`.
        policy: action probabilities ``[S, A]``.
        horizon: number of steps H, 1 or more.
        gamma: discount factor in (0, 1].
        method: ``"recursion"`` follows covariances of values at polynomial cost and
            needs assumption 1; ``"enumeration"`` visits every MDP of a small finite
            posterior; ``"auto"`` takes the recursion where it applies.

    Raises:
        UsageError: for bad arguments, or when assumption 1 fails and the posterior is
            too large to enumerate.
    """
    horizon_and_gamma(horizon, gamma)
    pi = policy_for(policy, *posterior.mean_rewards.shape)
    return value_moments(posterior, pi, horizon, gamma, method).q_variance


def value_moments(
    posterior: TabularPosterior,
    policy: Float64[ndarray, "S A"],
    horizon: int,
    gamma: float | int,
    method: Method = "auto",
) -> ValueMoments:
    """Variance of Q and the gap of the exact equation, by the chosen method."""
    if method not in ("auto", "recursion", "enumeration"):
        raise UsageError(
            f"method is {method!r}; it must be 'auto', 'recursion' or 'enumeration'."
        )
    reach = _reachable(posterior)
    cyclic = _states_where(np.diagonal(reach))
    if method == "enumeration" or (method == "auto" and cyclic):
        return _by_enumeration(_enumerable(posterior, cyclic), policy, horizon, gamma)
    if cyclic:
        raise UsageError(
            f"assumption 1 fails: state {cyclic[0]} can be visited twice; use "
            "method='enumeration', or give each step its own copy of the states."
        )
    order = np.argsort(reach.sum(axis=1), kind="stable")
    return _by_recursion(posterior, policy, horizon, gamma, order)


def _by_recursion(
    posterior: TabularPosterior,
    policy: Float64[ndarray, "S A"],
    horizon: int,
    gamma: float | int,
    order: Int[ndarray, " S"],
) -> ValueMoments:
    next_values = mean_values(posterior, policy, horizon, gamma)[1:]
    covariance = _value_covariances(posterior, policy, next_values[::-1], gamma, order)
    q_variance = np.zeros((horizon, *policy.shape))
    gap = np.zeros_like(q_variance)
    later = np.zeros(policy.shape)
    for h in reversed(range(horizon)):
        to_go = horizon - 1 - h
        kept = posterior.expected_quadratic(covariance[:, to_go, :, to_go])
        local = posterior.backup_variance(next_values[h], gamma)
        gap[h] = posterior.mean_transitions @ policy_average(policy, later) - kept
        q_variance[h] = later = local + gamma**2 * kept
    return ValueMoments(q_variance, np.maximum(gap, 0.0))


def _value_covariances(
    posterior: TabularPosterior,
    policy: Float64[ndarray, "S A"],
    values: Float64[ndarray, "H S"],
    gamma: float | int,
    order: Int[ndarray, " S"],
) -> Float64[ndarray, "S H+1 S H+1"]:
    """``Cov(V_s, V_t)`` for every two states, each with 0..H steps to go.

    ``order`` takes states with fewer descendants first, so everything that can follow a
    state comes before it. A new state's row is then independent of all values seen so
    far, and its covariance with them is the mean of its successors' covariances. Two
    values of the same state share one row, which adds the row's own covariance. The two
    steps to go must be kept apart: a state met at two different times has two
    different, correlated values.

    ``values`` are the mean values with 0, ..., H-1 steps to go.
    """
    horizon, states = values.shape
    count = (states * (horizon + 1)) ** 2
    if count > COVARIANCES_AT_MOST:
        raise UsageError(
            f"{states} states over {horizon} steps need {count:.1e} covariances, but "
            f"at most {COVARIANCES_AT_MOST:.1e} fit; shorten the horizon or merge "
            "states."
        )
    covariance = np.zeros((states, horizon + 1) * 2)
    mean_rows = np.einsum("sa,sat->st", policy, posterior.mean_transitions)
    payoffs = np.column_stack([np.ones(horizon), gamma * values])
    for s in order:
        if posterior.terminal[s]:
            continue
        row_covariance = posterior.row_covariance(int(s), policy[s])
        after = np.flatnonzero(mean_rows[s])
        row = mean_rows[s, after]
        others = gamma * np.tensordot(row, covariance[after, :-1], axes=1)
        second_moment = row_covariance[1:, 1:][np.ix_(after, after)] + np.outer(
            row, row
        )
        next_covariance = covariance[after, :-1][:, :, after, :-1]
        own = payoffs @ row_covariance @ payoffs.T + gamma**2 * np.einsum(
            "xy,xnym->nm", second_moment, next_covariance
        )
        covariance[s, 1:] = others
        covariance[:, :, s, 1:] = others.transpose(1, 2, 0)
        covariance[s, 1:, s, 1:] = own
    return covariance


def _by_enumeration(
    posterior: Posterior,
    policy: Float64[ndarray, "S A"],
    horizon: int,
    gamma: float | int,
) -> ValueMoments:
    """Two passes over every MDP: the mean of Q, then the spread around it."""
    q_mean = np.zeros((horizon + 1, *policy.shape))
    for P, R, probability in _every_mdp(posterior):
        q = _q_values(P, R, policy, horizon, gamma)
        q_mean += np.tensordot(probability, q, axes=1)
    q_variance = np.zeros_like(q_mean)
    gap = np.zeros((horizon, *policy.shape))
    for P, R, probability in _every_mdp(posterior):
        error = _q_values(P, R, policy, horizon, gamma) - q_mean
        q_variance += np.tensordot(probability, error**2, axes=1)
        for h in range(horizon):
            gap[h] += np.tensordot(
                probability, _variance_inside(P, policy, error[:, h + 1]), axes=1
            )
    return ValueMoments(q_variance[:-1], np.maximum(gap, 0.0))


def _q_values(
    P: Float64[ndarray, "M S A S"],
    R: Float64[ndarray, "M S A"],
    policy: Float64[ndarray, "S A"],
    horizon: int,
    gamma: float | int,
) -> Float64[ndarray, "M {horizon}+1 S A"]:
    q = np.zeros((len(P), horizon + 1, *policy.shape))
    for h in reversed(range(horizon)):
        v = policy_average(policy, q[:, h + 1])
        q[:, h] = R + gamma * np.einsum("msat,mt->msa", P, v)
    return q


def _variance_inside(
    P: Float64[ndarray, "M S A S"],
    policy: Float64[ndarray, "S A"],
    x: Float64[ndarray, "M S A"],
) -> Float64[ndarray, "M S A"]:
    """Variance of ``x(s', a')`` over next state and action, inside each MDP."""
    mean = np.einsum("msat,mt->msa", P, policy_average(policy, x))
    square = np.einsum("msat,mt->msa", P, policy_average(policy, x**2))
    return np.asarray(square - mean**2)


def _enumerable(posterior: TabularPosterior, cyclic: tuple[int, ...]) -> Posterior:
    """The posterior itself if it is finite and small, else an error that says why."""
    if isinstance(posterior, Posterior):
        count = _mdp_count(posterior)
        if count <= MDPS_AT_MOST:
            return posterior
        obstacle = f"its {count:.3g} MDPs are too many (at most {MDPS_AT_MOST})"
    else:
        obstacle = f"a {type(posterior).__name__} has infinitely many MDPs"
    cause = (
        f"assumption 1 fails (state {cyclic[0]} can be visited twice) and "
        if cyclic
        else ""
    )
    raise UsageError(
        f"{cause}the posterior cannot be enumerated: {obstacle}; give each step its "
        "own copy of the states, so that no state repeats, and use method='recursion'."
    )
