"""`pombu resume`: go on with an interrupted run, bit for bit."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import tyro

from pombu.agent.runs import algorithm_of
from pombu.algorithms.config import budget
from pombu.cli.train import announce, callbacks_of, print_result
from pombu.errors import UsageError
from pombu.parallel import usable_cores
from pombu.studies.worker import claimed_cores
from pombu.training import checkpoint
from pombu.training.loop import learn
from pombu.training.run import Run, open_run


@contextlib.contextmanager
def cores_as_before(run: Run) -> Iterator[None]:
    """Keep to as many cores as the run had; the last digits may depend on them.

    Where there are fewer now, the loop says so.
    """
    saved = checkpoint.newest(run.path)
    if saved is None or saved.cores is None or saved.cores >= usable_cores():
        yield
        return
    with claimed_cores(saved.cores):
        yield


@dataclasses.dataclass(frozen=True)
class Command:
    """Go on with an interrupted run from its last good checkpoint.

    The result is the same, bit for bit, as if the run had never been interrupted. A
    run that has no checkpoint yet starts again; one that is finished can be given more
    steps.

    Examples:
      pombu resume runs/cheetah
      pombu resume runs/cheetah --total-steps 300000
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    total_steps: int | None = None
    """Real steps to take in all; None keeps the run's own number."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    target_return: float | None = None
    """Stop once the mean real return reaches this value."""
    max_minutes: float | None = None
    """Stop after the iteration in which this much time has passed."""
    json: bool = False
    """Print one JSON object at the end; progress goes to standard error."""

    def run(self) -> int:
        """Train to the end or until stopped."""
        run = open_run(self.folder)
        # JAX counts its threads by the cores of the process, once, so none may be used
        # before this process has as many as the run had.
        with cores_as_before(run):
            return self._resume(run)

    def _resume(self, run: Run) -> int:
        console = announce(f"Preparing to resume {run.path}.", self.json)
        algorithm = algorithm_of(run, self.env)
        if self.total_steps is not None:
            if self.total_steps < run.spec.total_steps:
                raise UsageError(
                    f"{run.path} was asked for {run.spec.total_steps} real steps, and "
                    f"--total-steps {self.total_steps} is fewer: give more, or none."
                )
            budget(algorithm.config, lambda: algorithm.task.horizon, self.total_steps)
        steps = self.total_steps or run.spec.total_steps
        spec = dataclasses.replace(run.spec, total_steps=steps)
        callbacks = callbacks_of(console, spec, self.target_return, self.max_minutes)
        if self.total_steps is not None:
            with run.locked():
                run = run.extend(self.total_steps)
        result = learn(algorithm, run.spec.seed, run.spec.total_steps, callbacks, run)
        return print_result(run, result, self.json)
