"""The results page: what it counts, and that it can be written again from copies."""

import json
from pathlib import Path
from typing import Any

import pytest

from pombu.algorithms.registry import preset
from pombu.analysis.curves import read_curves
from pombu.cli import main
from pombu.training import config_file
from pombu.training.metrics import MetricsFile
from pombu.training.run import RunSpec, create

RETURNS = {1000: -900.0, 2000: -240.0, 3000: -300.0, 4000: -150.0}


def make_run(path: Path, algorithm: str, env: str, **changes: Any) -> Path:
    config = config_file.to_json(preset(algorithm, "smoke", env))
    for name, value in changes.items():
        config["env" if name in config["env"] else "model"][name] = value
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
    assert curve.needed(-250) == 2000
    assert curve.needed(-150) == 4000
    assert curve.needed(0) is None


def test_the_page_is_written_again_from_what_was_kept(
    runs: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["results", "--out", "results/own", "--title", "Own"]
    assert main([*flags, *runs]) == 0
    page = Path("results/own.md").read_text()
    assert "## Pendulum-v1" in page
    assert (
        "| pombu (smoke) | 0 | 4,000 | 0 | 2,000 | -230 | nan | -150 | 1.00 |" in page
    )
    assert "| pombu (smoke) | 0 | 4,000 | 0 | -230 | nan | -150 | 1.00 |" in page
    assert "| pombu (smoke), learned reward | 0 | 4,000 | 0 | -230 |" in page
    assert "-157 ± 89" in page
    assert str(tmp_path) not in page
    (kept,) = Path("results/own/Pendulum-v1").glob("*/versions.json")
    assert str(tmp_path) not in kept.read_text()
    assert json.loads(kept.read_text())[0]["packages"]
    assert main(flags) == 0
    assert Path("results/own.md").read_text() == page
    assert Path("results/own/Pendulum-v1/returns.png").stat().st_size > 10_000


def test_longer_runs_can_be_cut(
    runs: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["results", "--out", "results/own", "--up-to"]
    assert main([*flags, "2500", runs[0]]) == 0
    page = Path("results/own.md").read_text()
    assert (
        "| pombu (smoke) | 0 | 3,000 | 0 | 2,000 | -480 | nan | -240 | 0.75 |" in page
    )
    assert "`pombu results --out results/own --up-to 2500`" in page
    assert "cut at 2,500 real steps" in page
    assert main([*flags, "9000"]) == 0
    assert "| 0 | 4,000 | 0 | 2,000 | -230 |" in Path("results/own.md").read_text()
    assert main([*flags, "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_the_paper_s_numbers_stand_beside_its_tasks(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [
        str(make_run(Path("a"), "meppo", "HalfCheetah")),
        str(make_run(Path("b"), "slbo", "HalfCheetah", horizon=1000)),
        str(make_run(Path("c"), "slbo", "Ant", horizon=1000)),
        str(make_run(Path("d"), "slbo", "Ant", horizon=1000, alive_bonus=1.0)),
    ]
    Path("results/all").mkdir(parents=True)
    Path("results/all/remarks.md").write_text(
        "Made by hand: [video](video.gif), [more](../other), [far](https://far.away/x).\n"
    )
    assert main(["results", "--out", "results/all", *runs]) == 0
    page = Path("results/all.md").read_text()
    assert "[video](all/video.gif), [more](other), [far](https://far.away/x)" in page
    sections = {text.split("\n")[0]: text for text in page.split("\n## ")[1:]}
    assert "| 449 ± 226 | 8e+07 | 10.17 |" in sections["HalfCheetah"]
    assert "Target: 852, the paper's POMBU at 200k" in sections["HalfCheetah"]
    assert "| 1098 ± 166 |  |  |" in sections["HalfCheetah-h1000"]
    assert "the paper" not in sections["Ant-h1000"], "it has an alive bonus"
    assert "| 728 ± 123 |" in sections["Ant-h1000-alive1"]


def test_a_kept_run_is_not_overwritten(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    one = make_run(Path("a"), "pombu", "Point2D")
    other = make_run(Path("b"), "pombu", "Point2D", members=4)
    assert main(["results", "--out", "results/all", str(one)]) == 0
    assert main(["results", "--out", "results/all", str(one)]) == 0
    assert main(["results", "--out", "results/all", str(other)]) == 2
    assert "keeps a run with other settings than b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("train --env Pendulum-v1 --out {folder}/x", "train --env Pendulum-v1"),
        ("train --env Pendulum-v1 --out={folder}/x", "train --env Pendulum-v1"),
        ("train --env Pendulum-v1 --total-steps 4000", None),
        ("train --env Pendulum-v1 --total-steps 1000", "--total-steps 4000"),
        ("resume {folder}/x --total-steps 4000", "--total-steps 4000"),
        ("train --env Pendulum-v1 --data={folder}/data.npz", "--data=data.npz"),
    ],
)
def test_the_command_asks_for_what_was_run(
    given: str, shown: str | None, tmp_path: Path, capsys: Any
) -> None:
    path = make_run(tmp_path / "a", "pombu", "Pendulum-v1")
    words = given.format(folder=tmp_path).split()
    (path / "versions.json").write_text(json.dumps([{"command": ["pombu", *words]}]))
    assert main(["results", str(path), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page.md").read_text()
    _, command, _ = page.split("```")
    assert (shown or given) in command
    assert str(tmp_path) not in command
    assert "--out" not in command
