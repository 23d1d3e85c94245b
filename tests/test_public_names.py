"""The documented interface: what it lists, and what follows from the registry."""

from pathlib import Path

import pytest

from pombu.algorithms.registry import ALGORITHMS
from tools import agent_types, counts, reference

ROOT = Path(__file__).resolve().parent.parent

DOCUMENTED = {
    "pombu": "Callback EnvConfig Episode PombuError POMBUConfig preset q_uncertainty "
    "RunError StopAfter StopAtReturn Task UsageError",
    "pombu.envs": "ActionBox CATALOGUE check collect collect_rounds CollectionError "
    "Contract Finding load make Report resolve short_name without_termination",
    "pombu.data.logged": "read_logged write_logged",
    "pombu.uncertainty": "diagnose Diagnosis estimate expected_z_squared "
    "gaussian_member last_layer_laplace LastLayerLaplace local_uncertainty propagate "
    "Recalibration variance_factor",
    "pombu.uncertainty.tabular": "Assumptions assumptions backup chain "
    "DirichletPosterior exact_bound exact_local pombu_bound pombu_local Posterior "
    "posterior_variance TabularPosterior ube_bound ube_local",
    "pombu.agent.numpy_policy": "load_policy",
}
"""Beside one agent class per algorithm. A name more is a decision: write it here and in
the changelog."""


def test_the_api_reference_lists_these_names_and_no_others() -> None:
    agents = {entry.agent for entry in ALGORITHMS.values()}
    found = {module: {*names} for module, names in reference.documented().items()}
    assert agents <= found["pombu"]
    found["pombu"] -= agents
    assert found == {module: {*names.split()} for module, names in DOCUMENTED.items()}
    listed = {name for names in reference.documented().values() for name in names}
    assert counts.documented(reference.SOURCE) == listed


def test_type_checkers_see_the_agents_of_the_registry() -> None:
    written = agent_types.FILE.read_text()
    assert written == agent_types.stub(), "run `make format`"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_its_page(name: str) -> None:
    folder = ROOT / "docs" / "algorithms"
    assert (folder / f"{name}.md").exists()
    assert f"]({name}.md) | `{name}` |" in (folder / "index.md").read_text()
