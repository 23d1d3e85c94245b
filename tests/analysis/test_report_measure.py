"""The calibration of a report: known errors, known noise, and a trained run."""

import json
from pathlib import Path

import numpy as np
import pytest

from pombu.analysis.report.measure import _compare
from pombu.cli import main
from pombu.errors import UsageError
from pombu.uncertainty.calibration import calibration


def test_sampling_noise_is_not_taken_for_overconfidence() -> None:
    draw = np.random.default_rng(0)
    n, real_noise, model_noise, uncertainty = 4000, 3.0, 2.0, 1.5
    truth = draw.normal(0, uncertainty, (n, 1))
    model = model_noise * draw.normal(size=(n, 8))
    real = truth + real_noise * draw.normal(size=(n, 4))
    found = _compare(real, model, np.full(n, uncertainty))
    assert found.noise == pytest.approx(np.sqrt(9 / 4 + 4 / 8), rel=0.05)
    scores = calibration(found.error, found.sigma)
    assert scores.mean_z_squared == pytest.approx(1.0, abs=0.1)
    assert calibration(found.error, found.uncertainty).mean_z_squared > 1.5


def test_start_states_that_leave_the_model_do_not_count() -> None:
    real = np.array([[1.0, 3.0], [5.0, 5.0]])
    model = np.array([[np.nan, 1.0], [4.0, 2.0]])
    found = _compare(real, model, np.array([9.0, 2.0]))
    assert found.error.tolist() == [2.0]
    assert found.uncertainty.tolist() == [2.0]
    assert found.noise == pytest.approx(1.0)
    with pytest.raises(UsageError, match="left the model"):
        _compare(real[:1], model[:1], np.ones(1))
    with pytest.raises(UsageError, match="left the model"):
        _compare(real[1:], model[1:], np.array([np.inf]))


def test_a_trained_run_is_recorded_and_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "point")
    flags = "train --env Point2D --preset smoke --total-steps 60 --out"
    assert main([*flags.split(), run]) == 0
    capsys.readouterr()
    assert main(["report", run, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["missing"] == []
    page = Path(answer["report"]).read_text()
    assert page.count('src="data:image/gif;base64,') == 1
    assert "Calibration of the uncertainty" in page
    assert "Mean z²" in page
