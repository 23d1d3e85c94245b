"""Posteriors over finite MDPs, as the moments that the Bellman equations need.

Both families draw the row block ``(P_s, R_s)`` of every state independently of every
other state: the paper's assumption 2. The whole MDP is never one draw of one member;
that reading would contradict Theorem 1 (see the guide on uncertainty).

Below them are the values of a policy in the mean MDP; above, checks of arguments, whose
errors name the argument and the index.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from pombu.errors import UsageError

# Rows given in float32 sum to 1 within about 1e-7 per entry.
SUM_TOLERANCE = 1e-6


def finite(name: str, value: Any, axes: str) -> Float64[ndarray, "..."]:
    """A read-only float64 copy with one dimension per letter of ``axes``."""
    array = np.array(value, dtype=np.float64)
    if array.ndim != len(axes) or 0 in array.shape:
        raise UsageError(
            f"{name} has shape {array.shape}; it must be [{','.join(axes)}] with no "
            "empty axis."
        )
    _refuse_where(name, array, ~np.isfinite(array), "it must be finite")
    array.flags.writeable = False
    return array


def _shaped(name: str, array: ndarray, shape: tuple[int, ...], like: str) -> None:
    """Refuse an array whose shape does not follow from another argument's."""
    if array.shape != shape:
        raise UsageError(
            f"{name} has shape {array.shape}; {like} asks for shape {shape}."
        )


def _non_negative(name: str, array: Float64[ndarray, "..."]) -> None:
    """Refuse negative entries."""
    _refuse_where(name, array, array < 0, "it must not be negative")


def _distributions(name: str, array: Float64[ndarray, "..."]) -> None:
    """Refuse an array whose last axis does not hold probabilities that sum to 1."""
    _non_negative(name, array)
    sums = array.sum(axis=-1)
    wrong = np.argwhere(np.abs(sums - 1.0) > SUM_TOLERANCE)
    if len(wrong):
        index = tuple(wrong[0])
        raise UsageError(
            f"{_entry(name, index)} sums to {sums[index]:.9g}; probabilities must sum "
            "to 1."
        )


def policy_for(policy: Any, states: int, actions: int) -> Float64[ndarray, "S A"]:
    """The policy as float64 ``[S, A]``, rows summing to 1."""
    array = finite("policy", policy, "SA")
    _shaped("policy", array, (states, actions), "the posterior")
    _distributions("policy", array)
    return array


def horizon_and_gamma(horizon: object, gamma: float | int) -> None:
    """Refuse a horizon below 1 and a gamma outside (0, 1]."""
    if not isinstance(horizon, int | np.integer) or horizon < 1:
        raise UsageError(f"horizon is {horizon}; it must be a whole number, 1 or more.")
    if not 0.0 < gamma <= 1.0:
        raise UsageError(f"gamma is {gamma}; it must lie in (0, 1].")


def _refuse_where(name: str, array: ndarray, wrong: ndarray, rule: str) -> None:
    if wrong.any():
        index = tuple(np.argwhere(wrong)[0])
        raise UsageError(f"{_entry(name, index)} is {array[index]:.9g}; {rule}.")


def _entry(name: str, index: tuple[Any, ...]) -> str:
    return f"{name}[{', '.join(str(int(i)) for i in index)}]" if index else name


