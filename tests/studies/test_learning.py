"""The picture of runs as they learn."""

from pathlib import Path

from fabricated import HEIGHTS, write_run

from pombu.studies.comparing import by_label
from pombu.studies.gathering import read_sources
from pombu.studies.jobs import Job
from pombu.studies.learning import draw_learning


def test_no_two_labels_look_the_same(tmp_path: Path) -> None:
    for algorithm in HEIGHTS:
        write_run(Job(algorithm, "HalfCheetah", total_steps=1000), tmp_path / algorithm)
    figure = draw_learning(read_sources([tmp_path]))
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
        job = Job("pombu", "HalfCheetah", total_steps=1000, overrides=overrides)
        write_run(job, tmp_path / name)
    groups = by_label(read_sources([tmp_path]))
    assert {c.run.path.name for group in groups.values() for c in group} == set(changes)
