"""The study files at the top of the repository: what they cover, and what it takes."""

from pathlib import Path

import pytest
from fabricated import panels_of

from pombu.cli import main
from pombu.paper.costs import MeasuredRun, Part, estimate, read_parts
from pombu.paper.reproduce import find, names
from pombu.studies.study import Job
from pombu.studies.study_file import read_study

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").glob("*.toml"))
PAPER_HOURS = 2.5


def test_they_train_everything_that_fast_draws() -> None:
    steps: dict[object, int] = {}
    for file in STUDIES:
        for job in read_study(file).jobs():
            key = (job.algorithm, job.preset, job.seed, job.config())
            steps[key] = max(steps.get(key, 0), job.total_steps or 0)
    for name in names():
        if find(name).item is None:
            continue
        for panel in panels_of(name):
            for arm in panel.arms:
                for job in panel.jobs(arm):
                    key = (job.algorithm, job.preset, job.seed, job.config())
                    assert steps[key] >= (job.total_steps or 0), (name, job.name)


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_parts_are_the_whole_study(file: Path) -> None:
    study = read_study(file)
    assert study.out == "runs/reproduce"
    assert study.skip == ("results",)
    if study.parts:
        shares = [job for name in study.parts for job in study.part(name).jobs()]
        assert set(study.jobs()) <= set(shares)


def test_no_part_takes_longer_than_two_and_a_half_hours() -> None:
    parts = read_parts(ROOT / "studies", [ROOT / "results"])
    assert len({part.title for part in parts}) == len(parts)
    for part in parts:
        assert None not in part.hours, part.title
        assert part.makespan <= PAPER_HOURS, part.title
    page = (ROOT / "studies" / "README.md").read_text()
    assert all(f"`{part.command}`" in page for part in parts)


def test_two_workers_take_turns() -> None:
    hours = (1.0, 0.25, 0.5, 1.0)
    part = Part(Path("studies/a.toml"), "b", (), 0, hours)
    # The second worker does 0.25, 0.5 and then 1.0.
    assert part.makespan == 1.75
    assert part.core_hours == 2.75
    assert part.command == "pombu study studies/a.toml --part b"
    assert part.title == "a b"


def test_an_estimate_is_that_of_the_run_most_alike() -> None:
    (panel, *_) = panels_of("table-1")
    job: Job = panel.jobs(panel.arms[0])[0]
    run = MeasuredRun(
        "a", "pombu", "fast", "HalfCheetah", 200, 50_000, 20_000_000, 9.0, 1, 0.5
    )
    assert estimate(job, [run]) == pytest.approx(1.0)
    assert estimate(job, [run], done_steps=75_000) == pytest.approx(0.25)
    meppo = panel.jobs(panel.arms[1])[0]
    assert estimate(meppo, [run]) == pytest.approx(1.0)
    assert estimate(panel.jobs(panel.arms[2])[0], [run]) is None


def test_a_folder_without_study_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "studies", "--out", str(tmp_path)]) == 2
    assert "has no study file" in capsys.readouterr().err
