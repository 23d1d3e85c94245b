"""Every relative link leads to a file, and its anchor to something in that file."""

import ast
import re
from pathlib import Path

import pytest
from pages import FENCE, PAGES, ROOT, links, name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """In the repository, where pages that only the site has would be missing."""
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(path: Path) -> set[str]:
    """The headings of a page, or the names that a module defines."""
    if path.suffix == ".py":
        return set(defined(ast.parse(path.read_text())))
    text = FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in headings
    }


def defined(tree: ast.AST, prefix: str = "") -> list[str]:
    """Functions and classes, and what is defined in classes."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found += defined(node, f"{prefix}{node.name}.")
    return found


def test_the_search_finds_broken_links(tmp_path: Path) -> None:
    assert "value_loss" in anchors(ROOT / "src/pombu/optim/objectives.py")
    assert "EnsembleLearner.fit" in anchors(ROOT / "src/pombu/algorithms/base.py")
    assert "what-u-is" in anchors(ROOT / "docs/ideas.md")
    page = tmp_path / "page.md"
    page.write_text("[a](b.md) ![c](d.svg#e)\n```\n[no](link)\n```\n`[f](g)` [`h`](i)")
    assert links(page) == ["b.md", "d.svg#e", "i"]
