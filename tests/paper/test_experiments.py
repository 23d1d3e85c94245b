"""The paper's figures and tables, drawn from runs that are written by hand."""

import csv
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fabricated import panels_of, write_run, write_runs
from rich.console import Console

from pombu.analysis.curves import find_curves
from pombu.analysis.statistics import interval
from pombu.cli import main
from pombu.cli.experiments import Reproduce
from pombu.envs import EnvConfig
from pombu.errors import UsageError
from pombu.paper.costs import planned_imagined_steps
from pombu.paper.experiments import PUBLISHED_1, at
from pombu.paper.panel_runs import Request, departures, gather_results
from pombu.paper.reproduce import PAGES, find, names, summarise
from pombu.paper.tables import return_rows
from pombu.studies.progress import PlainRuns
from pombu.studies.study import Job, Outcome

ITEMS = [name for name in names() if find(name).item]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws of the bootstrap and one timing; both have tests of their own."""
    for module in ("reproduce", "drawing", "claims"):
        few = partial(interval, draws=50)
        monkeypatch.setattr(f"pombu.paper.{module}.interval", few)
    monkeypatch.setattr("pombu.paper.tables.REPEATS", 1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run of every item at the fast profile."""
    folder = tmp_path_factory.mktemp("runs")
    write_runs([panel for name in ITEMS for panel in panels_of(name)], folder)
    return folder


def test_every_item_of_the_paper_is_there() -> None:
    wanted = "figure-1 figure-2 figure-3 figure-4 figure-5 figure-scatter table-1"
    wanted += " table-2 appendix-c appendix-training appendix-noise appendix-long"
    assert set(wanted.split()) <= set(names()) - set(PAGES)
    for name in ITEMS:
        assert find(name).default == "fast"


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_leaves_everything(name: str, runs: Path, tmp_path: Path) -> None:
    command = ["reproduce", name, "--from", str(runs), "--no-train"]
    assert main([*command, "--out", str(tmp_path), "--runs", str(tmp_path / "no")]) == 0
    for ending in (".png", ".pdf"):
        assert (tmp_path / f"{name}{ending}").stat().st_size > 5000
    with (tmp_path / "curves.csv").open() as file:
        found = list(csv.DictReader(file))
    panels = panels_of(name)
    assert {row["panel"] for row in found} == {panel.title for panel in panels}
    summary = json.loads((tmp_path / "summary.json").read_text())
    for panel in panels:
        arms = summary[panel.title]["arms"]
        assert set(arms) == {arm.label for arm in panel.arms}
        for label in set(arms) & set(panel.published):
            assert arms[label]["paper"]["mean"] == panel.published[label].mean
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["panels"][0]["env"]["id"] == panels[0].task
    line = json.loads((tmp_path / "line.json").read_text())
    assert line["missing"] == []
    assert line["command"] == f"pombu reproduce {name} --profile fast"

    # The kept files are enough to draw it again.
    again = ["reproduce", name, "--from", str(tmp_path / "runs"), "--no-train"]
    again += ["--out", str(tmp_path / "again"), "--runs", str(tmp_path / "no")]
    if name == "figure-3":
        assert main(again) == 0
        first = (tmp_path / "curves.csv").read_bytes()
        assert (tmp_path / "again" / "curves.csv").read_bytes() == first


