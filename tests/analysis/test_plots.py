"""The picture of runs as they learn."""

import json
from pathlib import Path

import hand_made
import pytest
from fabricated import HEIGHTS, write_run

from pombu.analysis.curves import RETURNS, by_label, find_curves, read_curves
from pombu.analysis.plots import draw_learning, random_return
from pombu.analysis.report.charts import arrange, learning_curves, overfitting
from pombu.cli import main
from pombu.envs import EnvConfig
from pombu.studies.study import Job
from pombu.training.run import EVALUATION, Run


def test_no_two_labels_look_the_same(tmp_path: Path) -> None:
    for algorithm in HEIGHTS:
        write_run(
            Job(algorithm, EnvConfig("HalfCheetah"), total_steps=1000),
            tmp_path / algorithm,
        )
    figure = draw_learning(find_curves([tmp_path]))
    lines = figure.axes[0].get_lines()
    assert len(lines) == len(HEIGHTS)
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(HEIGHTS)


def test_runs_that_differ_in_much_are_all_there(tmp_path: Path) -> None:
    changes = {
        "plain": (),
        "clipped": (("returns.reward_clip", 5.0),),
        "other": (("model.members", 3), ("model.patience", 1), ("model.max_epochs", 2)),
    }
    for name, overrides in changes.items():
        job = Job(
            "pombu", EnvConfig("HalfCheetah"), total_steps=1000, overrides=overrides
        )
        write_run(job, tmp_path / name)
    groups = by_label(find_curves([tmp_path]))
    assert {c.run.path.name for group in groups.values() for c in group} == set(changes)


def test_a_setting_that_came_later_is_its_default(tmp_path: Path) -> None:
    """A run of an older version, whose config lacks a field, is a seed of the same."""
    for seed in (0, 1):
        job = Job("pombu", EnvConfig("HalfCheetah"), seed, total_steps=1000)
        write_run(job, tmp_path / str(seed))
    file = tmp_path / "0" / "config.json"
    content = json.loads(file.read_text())
    assert content["config"]["model"].pop("reinitialise_in_turn") is False
    assert content.pop("sha256")  # an older version wrote none
    file.write_text(json.dumps(content))
    ((label, group),) = by_label(find_curves([tmp_path])).items()
    assert label == "pombu (fast)"
    assert len(group) == 2


def measured(run: Run, chance: float = -5.0) -> Path:
    """The folder of a run whose last and random policy were measured."""
    content = {"deterministic": {"mean": 321.0}, "random": {"mean": chance}}
    (run.path / EVALUATION).write_text(json.dumps(content))
    return run.path


def test_every_return_has_one_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured(hand_made.write_run(tmp_path / "run"))
    (curve,) = read_curves([path])
    returns = curve.column("return_real")
    due = {"last": 321.0, "final": returns[-3:].mean(), "best": returns.max()}
    assert curve.returns == pytest.approx({**due, "random": -5.0})
    for command in ("plot", "report"):
        quick = ["--no-video", "--no-calibration"] if command == "report" else []
        assert main([command, str(path), *quick, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["returns"][str(path)] == pytest.approx(curve.returns)
    page = (path / "report.html").read_text()
    for kind, meaning in RETURNS.items():
        assert f"<th>{kind.capitalize()} return</th>" in page
        assert f"{kind}: {meaning}" in page
    assert main(["plot", str(path)]) == 0
    said = capsys.readouterr().out
    assert "last 321.0" in said
    assert "random -5.0" in said


def test_what_was_not_measured_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hand_made.write_run(tmp_path / "run").path
    assert main(["plot", str(path), "--json"]) == 0
    (returns,) = json.loads(capsys.readouterr().out)["returns"].values()
    assert set(returns) == {"final", "best"}


def test_a_random_policy_is_a_line_where_there_is_one_task(tmp_path: Path) -> None:
    two = [
        measured(hand_made.write_run(tmp_path / str(i), i), -2.0 * i) for i in range(2)
    ]
    other = measured(hand_made.write_run(tmp_path / "ant", task="pombu/Ant-v0"))
    assert random_return(read_curves(two)) == -1.0
    assert random_return(read_curves([*two, other])) is None
    legend = draw_learning(read_curves(two)).legends[0]
    assert "random policy" in [text.get_text() for text in legend.get_texts()]
    names = [t["name"] for t in learning_curves(arrange(read_curves(two))).traces]
    assert names.count("random policy") == 1


def test_no_legend_entry_without_a_line(tmp_path: Path) -> None:
    run = hand_made.write_run(tmp_path / "run")
    (curve,) = read_curves([run.path])
    for row in curve.rows:
        del row["return_model"]
    names = [t["name"] for t in overfitting(arrange([curve])).traces if t["showlegend"]]
    assert names == ["in the real environment"]
