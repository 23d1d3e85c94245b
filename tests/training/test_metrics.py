import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pombu.training.metrics import (
    MetricsFile,
    NonFiniteError,
    deterministic,
    read_rows,
    require_finite,
)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_read_back_exactly(value: float, count: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = MetricsFile(Path(folder) / "metrics.csv")
        file.append({"iteration": count, "loss": value})
        assert file.rows() == [{"iteration": count, "loss": value}]


def test_a_new_metric_grows_the_header(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.csv")
    file.append({"iteration": 1, "loss": 2.0})
    file.append({"iteration": 2, "kl": 0.5})
    text = (tmp_path / "metrics.csv").read_text()
    assert text == "iteration,loss,kl\n1,2.0,\n2,,0.5\n"
    assert file.rows() == [{"iteration": 1, "loss": 2.0}, {"iteration": 2, "kl": 0.5}]


def test_an_existing_file_is_gone_on_with(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "metrics.csv").append({"iteration": 1, "loss": 2.0})
    MetricsFile(tmp_path / "metrics.csv").append({"iteration": 2, "loss": 3.0})
    header, rows = read_rows(tmp_path / "metrics.csv")
    assert header == ["iteration", "loss"]
    assert [row["loss"] for row in rows] == [2.0, 3.0]


@pytest.mark.parametrize("torn", ["", "4,", "4,1.5", "4,1.5,extra"])
def test_rows_beyond_an_iteration_and_a_torn_row_are_dropped(
    tmp_path: Path, torn: str
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("iteration,loss\n1,1.0\n2,2.0\n3,3.0\n" + torn)
    file = MetricsFile(path)
    file.drop_after(2)
    assert path.read_text() == "iteration,loss\n1,1.0\n2,2.0\n"


@pytest.mark.parametrize("content", ["", "iterati"])
def test_a_file_torn_in_its_header_is_begun_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(content)
    file = MetricsFile(path)
    file.drop_after(0)
    file.append({"iteration": 1})
    assert file.rows() == [{"iteration": 1}]


def test_machine_dependent_columns_are_known_by_name() -> None:
    row = {"loss": 1.0, "fit_seconds": 2.0, "peak_memory": 3.0}
    assert deterministic(row) == {"loss": 1.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(value: float) -> None:
    with pytest.raises(NonFiniteError, match=f"iteration 7 gave loss = {value}"):
        require_finite({"kl": 0.0, "loss": value}, iteration=7)
