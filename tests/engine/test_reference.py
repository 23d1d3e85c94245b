"""The fused engine against a slow, plain POMBU with the same random draws."""

from typing import Any

import numpy as np
import pytest
from reference import Reference, doubles
from tiny import CONFIG, change, run

from pombu.algorithms.pombu.config import POMBUConfig
from pombu.algorithms.pombu.learner import Learner
from pombu.envs import load

METRICS = (
    "kl",
    "p_improve",
    "penalty",
    "uncertainty",
    "return_model",
    "validation_loss",
    "return_real",
    "return_deterministic",
)


def parameters(reference: Reference) -> list[Any]:
    """In the order of the engine's policy, value function and ensemble."""
    members = [np.stack(leaves) for leaves in zip(*reference.members, strict=True)]
    policy, value = reference.policy, reference.value
    networks = [*policy.mean[0::2], *policy.mean[1::2], policy.log_std]
    return [*networks, *value[0::2], *value[1::2], *members]


def run_plainly(config: POMBUConfig) -> tuple[Reference, list[Any]]:
    """Two iterations, so that exploration policies run too."""
    task = load(CONFIG.env)
    reference = Reference(task, config, Learner(task, config).init(3), 3)
    return reference, [reference.iterate() for _ in range(2)]


@pytest.fixture(scope="module")
def plain() -> tuple[Reference, list[Any]]:
    return run_plainly(CONFIG)


def assert_equal(reference: Reference, expected: list[Any]) -> None:
    """Float32 against float64: after about a hundred Adam steps of 1e-2 and more, all
    parameters are within 1e-4 and all metrics within 1e-3 of themselves."""
    state, rows = run(Learner(reference.task, reference.config), 3, 2)
    for row, answer in zip(rows, expected, strict=True):
        for name in METRICS:
            assert row[name] == pytest.approx(answer[name], rel=1e-3), name
    trained = doubles((state.policy, state.value, state.ensemble))
    for one, two in zip(trained, parameters(reference), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_two_iterations_equal_the_plain_ones(plain: Any) -> None:
    assert_equal(*plain)


def test_meppo_is_alpha_zero_beta_zero_and_no_exploration() -> None:
    config = change(CONFIG, alpha=0.0, beta=0.0, exploration__policies=0)
    assert_equal(*run_plainly(config))


def test_a_policy_that_avoids_uncertainty() -> None:
    assert_equal(*run_plainly(change(CONFIG, kappa=0.5, exploration__policies=0)))


def test_bfloat16_stays_near(plain: Any) -> None:
    """Matrix products of the members in bfloat16: over two iterations the returns move
    by at most 2 %, policy and value by less than a single step of Adam (1e-2)."""
    reference, expected = plain
    config = change(CONFIG, model__precision="bfloat16")
    state, rows = run(Learner(reference.task, config), 3, 2)
    for row, answer in zip(rows, expected, strict=True):
        for name in ("return_model", "return_real", "return_deterministic"):
            assert row[name] == pytest.approx(answer[name], rel=2e-2), name
        assert row["uncertainty"] == pytest.approx(answer["uncertainty"], rel=0.3)
    networks = doubles((state.policy, state.value))
    for one, two in zip(networks, parameters(reference)[: len(networks)], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-2)
