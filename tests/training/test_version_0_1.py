"""Runs that version 0.1 wrote still load, evaluate and resume."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import pombu
from pombu.cli import main
from pombu.training.metrics import deterministic, read_rows

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

each_algorithm = pytest.mark.parametrize("algorithm", ["pombu", "metrpo"])


@pytest.fixture
def folder(algorithm: str, tmp_path: Path) -> Path:
    """A copy of the run folder, as far as version 0.1 came."""
    return shutil.copytree(FIXTURES / f"{algorithm}-0.1", tmp_path / algorithm)


@each_algorithm
def test_an_old_run_loads_and_acts(algorithm: str, folder: Path) -> None:
    agent = getattr(pombu, algorithm.upper()).load(folder)
    assert (int(agent.state.iteration), int(agent.state.real_steps)) == (2, 120)
    assert (len(agent.episodes), agent.episodes.steps) == (4, 120)
    action, _ = agent.predict(np.zeros(2, np.float32))
    assert action.shape == (2,)
    assert (abs(action) <= np.float32(0.1)).all()


@each_algorithm
def test_an_old_run_evaluates_as_it_did(
    algorithm: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(folder), "--episodes", "20", "--json"]) == 0
    now = json.loads(capsys.readouterr().out)
    before = json.loads((folder / "evaluation.json").read_text())["deterministic"]
    np.testing.assert_allclose(now["returns"], before["returns"], rtol=1e-4)


@each_algorithm
def test_an_old_run_resumes_as_if_it_had_never_stopped(
    algorithm: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["real_steps"] == 240
    _, rows = read_rows(folder / "metrics.csv")
    _, whole = read_rows(FIXTURES / f"{algorithm}-0.1-whole.csv")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    for row, due in zip(
        map(deterministic, rows), map(deterministic, whole), strict=True
    ):
        # Version 0.1 did not look at what exploration policies seek.
        due.pop("imagined_steps")
        assert set(row) >= set(due)
        # Another processor may round differently, and training amplifies it.
        np.testing.assert_allclose(
            [row[name] for name in due], list(due.values()), rtol=2e-2, atol=1e-6
        )
