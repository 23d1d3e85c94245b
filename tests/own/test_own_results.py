"""The results page: what it counts, and that it can be written again from copies."""

import json
from pathlib import Path
from typing import Any

import pytest

from pombu.cli import main
from pombu.presets import preset
from pombu.studies.curves import read_curves
from pombu.studies.own_environments import needed
from pombu.training import config_file
from pombu.training.metrics import MetricsFile
from pombu.training.run import RunSpec, create

RETURNS = {1000: -900.0, 2000: -240.0, 3000: -300.0, 4000: -150.0}


def make_run(path: Path, algorithm: str, env: str, **model: str) -> Path:
    config = config_file.to_json(preset(algorithm, "smoke", env))
    config["model"].update(model)
    run = create(path, RunSpec(algorithm, "smoke", 0, 4000, config))
    run.record_start()
    file = MetricsFile(run.metrics)
    for number, (steps, value) in enumerate(RETURNS.items()):
        row = {"iteration": number + 1, "real_steps": steps, "return_real": value}
        file.append({**row, "iteration_seconds": 900.0})
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [
        str(make_run(tmp_path / "a", "pombu", "Pendulum-v1")),
        str(make_run(tmp_path / "b", "pombu", "Point2D")),
        str(make_run(tmp_path / "c", "pombu", "Point2D", reward="learned")),
    ]


def test_steps_before_the_first_evaluation_that_reached_the_target(
    runs: list[str],
) -> None:
    curve = read_curves([Path(runs[0])])[0]
    assert needed(curve, -250) == 2000
    assert needed(curve, -150) == 4000
    assert needed(curve, 0) is None


def test_the_page_is_written_again_from_what_was_kept(
    runs: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["results", "--by-env", "--out", "results/own", "--title", "Own"]
    assert main([*flags, *runs]) == 0
    page = Path("results/own.md").read_text()
    assert "## Pendulum-v1" in page
    assert (
        "| pombu (smoke) | learned | 0 | 4,000 | 2,000 | -230 | -150 | 1.00 |" in page
    )
    assert "| pombu (smoke) | known | 0 | 4,000 |  | -230 | -150 | 1.00 |" in page
    assert "| pombu (smoke), learned reward | learned | 0 | 4,000 |  |" in page
    assert "-157 ± 89" in page
    assert str(tmp_path) not in page
    (kept,) = Path("results/own/Pendulum-v1").glob("*/versions.json")
    assert str(tmp_path) not in kept.read_text()
    assert json.loads(kept.read_text())[0]["packages"]
    assert main(flags) == 0
    assert Path("results/own.md").read_text() == page
    assert Path("results/own/Pendulum-v1/returns.png").stat().st_size > 10_000
