"""Three uncertainty Bellman equations, X^h = local^h + gamma^2 sum pi P X^{h+1}.

They differ only in the local term and share one backup. Notation follows the paper;
Luis et al. (2023) write W for what is U here, and U for what is W here.
"""

from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.tabular.posteriors import (
    TabularPosterior,
    horizon_and_gamma,
    mean_values,
    policy_average,
    policy_for,
)
from pombu.uncertainty.tabular.variance import Method, value_moments


def pombu_bound(
    posterior: TabularPosterior, policy: Any, horizon: int, gamma: float | int = 1.0
) -> Float64[ndarray, "H S A"]:
    """The paper's bound U (Theorem 1): ``U >= D[Q]`` under assumptions 1 and 2."""
    return backup(
        pombu_local(posterior, policy, horizon, gamma), posterior, policy, gamma
    )


def ube_bound(
    posterior: TabularPosterior,
    policy: Any,
    horizon: int,
    gamma: float | int = 1.0,
    q_max: float | int | None = None,
) -> Float64[ndarray, "H S A"]:
    """The bound B of O'Donoghue et al. (2018), valid under assumptions 1, 2 and 3.

    ``q_max`` must bound every absolute Q-value; by default it is ``H * R_max``.
    """
    return backup(
        ube_local(posterior, policy, horizon, gamma, q_max), posterior, policy, gamma
    )


def exact_bound(
    posterior: TabularPosterior,
    policy: Any,
    horizon: int,
    gamma: float | int = 1.0,
    clip: bool = False,
    method: Method = "auto",
) -> Float64[ndarray, "H S A"]:
    """The exact uncertainty W (Luis et al. 2023): ``W = D[Q]`` under assumptions 1, 2.

    Its local term can be negative. ``clip=True`` cuts it at 0, which keeps the result
    between D[Q] and U. ``method`` is as in `posterior_variance`.
    """
    local = exact_local(posterior, policy, horizon, gamma, method)
    if clip:
        local = np.maximum(local, 0.0)
    return backup(local, posterior, policy, gamma)


def pombu_local(
    posterior: TabularPosterior, policy: Any, horizon: int, gamma: float | int = 1.0
) -> Float64[ndarray, "H S A"]:
    """``u^h = D[R_sa + gamma sum_s' P_sas' Vbar^{h+1}_s']``, covariance included."""
    pi = _checked(posterior, policy, horizon, gamma)
    next_values = mean_values(posterior, pi, horizon, gamma)[1:]
    return np.stack([posterior.backup_variance(v, gamma) for v in next_values])


def ube_local(
    posterior: TabularPosterior,
    policy: Any,
    horizon: int,
    gamma: float | int = 1.0,
    q_max: float | int | None = None,
) -> Float64[ndarray, "H S A"]:
    """``nu = D[R_sa] + gamma^2 q_max^2 sum_s' D[P_sas'] / Pbar_sas'`` at every step."""
    _checked(posterior, policy, horizon, gamma)
    largest = horizon * posterior.r_max if q_max is None else q_max
    if not (np.isfinite(largest) and largest >= 0):
        raise UsageError(f"q_max is {q_max}; it must be a finite number, 0 or more.")
    # Where the mean is 0 the probability is 0 in every MDP, and so is its term.
    reached = posterior.mean_transitions > 0
    ratios = np.divide(
        posterior.transition_variance,
        posterior.mean_transitions,
        out=np.zeros(reached.shape),
        where=reached,
    )
    nu = posterior.reward_variance + (gamma * largest) ** 2 * ratios.sum(axis=-1)
    return np.repeat(nu[None], horizon, axis=0)


def exact_local(
    posterior: TabularPosterior,
    policy: Any,
    horizon: int,
    gamma: float | int = 1.0,
    method: Method = "auto",
) -> Float64[ndarray, "H S A"]:
    """``w^h = u^h - gamma^2 g^h``; g is the aleatoric part that u wrongly keeps."""
    pi = _checked(posterior, policy, horizon, gamma)
    gap = value_moments(posterior, pi, horizon, gamma, method).gap
    return np.asarray(pombu_local(posterior, pi, horizon, gamma) - gamma**2 * gap)


def backup(
    local: Float64[ndarray, "H S A"],
    posterior: TabularPosterior,
    policy: Any,
    gamma: float | int = 1.0,
    following: Float64[ndarray, "H S A"] | None = None,
) -> Float64[ndarray, "H S A"]:
    """Solve ``X^h = local^h + gamma^2 sum_s'a' pi Pbar X^{h+1}`` with X^{H+1} = 0.

    Args:
        local: the local term of every step, state and action.
        posterior: gives the mean transitions.
        policy: action probabilities ``[S, A]``.
        gamma: the discount factor.
        following: given, one sweep of Theorem 2's iteration from this X instead of the
            solution.
    """
    pi = _checked(posterior, policy, len(local), gamma)
    solution = np.empty_like(local)
    later = np.zeros(pi.shape)
    for h in reversed(range(len(local))):
        spread = posterior.mean_transitions @ policy_average(pi, later)
        solution[h] = local[h] + gamma**2 * spread
        later = solution[h] if following is None else following[h]
    return solution


def _checked(
    posterior: TabularPosterior, policy: Any, horizon: int, gamma: float | int
) -> Float64[ndarray, "S A"]:
    horizon_and_gamma(horizon, gamma)
    return policy_for(policy, *posterior.mean_rewards.shape)
