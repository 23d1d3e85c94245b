"""The paper's per-iteration quantities from the reports of an iteration's updates."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pombu.data import Experience
from pombu.dynamics.fit import FitReport
from pombu.envs import Episode
from pombu.nn import GaussianPolicy, entropy
from pombu.optim.objectives import weighted_mean
from pombu.optim.ppo import PolicyReport
from pombu.optim.trpo import StepReport
from pombu.rollout.imagine import Imagined
from pombu.rollout.returns import Targets


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
