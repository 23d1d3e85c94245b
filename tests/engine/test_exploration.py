"""The centred bonus, and what is measured of exploration policies."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import CONFIG, change, run

from pombu.algorithms.pombu.learner import Learner
from pombu.envs import load
from pombu.nn import GaussianPolicy, init_policy
from pombu.optim.metrics import centre_bonus, exploration_metrics
from pombu.parallel import Workers
from pombu.rollout.imagine import Imagined

POLICY = init_policy(jax.random.key(0), 2, 1, (3,))


def moved(direction: int, size: float = 0.1) -> GaussianPolicy:
    """The policy with one bias of its mean changed."""
    biases = (POLICY.mean.biases[0].at[direction].add(size), *POLICY.mean.biases[1:])
    mean = type(POLICY.mean)(POLICY.mean.weights, biases)
    return GaussianPolicy(mean, POLICY.log_std)


def look(policy: GaussianPolicy) -> Imagined:
    """Steps whose local uncertainty is 4 for the policy and 9 for all others."""
    same = bool(jnp.array_equal(policy.mean.biases[0], POLICY.mean.biases[0]))
    ones = jnp.ones((1, 6))
    observations = jax.random.normal(jax.random.key(1), (1, 6, 2))
    return Imagined(
        observations=observations,
        actions=ones[..., None],
        log_probs=ones,
        rewards=ones,
        values=ones,
        local=ones * (4.0 if same else 9.0),
        continues=ones,
        weight=ones,
        raw_rewards=ones,
        masked=jnp.zeros(()),
    )


def metrics(*explorers: GaussianPolicy) -> dict[str, float]:
    return exploration_metrics(POLICY, explorers, look, CONFIG.returns, Workers(1))


def test_the_bonus_is_centred_over_the_trajectories_that_run() -> None:
    uncertainty = jnp.array([[1.0, 2.0, 6.0], [5.0, 7.0, 100.0]])
    weight = jnp.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    found = centre_bonus(uncertainty, weight)
    assert found[:5].tolist() == [-2.0, -1.0, 3.0, -1.0, 1.0]


def test_the_policy_itself_explores_nothing() -> None:
    found = metrics(POLICY, POLICY)
    assert found["explorer_kl"] == pytest.approx(0.0, abs=1e-7)
    assert found["explorer_gain"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("explorers", "angle"),
    [
        ((moved(0), moved(0, 0.3)), 0.0),
        ((moved(0), moved(1)), 90.0),
        ((moved(0), moved(0, -0.1)), 180.0),
        ((moved(0),), 0.0),
    ],
)
def test_the_angle_between_changes(explorers: Any, angle: float) -> None:
    assert metrics(*explorers)["explorer_angle"] == pytest.approx(angle, abs=0.2)


def test_the_gain_is_that_of_the_root() -> None:
    """From sqrt(4) to sqrt(9)."""
    found = metrics(moved(0), moved(1))
    assert found["explorer_gain"] == pytest.approx(0.5, rel=1e-5)
    assert found["explorer_kl"] > 0


@pytest.mark.parametrize("centred", [False, True])
def test_every_iteration_with_explorers_says_what_they_sought(centred: bool) -> None:
    config = change(CONFIG, exploration__centred=centred)
    _, rows = run(Learner(load(config.env), config), 0, 2)
    assert rows[0]["explorer_kl"] == 0, "pi_theta itself explores before the first fit"
    for name in ("explorer_kl", "explorer_angle", "explorer_gain"):
        assert np.isfinite(rows[1][name])
    assert rows[1]["explorer_kl"] > 0
