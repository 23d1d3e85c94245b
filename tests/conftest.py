"""What every test shares: checked shapes, one core per worker, and a Chromium."""

import gc
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# JAX takes its thread count from the CPU affinity, so each worker keeps to one core.
worker = os.environ.get("PYTEST_XDIST_WORKER", "")
if worker.startswith("gw") and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker[2:]) % len(cores)]})

# Workers, and subprocesses started by tests, compile each function once between them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("pombu", "type_checker.check")


MOST_MAPS = 20_000
"""Memory maps of a worker above which compiled programs are dropped: Linux allows
65,530, JAX crashes at that limit, and each program takes about eight."""


@pytest.fixture(autouse=True, scope="module")
def few_programs() -> Iterator[None]:
    """Drop compiled programs after a module where they have become too many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def find_chromium() -> str | None:
    """The path of the first Chromium on the PATH."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """A Chromium to test in; without one the test is skipped, or fails if required."""
    found = find_chromium()
    if found is None:
        if os.environ.get("POMBU_REQUIRE_BROWSER"):
            pytest.fail("POMBU_REQUIRE_BROWSER is set and no Chromium is on the PATH")
        # A browser is no Python package: `make test` cannot install it, and a newcomer
        # without one still gets all other tests. `.ci/run` installs and requires it.
        pytest.skip("no Chromium on the PATH; .ci/run installs one and requires it")
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_chromium() is None:
        terminalreporter.write_line("browser tests: not run, no Chromium on the PATH")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results-json", type=Path, help="write outcomes and times here")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--results-json")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ResultsFile(config.rootpath / path))


class ResultsFile:
    """Writes each test's outcome and time into one JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, str | float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests.setdefault(
            report.nodeid, {"outcome": "passed", "seconds": 0.0}
        )
        test["seconds"] = round(float(test["seconds"]) + report.duration, 2)
        if report.outcome != "passed":
            test["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        outcomes = [test["outcome"] for test in self.tests.values()]
        summary = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "passed": outcomes.count("passed"),
            "failed": outcomes.count("failed"),
            "tests": dict(sorted(self.tests.items())),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(summary, indent=2) + "\n")
