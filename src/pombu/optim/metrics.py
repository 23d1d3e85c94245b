"""The quantities of an iteration, from the reports of its updates.

Those of the paper, and what exploration policies seek and how far they get: the bonus
of Section 5 in its centred form, how far the exploration policies are from the policy,
in how many directions they went, and what they gained in uncertainty.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from pombu.data import Experience
from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.fit import FitReport
from pombu.envs import Episode
from pombu.nn import GaussianPolicy, entropy, kl
from pombu.optim.objectives import centred, weighted_mean
from pombu.optim.ppo import PolicyReport, prepare
from pombu.optim.trpo import StepReport
from pombu.parallel import Workers
from pombu.rollout.imagine import Imagined
from pombu.rollout.returns import Correction, Targets
from pombu.uncertainty.algorithm1 import standard_deviation


@jax.jit
def improvement_summary(
    report: PolicyReport,
    value_loss: Array,
    imagined: Imagined,
    goals: Targets,
    alpha: Array | float,
) -> dict[str, Array]:
    """One update in a few numbers, so that its batch need not be kept."""
    steps = jnp.maximum(imagined.weight.sum(), 1.0)
    trajectories = jnp.maximum(imagined.weight[0].sum(), 1.0)
    uncertainty = jnp.sum(goals.uncertainty * imagined.weight) / steps
    return {
        "kl": report.kl,
        "penalty": report.penalty,
        "taken": alpha * report.penalty,
        "explained_variance": explained_variance(imagined, goals),
        "p_improve": report.p_improve,
        "clipped_gain": report.p_improve * goals.advantage_unit,
        "gain": report.surrogate * goals.advantage_unit,
        "gradient_norm": report.gradient_norm,
        "value_loss": value_loss,
        "uncertainty": uncertainty,
        "advantage_std": goals.advantage_std,
        "masked_trajectories": imagined.masked,
        "return_model": jnp.sum(imagined.raw_rewards * imagined.weight) / trajectories,
        **_stops(imagined),
    }


def explained_variance(imagined: Imagined, goals: Targets) -> Array:
    """Share of the returns' variance that V_old foresaw; 1 is all of it."""
    weight = imagined.weight.ravel()
    returns = goals.returns.ravel()

    def variance(x: Array) -> Array:
        return weighted_mean((x - weighted_mean(x, weight)) ** 2, weight)

    left = variance(returns - imagined.values.ravel())
    return 1.0 - left / jnp.maximum(variance(returns), 1e-12)


def _stops(imagined: Imagined) -> dict[str, Array]:
    """Share of the trajectories that members' disagreement cut off, where it may."""
    if imagined.stopped is None:
        return {}
    return {"stopped_by_disagreement": imagined.stopped / imagined.weight.shape[1]}


def improvement_metrics(summaries: Sequence[dict[str, Array]]) -> dict[str, float]:
    """Means over the iteration's updates; return_model is that of the last one."""
    if not summaries:
        return {}
    rows = jax.device_get(list(summaries))
    mean = {name: float(sum(row[name] for row in rows)) / len(rows) for name in rows[0]}
    mean["return_model"] = float(rows[-1]["return_model"])
    mean["masked_trajectories"] *= len(rows)
    penalty = max(mean["penalty"], 1e-12)
    # Both are means over the same samples in the objective's own units.
    mean["penalty_share"] = mean.pop("taken") / max(mean["p_improve"], 1e-12)
    # p_improve is L_clip; the two below make it the probability the paper speaks of,
    # with gains in the units of the penalty.
    mean["p_improve_ratio"] = mean.pop("clipped_gain") / penalty
    z = mean.pop("gain") / penalty
    mean["p_improve_prob"] = 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
    return mean


@jax.jit
def trust_region_summary(
    report: StepReport, value_loss: Array, imagined: Imagined, goals: Targets
) -> dict[str, Array]:
    """One TRPO update in a few numbers, so that its batch need not be kept."""
    trajectories = jnp.maximum(imagined.weight[0].sum(), 1.0)
    return {
        "kl": report.kl,
        "surrogate": report.gain,
        "step_fraction": report.fraction,
        "rejected_steps": (report.fraction == 0).astype(jnp.float32),
        "value_loss": value_loss,
        "advantage_std": goals.advantage_std,
        "masked_trajectories": imagined.masked,
        "return_model": jnp.sum(imagined.raw_rewards * imagined.weight) / trajectories,
        **_stops(imagined),
    }


def trust_region_metrics(summaries: Sequence[dict[str, Array]]) -> dict[str, float]:
    """Means over the iteration's updates; counts are sums, return_model the last."""
    if not summaries:
        return {}
    rows = jax.device_get(list(summaries))
    total = {name: float(sum(row[name] for row in rows)) for name in rows[0]}
    counts = ("rejected_steps", "masked_trajectories")
    mean = {n: x if n in counts else x / len(rows) for n, x in total.items()}
    return {**mean, "return_model": float(rows[-1]["return_model"])}


def policy_metrics(
    policy: GaussianPolicy, collected: Sequence[Episode], experience: Experience
) -> dict[str, float]:
    """How random the policy is, what collecting earned, and the units of rewards."""
    return {
        "entropy": float(entropy(policy)),
        "return_collected": float(np.mean([e.rewards.sum() for e in collected])),
        "return_scale": float(experience.returns.std[0]),
    }


def fit_metrics(report: FitReport | None) -> dict[str, float]:
    """Validation losses of the members, and how long they trained."""
    if report is None:
        return {}
    losses = report.validation_loss
    return {
        "validation_loss": float(losses.mean()),
        "fit_epochs": float(report.epochs.mean()),
        **{f"validation_loss_{k}": float(loss) for k, loss in enumerate(losses)},
    }


@jax.jit
def centre_bonus(
    uncertainty: Float[Array, "H N"], weight: Float[Array, "H N"]
) -> Float[Array, " n"]:
    """The centred bonus, as samples."""
    return centred(uncertainty, weight).ravel()


@jax.jit
def penalty_share(
    advantage: Float[Array, " n"],
    uncertainty: Float[Array, " n"],
    weight: Float[Array, " n"],
    alpha: float | Float[Array, ""],
) -> Float[Array, ""]:
    """Mean size of alpha times the centred uncertainty, over that of the advantages."""
    size = weighted_mean(jnp.abs(advantage), weight)
    return (
        alpha * weighted_mean(jnp.abs(uncertainty), weight) / jnp.maximum(size, 1e-12)
    )


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
