"""Tutorials run from top to bottom, and show what they printed and drew."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from pages import ROOT, name

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def program(cell: dict[str, Any]) -> str:
    """A cell's code, with the replacements that its metadata has for tests."""
    code = "".join(cell["source"])
    for change in filter(None, cell["metadata"].get("smoke", "").split(";")):
        old, new = (text.strip() for text in change.split("=>"))
        assert old in code, f"{cell['id']} has no {old}"
        code = code.replace(old, new)
    return code


def test_there_is_one() -> None:
    assert TUTORIALS


@pytest.mark.parametrize("path", TUTORIALS, ids=name)
def test_it_was_executed_in_order(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    kinds = {output["output_type"] for output in outputs}
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", TUTORIALS, ids=name)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(path):
        exec(compile(program(cell), cell["id"], "exec"), names)
