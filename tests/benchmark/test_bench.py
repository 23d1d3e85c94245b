"""`pombu bench` on tiny sizes: what it prints, and what it does without PyTorch."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import pytest
from sizes import small

from pombu.benchmarks import (
    baselines,
    collection,
    comparison,
    growth,
    suite,
    workload,
)
from pombu.cli import main

PROMISED = (
    "limit.f32_gflops",
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
    "iteration.growth_200k_over_20k",
    "compile.seconds",
    "memory.peak_mb",
    "collection.Point2D.ratio",
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sizes that take seconds, and the compilation cache as it was afterwards."""
    monkeypatch.setattr(
        suite, "paper_workload", partial(workload.paper_workload, change=small)
    )
    monkeypatch.setattr(suite, "STORED", 600)
    monkeypatch.setattr(suite, "SIZES", (64,))
    monkeypatch.setattr(collection, "TASKS", ("Point2D",))
    monkeypatch.setattr(
        growth, "measure", lambda whole: {20_000: 2.0, 100_000: 2.1, 200_000: 2.5}
    )
    monkeypatch.setattr(baselines, "measure", partial(baselines.measure, sizes="smoke"))
    monkeypatch.setattr(baselines, "STORED", 400)
    monkeypatch.setattr(baselines, "TRAJECTORIES", 2)
    monkeypatch.setattr(baselines, "POLICY_UPDATES", 2)
    before = jax.config.jax_enable_compilation_cache
    yield
    jax.config.update("jax_enable_compilation_cache", before)


def look_up(figures: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        figures = figures[part]
    return figures


def test_json_is_one_object_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the baselines extra")
    assert main(["bench", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    found = {name: look_up(figures, name) for name in PROMISED}
    assert all(isinstance(value, float) for value in found.values()), found
    assert found["iteration.growth_200k_over_20k"] == 1.25
    assert found["uncertainty.overhead"] == found["pombu_over_meppo"] - 1
    for name in ("imagination", "fit", "update"):
        assert look_up(figures, name)["vs_pytorch"] > 0


def test_without_pytorch_it_says_so_and_compares_with_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    assert main(["bench", "--quick", "--json"]) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert figures["imagination"]["vs_pytorch"] is None
    assert figures["fit"]["vs_pytorch"] is None
    assert figures["update"]["vs_pytorch"] is None
    assert figures["imagination"]["share_of_limit"] > 0
    assert "pip install 'pombu[baselines]'" in printed.err


def test_the_table_shows_every_loop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    assert main(["bench", "--quick"]) == 0
    table = capsys.readouterr().out
    for name in ("imagination", "fit", "update", "POMBU over MEPPO", "peak memory"):
        assert name in table
