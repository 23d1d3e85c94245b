"""What `pombu bench` promises, on tiny sizes."""

import json
from functools import partial
from typing import Any

import jax
import pytest
from sizes import small

from pombu.bench import algorithms, suite, workload
from pombu.cli import main

TINY = suite.Effort(2, 0.0, fit_steps=5, collections=1, whole_iterations=False)

PROMISED = (
    "limit.f32_gflops",
    "limit.bf16_gflops",
    "imagination.steps_per_s",
    "imagination.share_of_limit",
    "imagination.vs_pytorch",
    "fit.transitions_per_s",
    "fit.share_of_limit",
    "fit.vs_pytorch",
    "update.per_s",
    "update.share_of_limit",
    "update.vs_pytorch",
    "uncertainty.overhead",
    "pombu_over_meppo",
    "baselines.trpo.steps_per_s",
    "baselines.metrpo.steps_per_s",
    "baselines.slbo.steps_per_s",
    "pets.per_s",
    "pets.share_of_limit",
    "steve.per_s",
    "steve.share_of_limit",
    "mbmpo.per_s",
    "mbmpo.share_of_limit",
    "dhmbpo.update.per_s",
    "dhmbpo.update.share_of_limit",
    "dhmbpo.distribution.per_s",
    "dhmbpo.fit.per_s",
    "dhmbpo.uncertainty_overhead",
    "dhmbpo.vs_pytorch",
    "iteration.growth_200k_over_20k",
    "compile.seconds",
    "memory.peak_mb",
    "collection.Point2D.ratio",
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take a moment."""
    small_workload = partial(workload.paper_workload, change=small)
    monkeypatch.setattr(suite, "paper_workload", small_workload)
    monkeypatch.setattr(suite, "STORED", 600)
    monkeypatch.setattr(suite, "MATRICES", (64,))
    monkeypatch.setattr(suite, "COLLECTED", ("Point2D",))
    for name in ("measure_trust_region", "measure_planners", "measure_pathwise"):
        smoke = partial(getattr(algorithms, name), sizes="smoke")
        monkeypatch.setattr(algorithms, name, smoke)
    monkeypatch.setattr(algorithms, "STORED", 400)
    monkeypatch.setattr(algorithms, "TRAJECTORIES", 2)
    monkeypatch.setattr(algorithms, "POLICY_UPDATES", 2)
    monkeypatch.setattr(algorithms, "UPDATES", 2)
    grown = {20_000: 2.0, 100_000: 2.1, 200_000: 2.5}
    monkeypatch.setattr(suite, "iteration_seconds", lambda whole: grown)


def look_up(figures: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        figures = figures[part]
    return figures


def assert_complete(figures: dict[str, Any]) -> None:
    found = {name: look_up(figures, name) for name in PROMISED}
    assert all(isinstance(value, float) for value in found.values()), found
    assert found["iteration.growth_200k_over_20k"] == 1.25
    assert found["uncertainty.overhead"] == found["pombu_over_meppo"] - 1
    assert json.loads(json.dumps(figures)) == figures


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for one another take forever where other tests run beside."""
    pytest.importorskip("torch", reason="needs the baselines extra")
    monkeypatch.setattr("pombu.bench.workload.usable_cores", lambda: 1)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_figure_is_measured() -> None:
    assert_complete(suite.run(TINY, lambda what: None))


@pytest.mark.usefixtures("one_thread")
def test_every_figure_comes_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """With times that are given: the slow test above also does the work."""
    given = {"trpo": 0.5, "metrpo": 2.0, "slbo": 1.0, "pets": 1.0, "steve": 2.0}

    def fast(pieces: dict[str, Any], repeats: int, budget: float) -> workload.Times:
        return workload.Times({name: [given.get(name, 0.25)] for name in pieces})

    monkeypatch.setattr(suite, "take_turns", fast)
    monkeypatch.setattr(algorithms, "take_turns", fast)
    for name in ("trpo_step", "metrpo_update", "slbo_round", "actions", "meta_step"):
        monkeypatch.setattr(algorithms, name, lambda learner: None)
    figures = suite.run(TINY, lambda what: None)
    assert_complete(figures)
    # Two trajectories of 200 steps.
    assert figures["baselines"]["trpo"] == {"seconds": 0.5, "steps_per_s": 800.0}
    assert figures["baselines"]["metrpo"]["steps_per_s"] == 200.0
    assert figures["steve"]["per_s"] == 1.0
    # Two updates in a block, in a quarter of a second.
    assert figures["dhmbpo"]["update"]["per_s"] == 8.0
    assert figures["fit"]["vs_pytorch"] == figures["pombu_over_meppo"] == 1.0


@pytest.fixture(scope="module")
def work() -> workload.Workload:
    """The paper's workload made small, for the tests that measure it."""
    return workload.paper_workload(600, 5, small)


def test_without_pytorch_it_says_so_and_compares_with_nothing(
    monkeypatch: pytest.MonkeyPatch, work: workload.Workload
) -> None:
    monkeypatch.setattr(suite, "find_spec", lambda name: None)
    said: list[str] = []
    limits = {"f32_gflops": 100.0, "bf16_gflops": 50.0}
    figures = suite.compare(work, limits, 1, 0.0, said.append)
    assert any("pip install 'pombu[baselines]'" in sentence for sentence in said)
    for loop in ("imagination", "fit", "update"):
        assert figures[loop]["vs_pytorch"] is None
        assert figures[loop]["share_of_limit"] > 0


def test_bfloat16_is_tried_where_its_limit_is_higher(
    monkeypatch: pytest.MonkeyPatch, work: workload.Workload
) -> None:
    monkeypatch.setattr(suite, "find_spec", lambda name: None)
    limits = {"f32_gflops": 100.0, "bf16_gflops": 150.0}
    figures = suite.compare(work, limits, 1, 0.0, lambda what: None)
    assert figures["imagination"]["bfloat16"]["steps_per_s"] > 0
    assert "bfloat16" not in figures["update"]


LOOP = {
    "seconds": 0.5,
    "per_s": 2.0,
    "steps_per_s": 1000.0,
    "transitions_per_s": 1000.0,
    "samples_per_s": 1000.0,
    "share_of_limit": 0.75,
    "pytorch_seconds": None,
    "vs_pytorch": None,
}
FIGURES = {
    "limit": {"f32_gflops": 100.0, "bf16_gflops": 50.0},
    "imagination": LOOP,
    "fit": LOOP,
    "update": {**LOOP, "vs_pytorch": 3.25},
    "uncertainty": {"with_seconds": 1.1, "without_seconds": 1.0, "overhead": 0.1},
    "pombu_over_meppo": 1.1,
    "baselines": {"trpo": {"seconds": 1.0, "steps_per_s": 1000.0}},
    "pets": LOOP,
    "steve": LOOP,
    "mbmpo": LOOP,
    "dhmbpo": {
        "update": LOOP,
        "distribution": LOOP,
        "fit": LOOP,
        "uncertainty_overhead": 0.37,
        "vs_pytorch": 4.5,
    },
    "iteration": {
        "measured": "fit and update",
        "seconds": {"20000": 2.0, "200000": 2.2},
        "growth_200k_over_20k": 1.1,
    },
    "compile": {"seconds": 9.0},
    "memory": {"peak_mb": 900.0},
    "collection": {
        "Ant": {"single_steps_per_s": 1.0, "batched_steps_per_s": 2.0, "ratio": 2.0}
    },
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[suite.Effort]:
    """The efforts that the command asked for; nothing is really measured."""
    asked: list[suite.Effort] = []

    def run(effort: suite.Effort, say: Any) -> suite.Figures:
        asked.append(effort)
        say("everything")
        return FIGURES

    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    return asked


def test_json_is_one_object_alone_on_stdout(
    measured: list[suite.Effort], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--quick", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == FIGURES
    assert "measuring: everything" in printed.err
    assert measured == [suite.QUICK]


def test_the_table_shows_every_figure(
    measured: list[suite.Effort], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench"]) == 0
    table = capsys.readouterr().out
    numbers = ("0.75", "3.25x", "10.0%", "900 MB", "4.50x", "37%")
    for shown in ("imagination", "not installed", *numbers):
        assert shown in table
    assert measured == [suite.FULL]
