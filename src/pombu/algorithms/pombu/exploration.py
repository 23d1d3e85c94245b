"""What exploration policies seek, and how far they get.

The bonus of Section 5 in its centred form, and three numbers per iteration that tell
whether exploration explores: how far the exploration policies are from the policy, in
how many directions they went, and what they gained in uncertainty.
"""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from pombu.dynamics.config import ReturnConfig
from pombu.nn import GaussianPolicy, kl
from pombu.optim.objectives import centred, weighted_mean
from pombu.optim.ppo import prepare
from pombu.parallel import Workers
from pombu.rollout.imagine import Imagined
from pombu.rollout.returns import Correction
from pombu.uncertainty.algorithm1 import standard_deviation


@jax.jit
def centre_bonus(
    uncertainty: Float[Array, "H N"], weight: Float[Array, "H N"]
) -> Float[Array, " n"]:
    """The centred bonus, as samples."""
    return centred(uncertainty, weight).ravel()


@jax.jit
def doubt_share(
    advantage: Float[Array, " n"],
    doubt: Float[Array, " n"],
    weight: Float[Array, " n"],
    alpha: float | Float[Array, ""],
) -> Float[Array, ""]:
    """Mean size of alpha times the centred doubt, over that of the advantages."""
    size = weighted_mean(jnp.abs(advantage), weight)
    return alpha * weighted_mean(jnp.abs(doubt), weight) / jnp.maximum(size, 1e-12)


NOTHING_SOUGHT = {"explorer_kl": 0.0, "explorer_angle": 0.0, "explorer_gain": 0.0}
"""What is reported of an iteration in which the policy itself explores."""


def exploration_metrics(
    policy: GaussianPolicy,
    explorers: Sequence[GaussianPolicy],
    look: Callable[[GaussianPolicy], Imagined],
    returns: ReturnConfig,
    workers: Workers,
    correction: Correction | None = None,
) -> dict[str, float]:
    """How far exploration policies are from the policy, and from one another.

    Args:
        policy: pi_theta, from which the exploration policies were trained.
        explorers: the exploration policies.
        look: imagines a batch that none of them was trained on, from the same starts
            and with the same random draws for every policy.
        returns: units of the uncertainty.
        workers: threads to imagine with.
        correction: how errors of different steps depend.
    """
    before, *after = workers.map(look, [policy, *explorers])

    def mean_uncertainty(seen: Imagined) -> float:
        """Mean sqrt(D) in units of scaled reward, the same for every policy."""
        _, goals = prepare(seen, returns, correction)
        return float(_mean_root(goals.variances, seen.weight))

    usual, sought = mean_uncertainty(before), [mean_uncertainty(s) for s in after]
    distances = [float(_mean_kl(policy, one, before)) for one in explorers]
    return {
        "explorer_kl": float(np.mean(distances)),
        "explorer_angle": _mean_angle(policy, explorers),
        "explorer_gain": float(np.mean(sought)) / usual - 1.0 if usual else 0.0,
    }


@jax.jit
def _mean_root(
    variances: Float[Array, "H N"], weight: Float[Array, "H N"]
) -> Float[Array, ""]:
    return weighted_mean(standard_deviation(variances).ravel(), weight.ravel())


@jax.jit
def _mean_kl(
    policy: GaussianPolicy, explorer: GaussianPolicy, imagined: Imagined
) -> Float[Array, ""]:
    """KL(pi_theta || explorer) over the states that pi_theta meets."""
    distances = kl(policy, explorer, imagined.observations)
    return weighted_mean(distances.ravel(), imagined.weight.ravel())


def _mean_angle(policy: GaussianPolicy, explorers: Sequence[GaussianPolicy]) -> float:
    """Degrees between the parameters' changes, over all pairs; 0 for one explorer."""
    origin = _vector(policy)
    changes = [_vector(one) - origin for one in explorers]
    unit = [change / max(np.linalg.norm(change), 1e-12) for change in changes]
    cosines = [one @ two for one, two in itertools.combinations(unit, 2)]
    if not cosines:
        return 0.0
    return float(np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0))).mean())


def _vector(policy: GaussianPolicy) -> Float[np.ndarray, " p"]:
    return np.asarray(ravel_pytree(policy)[0], np.float64)
