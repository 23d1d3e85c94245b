"""The smoke profile from end to end, with real runs."""

import json
import time
from pathlib import Path

import pytest

from pombu.cli import main
from pombu.paper.reproduce import PAGES, names


def test_figure_4_from_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runs = tmp_path / "figure-4", tmp_path / "runs"
    command = ["reproduce", "figure-4", "--profile", "smoke", "--json"]
    command += ["--seeds", "1", "--out", str(out), "--runs", str(runs)]
    assert main(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["missing"] == []
    seeds = answer["numbers"]["after_1e5_steps"]
    assert set(seeds) == {"β = 10", "β = 0"}
    assert all(len(arm["returns"]) == 1 for arm in seeds.values())
    assert (out / "figure-4.png").exists()
    assert len(list((out / "runs").iterdir())) == 2
    assert sorted(path.name for path in runs.glob("*/config.json")) == 2 * [
        "config.json"
    ]

    # Everything is there now: the second time only draws.
    picture = (out / "figure-4.png").read_bytes()
    assert main(command) == 0
    assert "running" not in capsys.readouterr().err
    assert (out / "figure-4.png").read_bytes() == picture


@pytest.mark.slow
def test_everything_in_ten_minutes(tmp_path: Path) -> None:
    command = ["reproduce", "all", "--profile", "smoke"]
    command += ["--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
    start = time.monotonic()
    assert main(command) == 0
    assert time.monotonic() - start < 600  # on two cores that have nothing else to do
    for name in set(names()) - set(PAGES):
        for ending in (".png", ".pdf"):
            assert (tmp_path / name / f"{name}{ending}").exists()
        assert (tmp_path / name / "line.json").exists()
    page = (tmp_path / "README.md").read_text()
    assert "Not done yet" not in page
