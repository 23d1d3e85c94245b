"""The checker finds what is wrong, and nothing where nothing is."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from pombu.envs import CATALOGUE, Report, check, load
from pombu.envs.checker import Walk, _bounds, kolmogorov_smirnov
from pombu.errors import UsageError


def verdicts(report: Report) -> dict[str, str]:
    return {finding.subject: finding.verdict for finding in report.findings}


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_papers_tasks_pass(name: str, noise: float) -> None:
    report = check(load(name, observation_noise=noise), steps=250)
    assert report.has_contract
    assert report.passed, report
    assert verdicts(report) == dict.fromkeys(
        [
            "bounds",
            "dtypes",
            "determinism",
            "reward",
            "termination",
            "start distribution",
        ],
        "pass",
    )


@pytest.mark.parametrize(
    ("name", "subject", "detail"),
    [
        ("WrongReward", "reward", "largest error 0.5 over 60 steps"),
        ("WrongRewardShape", "reward", r"shape \(60, 1\) where \(60,\)"),
        ("NotJittable", "reward", "Concretization"),
        ("WrongTermination", "termination", "missed 0 and ended"),
        ("WrongStarts", "start distribution", "differ, most of all number 0"),
    ],
)
def test_a_wrong_contract_fails(name: str, subject: str, detail: str) -> None:
    report = check(load(f"toys:{name}"), steps=60)
    (failed,) = [f for f in report.findings if f.verdict == "fail"]
    assert failed.subject == subject
    assert not report.passed
    assert re.search(detail, failed.detail)


def test_right_contract_of_a_users_environment_passes() -> None:
    report = check(load("toys:Endless"), steps=60)
    assert report.passed
    assert verdicts(report)["bounds"] == "warn"  # its second entry is constant


def test_without_a_contract_it_says_what_pombu_does_instead() -> None:
    report = check(load("Pendulum-v1"), steps=50)
    text = " ".join(finding.detail for finding in report.findings)
    assert not report.has_contract
    assert report.passed
    assert "learn it beside the dynamics" in text
    assert "never terminate" in text
    assert "reuse observed starts" in text


def test_bounds_tell_what_is_odd_and_nothing_else() -> None:
    env: gymnasium.Env[Any, Any] = gymnasium.Env()
    env.observation_space = spaces.Box(-1, 1, (2,))

    def said(first: list[float], second: list[float]) -> str:
        seen = np.array([first, second], np.float32).T
        walk = Walk(
            obs=seen[:1],
            actions=seen[:1],
            next_obs=seen[1:],
            rewards=np.zeros(1),
            terminated=np.zeros(1, bool),
            seen=seen,
            type_faults=frozenset(),
        )
        found = _bounds(walk, env)
        return f"{found.verdict}: {found.detail}"

    assert said([0, 1], [0, 0.5]) == (
        "pass: all observed numbers lie in their space (seen: 0 to 1)"
    )
    assert said([0, 1], [0, 0]) == "warn: 1 of 2 entries never change (seen: 0 to 1)"
    assert said([0, 3], [0, 1]) == (
        "warn: 1 of 4 observed numbers lie outside their space (seen: 0 to 3)"
    )


def test_unseeded_environment_fails_determinism() -> None:
    report = check(load("toys:Unseeded"), steps=30)
    assert verdicts(report)["determinism"] == "fail"


def test_faults_are_findings() -> None:
    (finding,) = check(load("toys:Raises"), steps=30).findings
    assert finding.verdict == "fail"
    assert "the cable came loose" in finding.detail
    report = check(load("toys:NanReward"), steps=30)
    assert verdicts(report)["bounds"] == "fail"


def test_steps_below_one() -> None:
    with pytest.raises(UsageError, match="steps is 0"):
        check(load("Point2D"), steps=0)


def test_kolmogorov_smirnov_by_hand() -> None:
    one = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    np.testing.assert_array_equal(kolmogorov_smirnov(one, one), [0.0])
    np.testing.assert_array_equal(kolmogorov_smirnov(one, one + 10), [1.0])
    np.testing.assert_array_equal(kolmogorov_smirnov(one, one + 2), [0.5])


def test_kolmogorov_smirnov_against_scipy() -> None:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    one = rng.normal(size=(50, 3)).astype(np.float32)
    two = rng.normal(0.3, 2, size=(80, 3)).astype(np.float32)
    due = [ks_2samp(a, b).statistic for a, b in zip(one.T, two.T, strict=True)]
    np.testing.assert_allclose(kolmogorov_smirnov(one, two), due)
