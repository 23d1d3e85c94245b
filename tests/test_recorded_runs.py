"""Short runs of every algorithm come to what was recorded before the last big move."""

import json
from pathlib import Path

import numpy as np
import pytest

from pombu.algorithms import registry
from tools.record_runs import record

RECORDED = json.loads(
    (Path(__file__).parent / "fixtures" / "recorded-runs.json").read_text()
)
ALWAYS = ("pombu", "metrpo", "pets")


def test_every_algorithm_is_recorded() -> None:
    assert set(RECORDED["runs"]) == set(registry.ALGORITHMS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.slow])
        for name in RECORDED["runs"]
    ],
)
def test_a_run_is_as_recorded(name: str) -> None:
    due, now = RECORDED["runs"][name], record(name)
    # Where bits must agree they are compared; another processor rounds differently, and
    # two iterations of training carry that on.
    same_bits = now["versions"] == due["versions"]
    tolerance = (
        {"rtol": 0.0, "atol": 0.0} if same_bits else {"rtol": 0.02, "atol": 0.01}
    )
    for counter in ("real_steps", "imagined_steps"):
        assert now[counter] == due[counter]
    for row, expected in zip(now["metrics"], due["metrics"], strict=True):
        assert list(row) == list(expected)
        np.testing.assert_allclose(
            list(row.values()), list(expected.values()), **tolerance
        )
    if same_bits:
        assert now["weights"] == due["weights"]
