"""How a study scales with workers: the same small study on local Ray with one and two.

python -m benchmarks.scaling            # writes results/scaling.json
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from pombu.envs import EnvConfig
from pombu.studies.backends import BackendOptions
from pombu.studies.progress import PlainRuns
from pombu.studies.study import Job, plan, run_study
from pombu.training.run import provenance

WORKERS = (1, 2)
JOBS = [Job("pombu", EnvConfig("Point2D"), seed, "fast", 1800) for seed in range(4)]


def main() -> int:
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as scratch:
        # Nothing is compiled in the timed studies but what each process must compile.
        measure(JOBS[:1], 1, Path(scratch) / "warm", console)
        seconds = {
            workers: measure(JOBS, workers, Path(scratch) / str(workers), console)
            for workers in WORKERS
        }
    result = {
        "runs": [job.name for job in JOBS],
        "seconds_by_workers": seconds,
        "speedup": seconds[WORKERS[0]] / seconds[WORKERS[-1]],
        "load_after": os.getloadavg()[0],
        "machine": {**provenance(), "command": ["python", "-m", "benchmarks.scaling"]},
    }
    path = Path(__file__).resolve().parent.parent / "results" / "scaling.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['speedup']:.2f} times as fast with {WORKERS[-1]} workers: {path}")
    return 0


def measure(jobs: list[Job], workers: int, folder: Path, console: Console) -> float:
    """Seconds of a study, without the start of the cluster."""
    backend = BackendOptions(backend="ray", workers=workers).open()
    start = time.perf_counter()
    outcome = run_study(plan(jobs, folder), folder, backend, PlainRuns(console))
    assert outcome.finished, outcome.failed
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
