"""The promises of ARCHITECTURE.md that can be read off the source."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "pombu"
MODULES = sorted(SOURCE.rglob("*.py"))

# The version is data, and the two entry points only pass names on.
EVERYWHERE = {"__version__"}
ENTRY_POINTS = {"__init__", "__main__"}

UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "jsonpickle",
    "marshal",
    "shelve",
    "yaml",
}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
# NumPy's and torch's own formats may hold pickles, and Stable-Baselines3's always do.
UNSAFE_LOADERS = {"np", "numpy", "jnp", "torch", "SAC", "PPO", "BaseAlgorithm"}


def packages() -> list[set[str]]:
    """The packages in the table's order; those of one row may use one another."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| ((?:`[\w./]+`(?:, )?)+) \|", text, flags=re.MULTILINE)
    return [
        {name.removesuffix(".py").rstrip("/") for name in re.findall(r"`(.+?)`", row)}
        for row in rows
    ]


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_packages(path: Path) -> Iterator[tuple[str, int]]:
    """Each package that a module imports from, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "pombu":
                names = [f"pombu.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("pombu."):
                yield name.split(".")[1], node.lineno


def test_every_package_is_in_the_table() -> None:
    known = set().union(*packages())
    found = {package_of(path) for path in MODULES} - ENTRY_POINTS - EVERYWHERE
    assert found - known == set(), "not in the table of ARCHITECTURE.md"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_flow_one_way(path: Path) -> None:
    order = {name: row for row, names in enumerate(packages()) for name in names}
    own = package_of(path)
    if own in ENTRY_POINTS | EVERYWHERE:
        return
    backwards = [
        f"line {line}: {own} imports {package}"
        for package, line in imported_packages(path)
        if package not in EVERYWHERE and order[package] > order[own]
    ]
    assert backwards == []


@pytest.mark.parametrize("package", ["paper", "bench"])
def test_only_the_command_line_imports(package: str) -> None:
    importers = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        if package in {name for name, _ in imported_packages(path)}
        and package_of(path) not in (package, "cli")
    }
    assert importers == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_that_is_read_can_run_code(path: Path) -> None:
    unsafe = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
            unsafe += sorted(names & UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom):
            unsafe += sorted({(node.module or "").split(".")[0]} & UNSAFE_MODULES)
        elif isinstance(node, ast.Call):
            unsafe += unsafe_call(node)
    assert unsafe == []


def unsafe_call(node: ast.Call) -> list[str]:
    called = ast.unparse(node.func)
    if called in UNSAFE_BUILTINS:
        return [called]
    owner, _, method = called.rpartition(".")
    if method in ("load", "load_replay_buffer") and owner in UNSAFE_LOADERS:
        return [called]
    shell = [k for k in node.keywords if k.arg in ("shell", "allow_pickle")]
    return [f"{called}({ast.unparse(k)})" for k in shell]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "np.load(path)",
        "torch.load(path)",
        "SAC.load(path)",
        "subprocess.run(x, shell=True)",
    ],
)
def test_the_search_for_unsafe_loaders_finds_them(line: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(line)
    with pytest.raises(AssertionError):
        test_nothing_that_is_read_can_run_code(path)


def test_files_stay_short() -> None:
    long = {p.name: n for p in MODULES if (n := len(p.read_text().splitlines())) > 500}
    assert long == {}


def test_importing_pombu_registers_the_tasks_without_jax() -> None:
    code = (
        "import sys, pombu, gymnasium;"
        "assert 'pombu/HalfCheetah-v0' in gymnasium.registry;"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