@runtime_checkable
class TabularPosterior(Protocol):
    """What the Bellman equations ask of a posterior with independent states."""

    @property
    def mean_transitions(self) -> Float64[ndarray, "S A S"]:
        """Posterior mean of the transition probabilities."""

    @property
    def mean_rewards(self) -> Float64[ndarray, "S A"]:
        """Posterior mean of the rewards."""

    @property
    def transition_variance(self) -> Float64[ndarray, "S A S"]:
        """Posterior variance of each transition probability."""

    @property
    def reward_variance(self) -> Float64[ndarray, "S A"]:
        """Posterior variance of the rewards."""

    @property
    def possible(self) -> Bool[ndarray, "S A S"]:
        """Which transitions have positive probability in some MDP."""

    @property
    def terminal(self) -> Bool[ndarray, " S"]:
        """Known absorbing states: in every MDP they lead to themselves, reward 0."""

    @property
    def r_max(self) -> float:
        """The largest absolute reward that bounds the mean values."""

    def backup_variance(
        self, values: Float64[ndarray, " S"], gamma: float | int
    ) -> Float64[ndarray, "S A"]:
        """Variance of ``R_sa + gamma * P_sa . values`` for fixed values."""

    def expected_quadratic(self, C: Float64[ndarray, "S S"]) -> Float64[ndarray, "S A"]:
        """Mean of ``P_sa^T C P_sa``."""

    def row_covariance(
        self, state: int, action_weights: Float64[ndarray, " A"]
    ) -> Float64[ndarray, "Z Z"]:
        """Covariance of the weighted row ``sum_a w_a (R_sa, P_sa)`` at one state.

        The reward comes first, then the S transition probabilities: Z = 1 + S.
        """


@dataclass(frozen=True, eq=False, init=False)
class Posterior:
    """K members; at every state, independently, one of them is drawn.

    Attributes:
        P: transition probabilities ``[K,S,A,S]``.
        R: rewards ``[K,S,A]``, the reward of a member's row drawn together with it.
        weights: probabilities of the members ``[K]``; equal if not given.
    """

    P: Float64[ndarray, "K S A S"]
    R: Float64[ndarray, "K S A"]
    weights: Float64[ndarray, " K"]

    def __init__(self, P: Any, R: Any, weights: Any = None) -> None:
        P = finite("P", P, "KSAS")
        _shaped("P", P, (*P.shape[:3], P.shape[1]), "its own second axis")
        _distributions("P", P)
        R = finite("R", R, "KSA")
        _shaped("R", R, P.shape[:3], "P")
        equal = np.full(len(P), 1 / len(P))
        weights = finite("weights", equal if weights is None else weights, "K")
        _shaped("weights", weights, P.shape[:1], "P")
        _distributions("weights", weights)
        for name, array in (("P", P), ("R", R), ("weights", weights)):
            object.__setattr__(self, name, array)

    @cached_property
    def mean_transitions(self) -> Float64[ndarray, "S A S"]:
        """Posterior mean of the transition probabilities."""
        return self._mean(self.P)

    @cached_property
    def mean_rewards(self) -> Float64[ndarray, "S A"]:
        """Posterior mean of the rewards."""
        return self._mean(self.R)

    @cached_property
    def transition_variance(self) -> Float64[ndarray, "S A S"]:
        """Posterior variance of each transition probability."""
        return self._variance(self.P)

    @cached_property
    def reward_variance(self) -> Float64[ndarray, "S A"]:
        """Posterior variance of the rewards."""
        return self._variance(self.R)

    @cached_property
    def possible(self) -> Bool[ndarray, "S A S"]:
        """Which transitions have positive probability in some MDP."""
        return np.asarray((self.P[self.weights > 0] > 0).any(axis=0))

    @cached_property
    def terminal(self) -> Bool[ndarray, " S"]:
        """Known absorbing states: in every MDP they lead to themselves, reward 0."""
        unpaid = (self.R[self.weights > 0] == 0).all(axis=(0, 2))
        return np.asarray(_only_to_itself(self.possible) & unpaid)

    @property
    def r_max(self) -> float:
        """The largest absolute reward of any member."""
        return float(np.abs(self.R[self.weights > 0]).max())

    def backup_variance(
        self, values: Float64[ndarray, " S"], gamma: float | int
    ) -> Float64[ndarray, "S A"]:
        """Variance of ``R_sa + gamma * P_sa . values`` for fixed values."""
        return self._variance(self.R + gamma * self.P @ values)

    def expected_quadratic(self, C: Float64[ndarray, "S S"]) -> Float64[ndarray, "S A"]:
        """Mean of ``P_sa^T C P_sa``."""
        return self._mean(np.sum((self.P @ C) * self.P, axis=-1))

    def row_covariance(
        self, state: int, action_weights: Float64[ndarray, " A"]
    ) -> Float64[ndarray, "Z Z"]:
        """Covariance of the weighted row ``sum_a w_a (R_sa, P_sa)`` at one state."""
        rewards = self.R[:, state] @ action_weights
        rows = np.einsum("a,kas->ks", action_weights, self.P[:, state])
        deviations = np.column_stack([rewards, rows])
        deviations -= self.weights @ deviations
        return np.asarray((self.weights[:, None] * deviations).T @ deviations)

    def _mean(self, x: Float64[ndarray, "K *rest"]) -> Float64[ndarray, "*rest"]:
        return np.tensordot(self.weights, x, axes=1)

    def _variance(self, x: Float64[ndarray, "K *rest"]) -> Float64[ndarray, "*rest"]:
        return self._mean((x - self._mean(x)) ** 2)


