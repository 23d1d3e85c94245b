"""The paper's per-iteration quantities by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from pombu.dynamics.fit import FitReport
from pombu.optim.metrics import fit_metrics, improvement_metrics, improvement_summary
from pombu.optim.ppo import PolicyReport
from pombu.rollout.imagine import Imagined
from pombu.rollout.returns import Targets


def make_update(scale: float) -> Any:
    """Two steps of three trajectories, of which the last was masked."""
    ones = jnp.ones((2, 3))
    weight = ones.at[:, 2].set(0.0)
    numbers = [scale * x for x in (1.0, 2.0, 3.0, 4.0, 5.0)]
    imagined = Imagined(
        observations=jnp.zeros((2, 3, 1)),
        actions=jnp.zeros((2, 3, 1)),
        log_probs=ones,
        rewards=ones,
        values=jnp.array([[0.0, 2.0, 0.0], [4.0, 6.0, 0.0]]),
        local=ones,
        continues=ones,
        weight=weight,
        raw_rewards=scale * weight * jnp.array([1.0, 3.0, 0.0]),
        masked=jnp.float32(1.0),
    )
    uncertainty = scale * jnp.array([[1.0, 2.0, 99.0], [3.0, 4.0, 99.0]])
    unit = jnp.float32(10.0 / scale)
    returns = jnp.array([[1.0, 2.0, 99.0], [4.0, 5.0, 99.0]])
    goals = Targets(
        returns, ones, uncertainty, uncertainty**2, jnp.float32(scale), unit
    )
    report = PolicyReport(*(jnp.float32(x) for x in numbers))
    return report, jnp.float32(scale), imagined, goals, 0.25


def test_means_over_the_updates() -> None:
    """kl, L_exp, L_clip, L_std and the gradient's norm are 1 ... 5, and then 3 times
    that. A unit of the advantages is 10 and then 10/3 of the penalty's."""
    metrics = improvement_metrics(
        [improvement_summary(*make_update(scale)) for scale in (1.0, 3.0)]
    )
    assert metrics["kl"] == 2.0
    assert metrics["p_improve"] == 6.0
    assert metrics["penalty"] == 8.0
    assert metrics["penalty_share"] == pytest.approx(0.25 * 8.0 / 6.0)
    # Returns 1, 2, 4, 5 have variance 2.5; what V misses is 1, 0, 0, -1.
    assert metrics["explained_variance"] == pytest.approx(1.0 - 0.5 / 2.5)
    assert metrics["gradient_norm"] == 10.0
    assert metrics["value_loss"] == 2.0
    assert metrics["p_improve_ratio"] == pytest.approx(30.0 / 8.0)
    assert metrics["p_improve_prob"] == pytest.approx(norm.cdf(20.0 / 8.0))
    assert metrics["uncertainty"] == 2 * 2.5
    assert metrics["advantage_std"] == 2.0
    assert metrics["masked_trajectories"] == 2.0
    assert metrics["return_model"] == 3 * (2.0 + 6.0) / 2


def test_members_are_reported_one_by_one() -> None:
    metrics = fit_metrics(FitReport(np.array([1.0, 3.0]), np.array([10.0, 30.0])))
    assert metrics["validation_loss"] == 2.0
    assert (metrics["validation_loss_0"], metrics["validation_loss_1"]) == (1.0, 3.0)
    assert metrics["fit_epochs"] == 20.0
