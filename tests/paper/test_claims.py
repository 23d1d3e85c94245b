"""The paper's claims, judged by runs that are written by hand."""

from functools import partial
from pathlib import Path

import pytest
from fabricated import panels_of, write_run, write_runs

from pombu.analysis.curves import find_curves
from pombu.analysis.statistics import Interval, interval
from pombu.cli import main
from pombu.paper.claims import CLAIMS, claim_rows, judge, spell, write_claims
from pombu.studies.study import Job


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pombu.paper.claims.interval", partial(interval, draws=50))
    monkeypatch.setattr("pombu.paper.tables.REPEATS", 1)


def test_a_verdict_needs_the_whole_interval() -> None:
    assert judge(Interval(0.9, 0.6, 1.0), 0.5) == "reproduces"
    assert judge(Interval(0.1, 0.0, 0.4), 0.5) == "does not reproduce"
    assert judge(Interval(0.9, 0.5, 1.0), 0.5) == "undecided"
    assert judge(Interval(1.0, None, None), 0.5) == "undecided"
    assert spell(Interval(0.123, 0.1, 0.2), ".2f") == "0.12 [0.10, 0.20]"
    assert spell(Interval(3.0, None, None), ".0f") == "3"


def test_without_runs_every_claim_says_so(tmp_path: Path) -> None:
    page = write_claims("fast", tmp_path)
    for claim in CLAIMS:
        assert f"| {claim.says} | not run |" in page
    rows = claim_rows("fast", [])
    assert {row.verdict for row in rows} == {"not run"}
    # Five baselines in Figure 2's four tasks, five in Table 2's.
    assert sum("better" in row.claim for row in rows) == 4 * 5 + 4 * 5
    noisy = {row.where for row in rows if row.claim == "robust to noise"}
    assert len(noisy) == 4


def test_claims_follow_from_the_runs(tmp_path: Path) -> None:
    runs = tmp_path / "figure-2" / "runs"
    cheetah = panels_of("figure-2")[0]
    write_runs([cheetah], runs)
    for panel in panels_of("figure-3"):
        for job in panel.jobs(panel.arms[0])[:1] + panel.jobs(panel.arms[2])[:1]:
            write_run(job, runs / job.name)
    rows = {
        (row.claim, row.where, row.compared): row
        for row in claim_rows("fast", find_curves([tmp_path]))
    }
    place = "HalfCheetah, H = 200"
    row = rows["better than each baseline, H = 200", place, "POMBU over MEPPO"]
    assert row.verdict == "reproduces"
    assert row.improvement == "1.00 [1.00, 1.00]"
    assert row.seeds == "0, 1, 2 and 0, 1, 2"
    ours, theirs = (
        [c.final() for c in find_curves([runs]) if c.run.path.name.startswith(name)]
        for name in ("HalfCheetah-pombu-fast-seed", "HalfCheetah-meppo")
    )
    mean = sum(ours) / 3 - sum(theirs) / 3
    assert row.difference.startswith(f"{mean:.0f} [")

    spread = rows["robust over seeds", place, "POMBU below MEPPO"]
    assert spread.numbers.startswith("std ")
    cheap = rows["small cost of the uncertainty", place, "Algorithm 1 of a run's time"]
    assert "% (paper 0.2 %)" in cheap.numbers
    single = rows["α helps", f"{place}, α in units of reward", "α = 0.5 over α = 0"]
    assert (single.verdict, single.seeds) == ("undecided", "0 and 0")
    unrun = rows["α helps", f"{place}, α in units of reward", "α = 1 over α = 0"]
    assert unrun.verdict == "not run"


def test_two_seeds_decide_nothing(tmp_path: Path) -> None:
    (cheetah, *_) = panels_of("figure-2")
    for arm in cheetah.arms[:2]:
        for job in cheetah.jobs(arm)[:2]:
            write_run(job, tmp_path / job.name)
    rows = [r for r in claim_rows("fast", find_curves([tmp_path])) if r.numbers]
    compared = [row for row in rows if "POMBU over MEPPO" in row.compared]
    assert [row.improvement for row in compared] == ["1.00 [1.00, 1.00]"]
    assert {row.verdict for row in compared} == {"undecided"}


def test_runs_of_another_preset_s_values_do_not_count(tmp_path: Path) -> None:
    (cheetah, *_) = panels_of("figure-2")
    for arm in cheetah.arms[:2]:
        for job in cheetah.jobs(arm):
            old = (*job.overrides, ("returns.gamma", 0.3))
            changed = Job(job.algorithm, job.env, job.seed, "fast", 100_000, old)
            write_run(changed, tmp_path / job.name)
    assert len(find_curves([tmp_path])) == 6
    rows = claim_rows("fast", find_curves([tmp_path]))
    assert {row.verdict for row in rows} == {"not run"}


def test_the_overview_begins_with_the_claims(tmp_path: Path) -> None:
    assert main(["reproduce", "overview", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert page.index("## The paper's claims") < page.index("## Every item")