@dataclass(frozen=True, eq=False, init=False)
class DirichletPosterior:
    """Independent Dirichlet rows and independent rewards of given mean and variance.

    Attributes:
        alpha: Dirichlet parameters ``[S,A,S]``; 0 marks an impossible transition.
        reward_mean: posterior mean of the rewards ``[S,A]``.
        reward_var: posterior variance of the rewards ``[S,A]``.
    """

    alpha: Float64[ndarray, "S A S"]
    reward_mean: Float64[ndarray, "S A"]
    reward_var: Float64[ndarray, "S A"]

    def __init__(self, alpha: Any, reward_mean: Any, reward_var: Any) -> None:
        alpha = finite("alpha", alpha, "SAS")
        _shaped("alpha", alpha, (*alpha.shape[:2], alpha.shape[0]), "its first axis")
        _non_negative("alpha", alpha)
        empty = np.argwhere(alpha.sum(axis=-1) == 0)
        if len(empty):
            s, a = empty[0]
            raise UsageError(
                f"alpha[{s}, {a}] is all 0; at least one next state needs a positive "
                "entry."
            )
        mean = finite("reward_mean", reward_mean, "SA")
        var = finite("reward_var", reward_var, "SA")
        for name, array in (("reward_mean", mean), ("reward_var", var)):
            _shaped(name, array, alpha.shape[:2], "alpha")
        _non_negative("reward_var", var)
        fields = (("alpha", alpha), ("reward_mean", mean), ("reward_var", var))
        for name, array in fields:
            object.__setattr__(self, name, array)

    @cached_property
    def mean_transitions(self) -> Float64[ndarray, "S A S"]:
        """Posterior mean of the transition probabilities."""
        return np.asarray(self.alpha / self.alpha.sum(axis=-1, keepdims=True))

    @property
    def mean_rewards(self) -> Float64[ndarray, "S A"]:
        """Posterior mean of the rewards."""
        return self.reward_mean

    @cached_property
    def transition_variance(self) -> Float64[ndarray, "S A S"]:
        """Posterior variance of each transition probability."""
        mean = self.mean_transitions
        return np.asarray(mean * (1 - mean) * self._shrink[..., None])

    @property
    def reward_variance(self) -> Float64[ndarray, "S A"]:
        """Posterior variance of the rewards."""
        return self.reward_var

    @property
    def possible(self) -> Bool[ndarray, "S A S"]:
        """Which transitions have positive probability in some MDP."""
        return np.asarray(self.alpha > 0)

    @cached_property
    def terminal(self) -> Bool[ndarray, " S"]:
        """Known absorbing states: in every MDP they lead to themselves, reward 0."""
        unpaid = ((self.reward_mean == 0) & (self.reward_var == 0)).all(axis=1)
        return np.asarray(_only_to_itself(self.possible) & unpaid)

    @property
    def r_max(self) -> float:
        """The largest absolute mean reward.

        The rewards themselves have no bound here. Theorem 3 only needs a bound of the
        mean values, which the mean rewards give.
        """
        return float(np.abs(self.reward_mean).max())

    def backup_variance(
        self, values: Float64[ndarray, " S"], gamma: float | int
    ) -> Float64[ndarray, "S A"]:
        """Variance of ``R_sa + gamma * P_sa . values`` for fixed values."""
        centred = values - (self.mean_transitions @ values)[..., None]
        spread = np.sum(self.mean_transitions * centred**2, axis=-1)
        return np.asarray(self.reward_var + gamma**2 * self._shrink * spread)

    def expected_quadratic(self, C: Float64[ndarray, "S S"]) -> Float64[ndarray, "S A"]:
        """Mean of ``P_sa^T C P_sa``."""
        at_mean = np.sum((self.mean_transitions @ C) * self.mean_transitions, axis=-1)
        return np.asarray(
            at_mean + self._shrink * (self.mean_transitions @ np.diagonal(C) - at_mean)
        )

    def row_covariance(
        self, state: int, action_weights: Float64[ndarray, " A"]
    ) -> Float64[ndarray, "Z Z"]:
        """Covariance of the weighted row ``sum_a w_a (R_sa, P_sa)`` at one state."""
        squares = action_weights**2
        rows = self.mean_transitions[state]
        shrunk = squares * self._shrink[state]
        covariance = np.zeros((1 + rows.shape[1],) * 2)
        covariance[0, 0] = squares @ self.reward_var[state]
        covariance[1:, 1:] = np.diag(shrunk @ rows) - (shrunk[:, None] * rows).T @ rows
        return covariance

    @cached_property
    def _shrink(self) -> Float64[ndarray, "S A"]:
        return np.asarray(1 / (self.alpha.sum(axis=-1) + 1))


