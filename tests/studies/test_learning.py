"""The picture of runs as they learn."""

from pathlib import Path

from fabricated import HEIGHTS, write_run

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
