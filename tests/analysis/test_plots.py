"""The picture of runs as they learn."""

import json
from pathlib import Path

from fabricated import HEIGHTS, write_run

from pombu.analysis.curves import by_label, find_curves
from pombu.analysis.plots import draw_learning
from pombu.envs import EnvConfig
from pombu.studies.study import Job


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
