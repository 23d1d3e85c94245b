import dataclasses
import io

import pytest
import toy
from rich.console import Console

from pombu.training.callbacks import Progress
from pombu.training.display import (
    LiveTable,
    PlainLines,
    display,
    duration,
    far,
    sparkline,
)
from pombu.training.loop import learn

PROGRESS = Progress(
    algorithm="pombu",
    environment="pombu/HalfCheetah-v0",
    seed=0,
    total_steps=10_000,
    iteration=2,
    real_steps=2_000,
    imagined_steps=1_600_000,
    metrics={
        "return_real": 123.4,
        "uncertainty": 0.25,
        "fit_seconds": 12.0,
        "iteration_seconds": 20.0,
    },
    returns=(1.0, 5.0, float("nan"), 3.0),
    state=None,
    folder=None,
)


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([2.0], "▁"), ([0.0, 7.0], "▁█"), ([1.0, float("nan"), 8.0], "▁█")],
)
def test_sparkline(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


@pytest.mark.parametrize(
    ("seconds", "text"), [(42, "42 s"), (720, "12 min"), (11_100, "3 h 05 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_outside_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=80)
    assert isinstance(display(console), PlainLines)
    learn(toy.make_toy(), seed=0, total_steps=48, callbacks=[PlainLines(console)])
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "training toy on pombu/Point2D-v0, seed 0"
    assert lines[1].startswith("  collect took")
    assert lines[2].startswith("iteration 1 · 24 of 48 real steps · 1,000 imagined")
    assert "left" in lines[2]
    assert len(lines) == 4


def test_a_run_that_ends_by_its_iterations_promises_no_more_steps() -> None:
    """Episodes of three steps: the plan says 10,000 and it will be 8 times 10."""
    short = dataclasses.replace(PROGRESS, iteration=2, real_steps=20, last_iteration=8)
    assert far(short) == "20 of about 80 real steps"
    assert far(PROGRESS) == "2,000 of 10,000 real steps"
    long = dataclasses.replace(PROGRESS, iteration=2, last_iteration=1000)
    assert far(long) == "2,000 of 10,000 real steps"


def test_a_live_table_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    table = display(console)
    assert isinstance(table, LiveTable)
    start = dataclasses.replace(PROGRESS, metrics={}, returns=(), real_steps=0)
    table.on_start(start)
    table.on_stage("fit")
    table.on_stage_end("fit", 3.0)
    table.on_message("[not markup] be patient")
    table.on_iteration(PROGRESS)
    table.on_stop(PROGRESS)
    shown = console.file.getvalue()
    for text in ("2,000 of 10,000", "1,600,000", "123.4", "0.25", "▁█▅", "fit 12.0"):
        assert text in shown
    assert "[not markup] be patient" in shown
