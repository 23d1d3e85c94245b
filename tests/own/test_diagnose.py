"""What a diagnosis says of worlds that were spoilt on purpose, and of a real run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pombu import POMBU
from pombu.algorithms import registry
from pombu.analysis.diagnosis import (
    Ends,
    Measurements,
    Reliability,
    disagreement_over_error,
    measure,
    noisy_dimensions,
)
from pombu.analysis.verdict import LIMITS, find_limit, gap_of, rank_correlation
from pombu.cli import main
from pombu.envs import load

RNG = np.random.default_rng(0)
SPREAD = RNG.uniform(0.05, 0.2, (200, 2))
SIGNS = RNG.choice([-1.0, 1.0], (200, 2))
RETURNS = RNG.normal(100, 5, 10)
SOUND = Measurements(
    names=("height", "speed"),
    error=np.linspace(0.01, 0.2, 20)[:, None] * np.array([1.0, 2.0]),
    real=np.zeros((21, 2)),
    predicted=np.zeros((21, 5, 2)),
    disagreement=SPREAD,
    one_step_error=SPREAD * 1.2 * SIGNS,
    reward_error=RNG.normal(0, 0.1, 200),
    episode=np.repeat(np.arange(10), 20),
    real_returns=RETURNS,
    imagined_returns=RETURNS[:, None] + RNG.normal(0, 1, (10, 8)),
    ends=Ends(0, 0, 200, 0),
    action_std=0.5,
)
MOVING = [{"kl": 0.01, "return_real": float(x)} for x in range(12)]
STANDING = [{"kl": 0.01, "return_real": 50.0 + (x % 2)} for x in range(12)]
SOLVED = [{"kl": 0.01, "return_real": min(10.0 * x, 100.0)} for x in range(40)]
PROMISED = SOUND.imagined_returns
FLICKER = np.stack([SPREAD[:, 0], SIGNS[:, 1]], 1)


@pytest.mark.parametrize(
    ("measured", "rows", "limit"),
    [
        (SOUND, MOVING, "nothing in sight"),
        (SOUND, SOLVED, "converged"),
        (replace(SOUND, action_std=0.01), SOLVED, "converged"),
        (replace(SOUND, disagreement=SPREAD / 10), SOLVED, "converged"),
        (SOUND, STANDING, "no progress"),
        (replace(SOUND, action_std=0.01), STANDING, "exploration"),
        (replace(SOUND, action_std=0.01), MOVING, "nothing in sight"),
        (replace(SOUND, imagined_returns=PROMISED + 50), MOVING, "optimistic model"),
        (replace(SOUND, imagined_returns=PROMISED + 50), SOLVED, "optimistic model"),
        (replace(SOUND, imagined_returns=PROMISED - 50), MOVING, "pessimistic model"),
        (
            replace(SOUND, imagined_returns=PROMISED * np.nan),
            MOVING,
            "optimistic model",
        ),
        (replace(SOUND, reward_error=np.full(200, 1.0)), MOVING, "wrong reward"),
        (replace(SOUND, ends=Ends(8, 7, 192, 0)), MOVING, "wrong terminations"),
        (replace(SOUND, ends=Ends(0, 0, 200, 9)), MOVING, "wrong terminations"),
        (replace(SOUND, ends=Ends(8, 0, 192, 1)), MOVING, "nothing in sight"),
        (replace(SOUND, one_step_error=FLICKER), MOVING, "noisy observation"),
        (replace(SOUND, predicted=np.zeros((21, 1, 2))), MOVING, "too few members"),
        (replace(SOUND, disagreement=SPREAD / 10), MOVING, "uncertainty too low"),
        (
            replace(SOUND, disagreement=SPREAD * 10),
            [{"kl": 1e-6, "return_real": 1.0}],
            "uncertainty too high",
        ),
        (replace(SOUND, disagreement=SPREAD * 10), MOVING, "nothing in sight"),
    ],
)
def test_words_name_the_cause(measured: Measurements, rows: Any, limit: str) -> None:
    verdict = find_limit(measured, rows)
    assert verdict.limit == limit
    assert limit in LIMITS
    assert "after 20; worst there: speed (0.4)" in " ".join(verdict.sentences)


def test_a_gap_within_its_own_spread_or_of_no_size_is_chance() -> None:
    wild = RETURNS[:, None] + 30 + RNG.normal(0, 100, (10, 1)).repeat(8, 1)
    assert not gap_of(replace(SOUND, imagined_returns=wild)).matters
    small = gap_of(replace(SOUND, imagined_returns=PROMISED + 5))
    assert small.mean == pytest.approx(5, abs=1)
    assert not small.matters
    # Near 0, what was learned tells how large a return is.
    offset = replace(
        SOUND, real_returns=RETURNS * 0, imagined_returns=PROMISED * 0 + 1.0
    )
    assert gap_of(offset).matters
    assert not gap_of(offset, [{"return_real": -100.0}, {"return_real": 0.0}]).matters


def test_errors_that_come_back_are_no_noise() -> None:
    wrong = np.stack([SPREAD[:, 0], np.ones(200)], 1)
    assert noisy_dimensions(replace(SOUND, one_step_error=wrong)) == []
    assert noisy_dimensions(replace(SOUND, one_step_error=FLICKER)) == [1]


def test_constant_entries_and_reliability_are_told() -> None:
    levels = np.linspace(0, 1, 11)
    found = Reliability(levels, levels / 2, levels)
    measured = replace(SOUND, constant=(1,), reliability=found)
    text = " ".join(find_limit(measured, MOVING).sentences)
    assert "learned from it: speed" in text
    assert "holds 45% of errors" in text
    assert "and 90% as the run corrected it" in text


def test_numbers() -> None:
    assert disagreement_over_error(SOUND) == pytest.approx(1 / 1.2)
    assert rank_correlation(SPREAD[:, 0], SPREAD[:, 0] ** 3) == pytest.approx(1.0)
    assert rank_correlation(SPREAD[:, 0], np.ones(200)) == 0.0


@pytest.mark.slow
def test_spoilt_worlds() -> None:
    agent = POMBU("worlds:healthy", seed=0, evaluation_episodes=5).learn(3000)

    def limit_in(world: str) -> str:
        env = replace(agent.config.env, id=f"worlds:{world}")
        config = replace(agent.config, env=env)
        learner = registry.make("pombu", load(env), config)
        measured = measure(learner, agent.state, list(agent.episodes), 20, 0)
        return find_limit(measured, agent.history).limit

    assert limit_in("healthy") == "nothing in sight"
    assert limit_in("richer") == limit_in("poorer") == "wrong reward"
    assert limit_in("noisy") == "noisy observation"
    assert limit_in("ending") == "wrong terminations"


def test_a_run_is_diagnosed(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    flags = ["--preset", "smoke", "--total-steps", "40", "--out", str(run)]
    assert main(["train", "--env", "probes:corridor", *flags]) == 0
    capsys.readouterr()
    trust = ["--env", "probes:corridor", "--episodes", "4"]
    assert main(["diagnose", str(run), *trust]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Diagnosis of {run}: ")
    for name in ("error-by-horizon", "trajectories", "disagreement", "returns"):
        assert (run / "diagnosis" / f"{name}.png").stat().st_size > 10_000
    assert main(["diagnose", str(run), *trust, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["sentences"]
    assert len(summary["error_by_horizon"]) <= 12


def test_nothing_to_diagnose(tmp_path: Path, capsys: Any) -> None:
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
