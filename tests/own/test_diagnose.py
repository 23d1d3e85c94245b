"""What a diagnosis says of measurements whose cause is known, and of a real run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pombu.analysis.diagnosis import (
    Measurements,
    disagreement_over_error,
    find_limit,
    optimism,
    rank_correlation,
)
from pombu.cli import main

RNG = np.random.default_rng(0)
SPREAD = RNG.uniform(0.1, 1.0, 200)
SOUND = Measurements(
    error=np.linspace(0.01, 0.2, 20)[:, None] * np.array([1.0, 2.0]),
    real=np.zeros((21, 2)),
    predicted=np.zeros((21, 3, 2)),
    disagreement=SPREAD,
    one_step_error=SPREAD * 1.2,
    real_returns=RNG.normal(100, 5, 10),
    imagined_returns=RNG.normal(100, 5, 10),
    action_std=0.5,
    constant=(),
)
MOVING = [{"kl": 0.01, "return_real": float(x)} for x in range(12)]
STANDING = [{"kl": 0.01, "return_real": 50.0 + (x % 2)} for x in range(12)]


@pytest.mark.parametrize(
    ("measured", "rows", "limit"),
    [
        (SOUND, MOVING, "nothing in sight"),
        (SOUND, STANDING, "nothing in sight"),
        (
            replace(SOUND, imagined_returns=np.full(10, 150.0)),
            MOVING,
            "model bias",
        ),
        (replace(SOUND, imagined_returns=np.zeros(0)), MOVING, "model bias"),
        (replace(SOUND, disagreement=SPREAD / 10), MOVING, "uncertainty too low"),
        (
            replace(SOUND, disagreement=SPREAD * 10),
            [{"kl": 1e-6, "return_real": 1.0}],
            "uncertainty too high",
        ),
        (replace(SOUND, disagreement=SPREAD * 10), MOVING, "nothing in sight"),
        (replace(SOUND, action_std=0.01), STANDING, "exploration"),
        (replace(SOUND, action_std=0.01), MOVING, "nothing in sight"),
    ],
)
def test_words_name_the_cause(measured: Measurements, rows: Any, limit: str) -> None:
    verdict = find_limit(measured, rows)
    assert verdict.limit == limit
    assert "after 20" in " ".join(verdict.sentences)
    assert "entry 1 is the worst" in " ".join(verdict.sentences)


def test_a_single_member_is_not_asked_whether_it_agrees_with_itself() -> None:
    alone = replace(
        SOUND, predicted=np.zeros((21, 1, 2)), disagreement=np.zeros_like(SPREAD)
    )
    verdict = find_limit(alone, MOVING)
    assert verdict.limit == "nothing in sight"
    assert "disagree" not in " ".join(verdict.sentences)


def test_constant_entries_are_told() -> None:
    text = " ".join(find_limit(replace(SOUND, constant=(1,)), MOVING).sentences)
    assert "entries 1 never changed" in text


def test_the_coverage_of_corrected_intervals_is_told() -> None:
    fitted = {"calibration_scale": 2.0, "calibration_rho": 0.5, "coverage_90": 0.87}
    text = " ".join(find_limit(SOUND, [*MOVING, {**MOVING[-1], **fitted}]).sentences)
    assert "sigma times 2" in text
    assert "87% of held-out n-step errors" in text
    assert "sigma times" not in " ".join(find_limit(SOUND, MOVING).sentences)


def test_numbers() -> None:
    assert disagreement_over_error(SOUND) == pytest.approx(1 / 1.2)
    assert rank_correlation(SPREAD, SPREAD**3) == pytest.approx(1.0)
    assert rank_correlation(SPREAD, -SPREAD) == pytest.approx(-1.0)
    assert rank_correlation(SPREAD, np.ones(200)) == 0.0
    gap, biased = optimism(replace(SOUND, imagined_returns=SOUND.real_returns + 1))
    assert gap == pytest.approx(1.0)
    assert not biased


def test_a_run_is_diagnosed(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    flags = ["--preset", "smoke", "--total-steps", "40", "--out", str(run)]
    assert main(["train", "--env", "probes:corridor", *flags]) == 0
    capsys.readouterr()
    trust = ["--env", "probes:corridor", "--episodes", "4"]
    assert main(["diagnose", str(run), *trust]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"What limits {run}: ")
    for name in ("error-by-horizon", "trajectories", "disagreement"):
        assert (run / "diagnosis" / f"{name}.png").stat().st_size > 10_000
    assert main(["diagnose", str(run), *trust, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["sentences"]
    assert len(summary["error_by_horizon"]) <= 12


def test_nothing_to_diagnose(tmp_path: Path, capsys: Any) -> None:
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
