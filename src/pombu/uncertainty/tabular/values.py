"""Values of a policy in the mean MDP."""

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.uncertainty.tabular.posteriors import TabularPosterior


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
