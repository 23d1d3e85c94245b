"""The ways of trying of `benchmarks.reliability`: a few of each, and many slowly.

Each part runs in a process of its own, because kills fork before JAX starts.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability.__main__ import PARTS, TARGETS, page
from benchmarks.reliability.environments import cases
from benchmarks.reliability.trial import Answer, call, command, improper
from pombu.errors import UsageError

WHOLE = Path(__file__).parents[2] / "results" / "reliability.json"


def tried(part: str, share: float, out: Path) -> dict[str, Any]:
    """What came of a part of the trials."""
    begin = [sys.executable, "-m", "benchmarks.reliability", part]
    words = [*begin, "--share", str(share), "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "reliability.json").read_text())
    ways: dict[str, Any] = found[part]["ways"]
    return ways


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "share", "least"),
    [
        ("kills", 0.25, 100),
        ("algorithms", 0.5, 5),
        ("flips", 0.1, 100),
        ("calls", 0.1, 150),
        ("environments", 0.2, 50),
    ],
)
def test_nothing_is_silent_unexpected_or_hung(
    part: str, share: float, least: int, tmp_path: Path
) -> None:
    ways = tried(part, share, tmp_path)
    assert sum(way["trials"] for way in ways.values()) >= least
    assert [one for way in ways.values() for one in way["bad"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_the_last_whole_trial_is_large_enough_and_clean(part: str) -> None:
    found = json.loads(WHOLE.read_text())
    ways = found[part]["ways"].values()
    assert sum(way["trials"] for way in ways) >= TARGETS[part]
    assert [one for way in ways for one in way["bad"]] == []
    assert WHOLE.with_suffix(".md").read_text() == page(found)


def test_there_are_a_hundred_odd_environments() -> None:
    names = [name for name, _ in cases()]
    assert len(names) == len(set(names)) >= TARGETS["environments"]


@pytest.mark.parametrize(
    ("code", "said", "bad"),
    [
        (0, "", False),
        (2, "pombu: gamma is 2.\n", False),
        (2, "gamma is 2.\n", True),
        (1, "Traceback (most recent call last):\n  ...\nValueError: 3\n", True),
        (1, "pombu: unexpected KeyError: 3 (a bug in pombu: ...)\n", True),
        (1, "pombu: one\nand another line\n", True),
        (1, "A warning.\npombu: one\n", False),
    ],
)
def test_what_counts_as_an_error_of_pombus_own(code: int, said: str, bad: bool) -> None:
    assert improper(code, said) == bad


def test_calls_that_raise_or_hang_are_told_apart() -> None:
    def refuse() -> None:
        raise UsageError("No.")

    def hang() -> None:
        while True:
            pass

    assert call(refuse) == Answer(2, said="No.")
    assert call(lambda: 1 / 0).kind == "unexpected"
    assert call(hang, 0.05).kind == "hung"
    assert command(["evaluate", "nowhere"]).code == 2
