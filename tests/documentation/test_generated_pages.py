"""The pages that the code writes about itself."""

import dataclasses

import pytest

from pombu.algorithms import registry
from pombu.cli import COMMANDS

pytest.importorskip("mkdocs", reason="needs the docs extra")

from tools import docs, reference


def test_every_command_is_on_its_page() -> None:
    page = reference.commands()
    for name in COMMANDS:
        assert f"## {name}\n" in page
        assert f"usage: pombu {name}" in page
    assert max(map(len, page.splitlines())) < 400
    assert "\x1b" not in page


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_field_of_every_config_is_explained(name: str) -> None:
    kind = registry.config_type(name)
    rows = list(reference.fields_of(kind))
    assert all(meaning.endswith(".") for _, _, meaning, _ in rows)
    own = {field.name for field in dataclasses.fields(kind)} - {"env"}
    assert {path[0] for path, _, _, _ in rows} == own


def test_a_field_without_a_docstring_is_refused() -> None:
    @dataclasses.dataclass
    class Silent:
        said: int = 1
        """Said."""
        unsaid: int = 2

    with pytest.raises(ValueError, match="Silent does not explain unsaid"):
        reference.field_docs(Silent)


def test_packages_follow_the_architecture() -> None:
    packages = reference.packages()
    assert packages.index("envs") < packages.index("optim") < packages.index("cli")
    assert "pombu.envs.task" in reference.modules_of("envs")
    assert "::: pombu.optim.objectives" in reference.package_page("optim")


@pytest.mark.parametrize(
    ("path", "anchor", "page"),
    [
        ("docs/ideas.md", "what-u-is", "ideas.md#what-u-is"),
        ("ARCHITECTURE.md", "", "architecture.md"),
        ("examples/own_ensemble.py", "", "examples.md#own_ensemble"),
        ("src/pombu/optim/trpo.py", "", "api/optim.md#pombu.optim.trpo"),
        (
            "src/pombu/algorithms/pombu/learner.py",
            "Learner.improve",
            "api/algorithms.md#pombu.algorithms.pombu.learner.Learner.improve",
        ),
        ("results/uncertainty.md", "", "results/uncertainty.md"),
        ("LICENSE", "", None),
    ],
)
def test_files_of_the_repository_have_pages(
    path: str, anchor: str, page: str | None
) -> None:
    assert docs._page(path, anchor) == page
