"""Parts of a study, and runs that need not be done again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricated import write_run

from pombu.analysis.curves import find_curves
from pombu.cli import main
from pombu.envs import EnvConfig
from pombu.errors import UsageError
from pombu.studies.held import find_held
from pombu.studies.study import Job, Outcome, plan
from pombu.studies.study_file import read_study

STUDY = """
algorithms = ["pombu", "meppo"]
tasks = ["Point2D", "Point3D"]
seeds = 3
total_steps = 600
skip = ["HELD", "not there"]
out = "OUT"

[parts]
first = { algorithms = ["pombu"], tasks = ["Point2D"], seeds = [0] }
short = { seeds = [1, 2], total_steps = 300 }
"""


def written(tmp_path: Path, text: str = STUDY) -> Path:
    path = tmp_path / "study.toml"
    text = text.replace("HELD", str(tmp_path / "held"))
    path.write_text(text.replace("OUT", str(tmp_path / "out")))
    return path


def test_a_part_is_a_share_of_the_study(tmp_path: Path) -> None:
    study = read_study(written(tmp_path))
    assert study.part(None) == study
    (job,) = study.part("first").jobs()
    assert (job.algorithm, job.task, job.seed) == ("pombu", "Point2D", 0)
    short = study.part("short").jobs()
    assert len(short) == 2 * 2 * 2
    assert {job.total_steps for job in short} == {300}
    assert {replace(job, total_steps=600) for job in short} < set(study.jobs())
    with pytest.raises(UsageError, match="no part 'third'; there are first, short"):
        study.part("third")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("first = { seeds = [3] }", r"line 10, key parts\.first\.seeds: the study's"),
        ("first = { total_steps = 601 }", "own total_steps is 600"),
        ('first = { tasks = ["Ant"] }', "own tasks is"),
        ("first = { seeds = 0 }", r"parts\.first\.seeds: it is 0, and a list of"),
        ("first = { horizon = 7 }", "a table of algorithms, tasks, seeds, total_steps"),
        ("first = 7", "it is 7, and a table of"),
    ],
)
def test_a_part_asks_for_no_more(tmp_path: Path, line: str, words: str) -> None:
    text = STUDY.replace(
        'first = { algorithms = ["pombu"], tasks = ["Point2D"], seeds = [0] }', line
    )
    with pytest.raises(UsageError, match=words):
        read_study(written(tmp_path, text))


def test_what_is_the_same_run(tmp_path: Path) -> None:
    job = Job("pombu", EnvConfig("HalfCheetah"), 0, total_steps=1000)
    planned = plan([job], tmp_path / "out")
    (path,) = (one.path for one in planned)

    def is_held(other: Job) -> bool:
        folder = tmp_path / "held" / str(len(list((tmp_path / "held").glob("*"))))
        write_run(other, folder)
        return find_held(planned, find_curves([folder])) == {
            path: (folder, other.total_steps)
        }

    (tmp_path / "held").mkdir()
    assert is_held(job)
    assert is_held(replace(job, total_steps=5000))
    assert is_held(replace(job, env=EnvConfig("HalfCheetah", horizon=200)))
    for other in (
        replace(job, total_steps=999),
        replace(job, seed=1),
        replace(job, preset="paper"),
        replace(job, algorithm="meppo"),
        replace(job, env=EnvConfig("HalfCheetah", horizon=100)),
        replace(job, overrides=(("model.max_steps", 77),)),
    ):
        assert not is_held(other)


def test_a_study_skips_what_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path)
    study = read_study(file)
    (held,) = study.part("first").jobs()
    write_run(replace(held, total_steps=900), tmp_path / "held" / "a")
    asked: list[str] = []

    def note(planned: Any, *_: Any) -> Any:
        asked.extend(one.job.name for one in planned)
        return Outcome(())

    monkeypatch.setattr("pombu.studies.study.run_study", note)
    assert main(["study", str(file), "--json"]) == 0
    assert len(asked) == 11
    assert held.name not in asked
    said = capsys.readouterr()
    assert json.loads(said.out)["skipped"] == {held.name: str(tmp_path / "held" / "a")}
    assert f"{held.name} is skipped" in said.err
    assert "has 900 steps of it" in said.err.replace("\n", " ")

    asked.clear()
    assert main(["study", str(file), "--part", "first"]) == 0
    assert asked == []
    assert "every run is held elsewhere" in capsys.readouterr().out
    assert main(["study", str(file), "--part", "last"]) == 2