def test_what_is_missing_is_said(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alpha_0 = runs / "HalfCheetah-pombu-fast-alpha0-seed0"
    command = ["reproduce", "figure-3", "--from", str(alpha_0), "--no-train"]
    command += ["--runs", str(tmp_path / "no"), "--out", str(tmp_path / "figure-3")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "missing: α in units of advantage, α = 0: seed 1, 2" in said
    assert "missing: α in units of reward, α = 1: seed 0, 1, 2" in said
    line = json.loads((tmp_path / "figure-3" / "line.json").read_text())
    assert line["note"] == "fewer seeds (1) than the paper's three"
    assert "(1 seed)" in line["says"]

    # The same item at another size stands beside it.
    shorter = [*command[:-1], str(tmp_path / "figure-3-short")]
    assert main([*shorter, "--total-steps", "20000"]) == 0

    assert main(["reproduce", "overview", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert page.count("| figure-3 | fast |") == 2
    assert "## figure-3\n" in page
    assert "## figure-3-short\n" in page
    assert "![figure-3](figure-3/figure-3.png)" in page
    assert "α = 1: seed 0, 1, 2" in page
    assert "## Not done yet" in page
    assert "`pombu reproduce table-2`" in page


def test_steps_and_seeds_can_be_asked_for(runs: Path, tmp_path: Path) -> None:
    command = ["reproduce", "figure-5", "--from", str(runs), "--no-train"]
    command += ["--runs", str(tmp_path / "no"), "--out", str(tmp_path)]
    assert main([*command, "--total-steps", "50000", "--seeds", "4"]) == 0
    line = json.loads((tmp_path / "line.json").read_text())
    assert "50k steps" in line["says"]
    assert line["command"].endswith("--total-steps 50000 --seeds 4")
    assert line["missing"][0].endswith("POMBU: seed 3")
    assert main([*command, "--seeds", "0"]) == 2


def test_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "figure-3", "--no-train", "--runs", str(tmp_path / "no")]
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "figure-3 has no run to draw" in capsys.readouterr().err
    assert main([*command, "--from", "nowhere", "--out", str(tmp_path)]) == 2
    assert "nowhere is no folder" in capsys.readouterr().err
    computed = ["reproduce", "figure-1", "--out", str(tmp_path), "--seeds", "2"]
    assert main([*computed, "--no-train"]) == 2
    said = capsys.readouterr().err
    assert "figure-1 is computed without training runs, so --no-train and" in said


@pytest.mark.parametrize("profile", ["smoke", "fast", "paper"])
def test_alpha_alone_differs_where_it_is_compared(profile: str) -> None:
    panels = panels_of("figure-3", profile)
    values = [[0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.025, 0.05, 0.1, 0.2]]
    assert len(panels) == (2 if profile == "fast" else 1)
    for panel, alphas in zip(panels, values, strict=False):
        configs = [panel.jobs(arm)[0].config() for arm in panel.arms]
        assert [config.alpha for config in configs] == alphas
        assert {replace(c, alpha=0.0) for c in configs} == {configs[0]}
        assert all(config.minimum_kl is None for config in configs)
    assert panels_of("appendix-training", profile) == panels


def test_alpha_has_the_paper_s_unit_and_that_of_fast() -> None:
    paper = Job("pombu", EnvConfig("HalfCheetah"), preset="paper").config().returns
    fast = Job("pombu", EnvConfig("HalfCheetah")).config()
    theirs, ours = (
        [panel.jobs(arm)[0].config() for arm in panel.arms]
        for panel in panels_of("figure-3")
    )
    for config in theirs:
        assert config.returns.uncertainty_units == paper.uncertainty_units == "reward"
        assert config.returns.variance_clip == paper.variance_clip
        assert replace(config, alpha=fast.alpha, returns=fast.returns) == fast
    assert ours[2] == fast


def test_noise_is_read_in_both_ways() -> None:
    for profile in ("smoke", "fast", "paper"):
        for name, sigmas in (("figure-5", {0.1}), ("appendix-noise", {0.01, 0.1})):
            noisy = [p.env for p in panels_of(name, profile) if p.env.observation_noise]
            found = {(env.observation_noise, env.noise_kind) for env in noisy}
            kinds = ("gaussian", "uniform")
            assert found == {(sigma, kind) for sigma in sigmas for kind in kinds}


def test_budgets_of_fast() -> None:
    def budgets(name: str) -> dict[tuple[str, int], int]:
        return {
            (panel.task, panel.env.horizon or 200): panel.total_steps
            for panel in panels_of(name)
        }

    walkers = {("Ant", 200): 100_000, ("Walker2d", 200): 100_000}
    short = {("HalfCheetah", 200): 100_000, ("Swimmer", 200): 50_000, **walkers}
    assert budgets("figure-2") == short
    tasks = ("HalfCheetah", "Ant", "Swimmer", "Walker2d")
    assert budgets("table-2") == {(task, 1000): 200_000 for task in tasks}
    assert budgets("appendix-long") == {(task, 1000): 100_000 for task in tasks}
    for name in ("figure-3", "figure-4", "appendix-training"):
        assert budgets(name) == {("HalfCheetah", 200): 50_000}


def test_fast_stands_beside_paper() -> None:
    (panel,) = panels_of("paper-beside-fast")
    assert [panel.jobs(arm)[0].preset for arm in panel.arms] == ["fast", "paper"]
    (panel,) = panels_of("paper-beside-fast", "smoke")
    assert {panel.jobs(arm)[0].preset for arm in panel.arms} == {"smoke"}


def test_the_other_items_have_the_preset_s_own_alpha() -> None:
    for name in ("figure-2", "figure-4", "table-1"):
        panel = panels_of(name)[0]
        config = panel.jobs(panel.arms[0])[0].config()
        assert (
            config.minimum_kl
            == Job("pombu", EnvConfig("HalfCheetah")).config().minimum_kl
        )


def test_figure_2_has_the_bonus_of_the_published_code() -> None:
    found = {
        panel.task: panel.env.alive_bonus for panel in panels_of("figure-2", "paper")
    }
    assert found == {"HalfCheetah": None, "Swimmer": None, "Ant": 1.0, "Walker2d": 1.0}


def test_one_seed_has_no_interval(runs: Path) -> None:
    request = Request("fast", runs, runs, train=False)
    watcher = PlainRuns.__new__(PlainRuns)
    panels = [replace(panel, seeds=(0,)) for panel in panels_of("figure-5")]
    single = summarise(gather_results(panels, request, watcher))
    panel = single["HalfCheetah, σ = 0.1, normal (text)"]
    iqm, better = panel["arms"]["POMBU"]["iqm"], panel["probability_of_improvement"]
    assert (iqm["low"], iqm["high"]) == (None, None)
    assert iqm["value"] == panel["arms"]["POMBU"]["mean"]
    assert better["POMBU over METRPO"] == {
        "value": 1.0,
        "low": None,
        "high": None,
        "real_steps": 100_000,
    }
    three = summarise(gather_results(panels_of("figure-4"), request, watcher))
    iqm = three["HalfCheetah, H = 200"]["arms"]["β = 1"]["iqm"]
    assert iqm["low"] < iqm["value"] < iqm["high"]


def test_table_1_says_whose_numbers_it_has(runs: Path) -> None:
    request = Request("fast", runs, runs, train=False)
    results = gather_results(
        panels_of("table-1"), request, PlainRuns.__new__(PlainRuns)
    )
    item = find("table-1").item
    assert item is not None
    table = item.numbers(results)["table"]
    named = [(row["method"], row["source"]) for row in table]
    assert named[:4] == [
        ("POMBU", "ours"),
        ("POMBU", "paper"),
        ("MEPPO", "ours"),
        ("MEPPO", "paper"),
    ]
    assert len(set(named)) == len(named)
    assert table[1]["return"] == "852 ± 21"


@pytest.mark.parametrize("method", ["pombu", "meppo", "metrpo", "slbo"])
def test_imagined_steps_are_those_of_table_1(method: str) -> None:
    """To the one or two digits that are printed.

    ME-TRPO's real steps were counted in its training split, two thirds of what it took:
    5e7 belong to 300,000 real steps.
    """
    steps = 300_000 if method == "metrpo" else 200_000
    job = Job(method, EnvConfig("HalfCheetah"), 0, "paper", steps)
    printed = PUBLISHED_1[method].imagined_steps
    assert printed is not None
    assert planned_imagined_steps(job) == pytest.approx(printed, rel=0.05)


def test_slbo_imagines_what_its_benchmark_does_at_h_1000() -> None:
    env = EnvConfig("HalfCheetah", horizon=1000)
    job = Job("slbo", env, 0, "paper", 200_000)
    assert planned_imagined_steps(job) == 64_000_000
    for one in (env, EnvConfig("HalfCheetah"), EnvConfig("Ant")):
        fast = Job("slbo", one, 0, "fast", 200_000)
        assert planned_imagined_steps(fast) == 10_000_000


@pytest.mark.parametrize("method", ["pombu", "meppo", "metrpo", "slbo", "mbmpo", "sac"])
def test_the_counter_of_imagined_steps_is_what_was_planned(method: str) -> None:
    """Of the recorded runs, which tests/test_recorded_runs.py repeats."""
    fixture = Path(__file__).parents[1] / "fixtures" / "recorded-runs.json"
    recorded = json.loads(fixture.read_text())["runs"][method]
    job = Job(method, EnvConfig("Point2D"), 0, "smoke", recorded["real_steps"])
    assert planned_imagined_steps(job) == recorded["imagined_steps"]


def test_smoke_runs_are_few_and_shared() -> None:
    panels = [panel for name in ITEMS for panel in panels_of(name, "smoke")]
    assert {panel.task for panel in panels} == {"Point2D"}
    jobs = {job for panel in panels for arm in panel.arms for job in panel.jobs(arm)}
    assert len(jobs) <= 88
    folders = {job.name for job in jobs}
    assert len(folders) <= 84


def test_profiles_keep_the_experiment() -> None:
    panel = panels_of("table-2", "paper")[0]
    assert panel.total_steps == 200_000
    assert panel.env.horizon == 1000
    assert panel.env.alive_bonus == 1.0
    assert panel.seeds == (0, 1, 2)
    assert at("paper", panel) == panel
    extended = [arm for p in panels_of("figure-2", "paper") for arm in p.arms[-2:]]
    assert all(arm.extended for arm in extended)
    assert panels_of("figure-2", "paper")[0].jobs(extended[0])[0].total_steps == 10**6


def test_the_table_has_the_paper_s_numbers_below_ours(runs: Path) -> None:
    request = Request("fast", runs, runs, train=False)
    results = gather_results(
        panels_of("table-2"), request, PlainRuns.__new__(PlainRuns)
    )
    found = return_rows(results)
    assert found[1][:3] == ("", "paper", "2010 ± 91")
    assert found[0][0] == "Ant"
    assert "±" in found[0][2]


def test_costs_are_counted_once_and_estimated_from_measured_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job("pombu", EnvConfig("HalfCheetah"), 0, "paper", 200_000)
    # 100 iterations: 20 updates of 200 x 200 steps, 99 times 10 explorers.
    assert planned_imagined_steps(job) == 100 * 20 * 40_000 + 99 * 10 * 40_000
    assert planned_imagined_steps(replace(job, algorithm="meppo")) == 100 * 20 * 40_000
    assert planned_imagined_steps(replace(job, algorithm="sac")) == 0
    # 33.3 iterations of 30 trajectories are 34: a run ends when its steps are taken.
    trpo = replace(job, algorithm="metrpo")
    assert planned_imagined_steps(trpo) == 34 * 20 * 250 * 200
    # Branches of `fast` are 100 steps long.
    fast = replace(job, preset="fast")
    assert planned_imagined_steps(fast) == 100 * 20 * 400 * 100
    write_run(job, tmp_path / "run")
    (tmp_path / "run" / "versions.json").write_text('[{"usable_cores": 2}]')
    shutil.copytree(tmp_path / "run", tmp_path / "kept")
    command = ["reproduce", "costs", "--json", "--from", str(tmp_path / "run")]
    command += [str(tmp_path / "kept")]
    assert main([*command, "--seeds", "2"]) == 2
    assert "costs trains nothing" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "costs")]) == 0
    answer = json.loads(capsys.readouterr().out)["numbers"]
    assert answer["runs"] > 100
    costs = json.loads((tmp_path / "costs" / "costs.json").read_text())
    cheetah = next(
        cost
        for cost in costs
        if (cost["algorithm"], cost["task"]) == ("pombu", "HalfCheetah")
        and cost["horizon"] == 200
    )
    # The fabricated run: 40 iterations of 30 s on two cores for 4e7 imagined steps.
    pace = 2 * 40 * 30 / 3600 / 4e7
    assert cheetah["core_hours"] == pytest.approx(pace * cheetah["imagined_steps"])
    slbo = next(cost for cost in costs if cost["algorithm"] == "slbo")
    assert slbo["core_hours"] is None
    assert [cost["horizon"] for cost in costs] == sorted(c["horizon"] for c in costs)
    page = (tmp_path / "costs" / "README.md").read_text()
    hours = sum(cost["core_hours"] or 0.0 for cost in costs)
    assert f"**{hours:,.0f} core-hours**, and " in page
    assert "| slbo | HalfCheetah | 200 | 3 | 600k | 2.9e+07 |  |" in page
    once = "| paper | pombu | HalfCheetah | 200 | 200k | 4e+07 | 0.33 | 2 |"
    assert page.count(once) == 1