def chain(H: int) -> tuple[Posterior, Float64[ndarray, "S A"]]:
    """The posterior and the uniform policy of Appendix C.

    States are ordered s_0, ..., s_H, then the terminal s_t; actions are a_0, a_1. The
    first member ends every episode at once; the second walks from s_i to s_{i-1} with
    reward 1 under a_1.
    """
    horizon_and_gamma(H, 1.0)
    states, end = H + 2, H + 1
    P = np.zeros((2, states, 2, states))
    R = np.zeros((2, states, 2))
    P[..., end] = 1.0
    walking = np.arange(1, H + 1)
    P[1, walking, 1, end] = 0.0
    P[1, walking, 1, walking - 1] = 1.0
    R[1, walking, 1] = 1.0
    return Posterior(P, R, np.array([0.5, 0.5])), np.full((states, 2), 0.5)


def _only_to_itself(possible: Bool[ndarray, "S A S"]) -> Bool[ndarray, " S"]:
    elsewhere = possible & ~np.eye(len(possible), dtype=bool)[:, None, :]
    return np.asarray(~elsewhere.any(axis=(1, 2)))


def mean_values(
    posterior: TabularPosterior,
    policy: Float64[ndarray, "S A"],
    horizon: int,
    gamma: float | int,
) -> Float64[ndarray, "{horizon}+1 S"]:
    """V^1, ..., V^{H+1} of the mean MDP; under assumptions 1 and 2 they are E[V^h]."""
    values = np.zeros((horizon + 1, len(policy)))
    for h in reversed(range(horizon)):
        q = posterior.mean_rewards + gamma * posterior.mean_transitions @ values[h + 1]
        values[h] = policy_average(policy, q)
    return values


def policy_average(
    policy: Float64[ndarray, "S A"], x: Float64[ndarray, "*batch S A"]
) -> Float64[ndarray, "*batch S"]:
    """``sum_a pi_sa x_sa``."""
    return np.asarray((policy * x).sum(axis=-1))
