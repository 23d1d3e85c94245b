"""The example on an ensemble that pombu did not train."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_ensemble.py"


def test_the_example_is_short_and_runs():
    assert len(EXAMPLE.read_text().splitlines()) < 40
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True
    )
    assert "sigma(Q): [" in done.stdout
    assert "times as much as U says" in done.stdout