def test_arms_are_compared_after_as_many_steps(tmp_path: Path) -> None:
    """One arm ends at 40,000 of 100,000 steps: nothing is said about more."""
    (panel,) = panels_of("figure-4")
    long, short = panel.arms
    for job in panel.jobs(long):
        write_run(job, tmp_path / "runs" / job.name)
    for job in panel.jobs(short):
        write_run(replace(job, total_steps=40_000), tmp_path / "runs" / job.name)
    command = ["reproduce", "figure-4", "--from", str(tmp_path / "runs"), "--no-train"]
    command += ["--runs", str(tmp_path / "no"), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    chance = summary[panel.title]["probability_of_improvement"]["β = 1 over β = 0"]
    assert chance["real_steps"] == 40_000
    for arm in summary["after_1e5_steps"].values():
        assert arm["real_steps"] == 40_000
    curves = find_curves([tmp_path / "runs"])
    at_40k = [
        curve.until(40_000).rows[-1]["return_real"]
        for curve in curves
        if curve.run.spec.config["beta"] == 1.0
    ]
    assert summary["after_1e5_steps"]["β = 1"]["returns"] == pytest.approx(at_40k)
    line = json.loads((tmp_path / "out" / "line.json").read_text())
    assert "β = 0 has " in line["says"]
    assert "(3 seeds) at 40k" in line["says"]
    assert line["note"] == "fewer seeds (3) than the paper's five"


def test_a_run_with_other_values_is_not_taken_for_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn where nothing better is there, and trained anew where that is allowed."""
    (panel,) = panels_of("figure-3", "smoke")
    jobs = panel.jobs(panel.arms[0])
    strange = (("returns.gamma", 0.3),)
    for job in jobs:
        changed = replace(job, overrides=(*job.overrides, *strange))
        write_run(changed if job.seed == 0 else job, tmp_path / str(job.seed))
    asked: list[str] = []

    def note(planned: Any, *_: Any) -> Any:
        asked.extend(one.job.name for one in planned)
        return Outcome(())

    monkeypatch.setattr("pombu.paper.panel_runs.run_study", note)
    request = Request("smoke", tmp_path / "out", tmp_path, (tmp_path,))
    only = replace(panel, arms=panel.arms[:1])
    results = gather_results([only], request, PlainRuns(Console()))
    assert asked == [jobs[0].name]
    assert departures(results) == {jobs[0].name: ["returns.gamma = 0.3"]}


def test_named_runs_are_drawn_and_nothing_is_trained(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `all`, too; what is computed comes from where it was computed."""

    def no_study(*_: Any) -> Any:
        raise AssertionError("a study was started")

    monkeypatch.setattr("pombu.paper.panel_runs.run_study", no_study)
    kept, out = tmp_path / "kept", tmp_path / "out"
    few = [panels_of("figure-4")[0]]
    write_runs([replace(panel, seeds=(0,)) for panel in few], kept / "a" / "runs")
    trials = [replace(panel, seeds=(1,)) for panel in few]
    write_runs(trials, kept / "exploration")
    chain = ["reproduce", "appendix-c", "--profile", "smoke"]
    assert main([*chain, "--out", str(kept / "chain")]) == 0
    command = ["reproduce", "all", "--from", str(kept), "--out", str(out)]
    command += ["--runs", str(tmp_path / "no")]
    assert main(command) == 0
    found = {path.name for path in out.iterdir()}
    assert {"README.md", "appendix-c", "figure-4", "targets"} <= found
    assert not {"figure-1", "figure-2", "uncertainty-inside"} & found
    for name in ("appendix-c.png", "appendix-c.csv", "summary.json"):
        again = (out / "appendix-c" / name).read_bytes()
        assert again == (kept / "chain" / name).read_bytes()
    line = json.loads((out / "appendix-c" / "line.json").read_text())
    assert line["profile"] == "smoke"
    summary = json.loads((out / "figure-4" / "summary.json").read_text())
    assert summary["HalfCheetah, H = 200"]["arms"]["β = 1"]["seeds"] == [0]


def test_training_beside_named_runs_is_asked_for() -> None:
    named = (Path("results"),)
    assert Reproduce("figure-2").trains
    assert not Reproduce("figure-2", sources=named).trains
    assert Reproduce("figure-2", sources=named, train=True).trains
    assert not Reproduce("figure-2", no_train=True).trains
    with pytest.raises(UsageError, match="--train and --no-train"):
        Reproduce("figure-2", train=True, no_train=True).run()


def test_the_misled_planner_is_drawn_again_from_its_tables(tmp_path: Path) -> None:
    kept = Path(__file__).parents[2] / "results" / "uncertainty-inside"
    found = find("uncertainty-inside")
    assert found.redraw is not None
    found.redraw("fast", kept, tmp_path)
    for name in ("point-pets.csv", "point-steve.csv", "summary.json"):
        assert (tmp_path / name).read_text() == (kept / name).read_text()
