"""Callbacks that show a run under way.

A live table, plain lines in a log file, TensorBoard, Weights & Biases.
"""

import collections
import importlib.util
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from pombu.envs.catalogue import in_one_line
from pombu.errors import RunError, UsageError
from pombu.files import digest
from pombu.training.callbacks import Callback, Progress
from pombu.training.metrics import MACHINE_DEPENDENT
from pombu.training.run import TENSORBOARD, open_run

SHOWN = {
    "return_real": "real return",
    "return_model": "imagined return",
    "return_imagined": "promised return",
    "uncertainty": "uncertainty",
    "kl": "KL",
}
"""Metrics worth a line, and what to call them."""
SHOWN_OFFLINE = {
    "penalty_share": "penalty share",
    "disagreement_ratio": "disagreement over the data's",
}
"""More of them where no real step tells how things go."""
BARS = "▁▂▃▄▅▆▇█"
SPARKS = 40
STAGE_SUFFIX = "_seconds"
NOT_STAGES = ("iteration_seconds", "elapsed_seconds", "checkpoint_seconds")


def sparkline(values: Sequence[float]) -> str:
    """The last values as a row of bars, lowest to highest."""
    recent = [value for value in values if math.isfinite(value)][-SPARKS:]
    if not recent:
        return ""
    low, high = min(recent), max(recent)
    span = (high - low) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in recent)


def duration(seconds: float) -> str:
    """A time span for people: `42 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _stage_times(progress: Progress) -> dict[str, float]:
    """Seconds of each stage of the last iteration."""
    return {
        name.removesuffix(STAGE_SUFFIX): value
        for name, value in progress.metrics.items()
        if name.endswith(STAGE_SUFFIX) and name not in NOT_STAGES
    }


class TimeLeft:
    """Estimates the remaining time from the pace of the last iterations."""

    def __init__(self) -> None:
        """Nothing is known before two moments have been marked."""
        self._marks: collections.deque[tuple[float, int]] = collections.deque(maxlen=6)

    def mark(self, real_steps: int) -> None:
        """Note how far the run is now."""
        self._marks.append((time.monotonic(), real_steps))

    def text(self, progress: Progress) -> str:
        """The estimate, or nothing while there is none."""
        (start, first), (end, last) = self._marks[0], self._marks[-1]
        if last <= first:
            return ""
        pace = (end - start) / (last - first)
        left = max(steps_of(progress) - progress.real_steps, 0)
        return f"about {duration(pace * left)} left" if left else ""


class PlainLines(Callback):
    """One line per iteration, and one as soon as the first stage is over."""

    def __init__(self, console: Console) -> None:
        """Print to `console`."""
        self._console = console
        self._time_left = TimeLeft()
        self._silent = True

    def on_start(self, progress: Progress) -> None:
        """Say what runs where."""
        self._time_left.mark(progress.real_steps)
        self._print(headline(progress))

    def on_stage_end(self, name: str, seconds: float) -> None:
        """Show life once: what is compiled makes the first iteration a long one."""
        if self._silent:
            self._silent = False
            self._print(f"  {name} took {seconds:.1f} s")

    def on_iteration(self, progress: Progress) -> bool | None:
        """Print the iteration."""
        self._time_left.mark(progress.real_steps)
        times = ", ".join(f"{k} {v:.1f}" for k, v in _stage_times(progress).items())
        parts = [
            f"iteration {progress.iteration}",
            far(progress),
            f"{progress.imagined_steps:,} imagined",
            *(f"{label} {value:.4g}" for label, value in shown(progress)),
            f"{progress.metrics['iteration_seconds']:.1f} s ({times})",
            self._time_left.text(progress),
        ]
        self._print(" · ".join(filter(None, parts)))
        return None

    def on_message(self, text: str) -> None:
        """Print the message."""
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


class LiveTable(Callback):
    """A table that follows the run."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`."""
        self._console = console
        self._time_left = TimeLeft()
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._stage = "starting"
        self._spinner = Spinner("dots")
        self._last_seconds: dict[str, float] = {}

    def on_start(self, progress: Progress) -> None:
        """Begin drawing."""
        self._time_left.mark(progress.real_steps)
        self._console.print(headline(progress), highlight=False, markup=False)
        self._progress = progress
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=4
        )
        self._live.start()

    def on_stage(self, name: str) -> None:
        """Show the stage."""
        self._stage = name

    def on_stage_end(self, name: str, seconds: float) -> None:
        """Show how long it took."""
        # A new dict: the refreshing thread may be reading the old one.
        self._last_seconds = {**self._last_seconds, name: seconds}

    def on_iteration(self, progress: Progress) -> bool | None:
        """Show the new numbers."""
        self._time_left.mark(progress.real_steps)
        self._progress = progress
        self._last_seconds = _stage_times(progress)
        return None

    def on_message(self, text: str) -> None:
        """Print the message above the table."""
        self._console.print(text, highlight=False, markup=False)

    def on_stop(self, progress: Progress) -> None:
        """Leave the last table standing."""
        self._stage = "done"
        if self._live is not None:
            self._live.stop()

    def _render(self) -> RenderableType:
        progress = self._progress
        assert progress is not None
        table = Table.grid(padding=(0, 2))
        table.add_row("iteration", str(progress.iteration))
        table.add_row("progress", far(progress))
        table.add_row("imagined steps", f"{progress.imagined_steps:,}")
        for label, value in shown(progress):
            table.add_row(label, f"{value:.4g}")
        table.add_row("real returns", sparkline(progress.returns))
        times = ", ".join(f"{k} {v:.1f}" for k, v in self._last_seconds.items())
        table.add_row("stage seconds", times)
        total, done = steps_of(progress), progress.real_steps
        if _is_offline(progress):
            total, done = progress.offline, progress.iteration
        table.add_row("", ProgressBar(total, done, width=60))
        if self._stage == "done":
            return table
        left = self._time_left.text(progress)
        self._spinner.update(text=", ".join(filter(None, (self._stage, left))))
        return Group(table, self._spinner)


def _is_offline(progress: Progress) -> bool:
    """Whether no real step has been taken to learn from, and none is due yet."""
    return progress.offline > 0 and not (
        progress.real_steps or progress.iteration > progress.offline
    )


def steps_of(progress: Progress) -> int:
    """The real steps at the end of the run, as far as can be told now."""
    last, done = progress.last_iteration, progress.iteration
    if last is None or not done:
        return progress.total_steps
    return min(progress.total_steps, round(progress.real_steps * last / done))


def far(progress: Progress) -> str:
    """How far the run has come."""
    if _is_offline(progress):
        return f"{progress.iteration} of {progress.offline} iterations offline"
    steps = steps_of(progress)
    about = "about " if steps < progress.total_steps else ""
    return f"{progress.real_steps:,} of {about}{steps:,} real steps"


def shown(progress: Progress) -> list[tuple[str, float]]:
    """The metrics worth a line that this run has."""
    metrics = progress.metrics
    labels = {**SHOWN, **SHOWN_OFFLINE} if _is_offline(progress) else SHOWN
    return [(label, metrics[name]) for name, label in labels.items() if name in metrics]


def headline(progress: Progress) -> str:
    """What runs where."""
    where = f" in {progress.folder}" if progress.folder else ""
    verb = "resuming" if progress.iteration else "training"
    return (
        f"{verb} {progress.algorithm} on {progress.environment}, "
        f"seed {progress.seed}{where}"
    )


def display(console: Console | None = None) -> Callback:
    """The live table on a terminal, plain lines elsewhere."""
    console = console or Console()
    return LiveTable(console) if console.is_terminal else PlainLines(console)


def _require(package: str, extra: str) -> None:
    """Say how to get a logger's package before the run starts.

    Raises:
        UsageError: It is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"--{extra} needs {package}, which is not installed: "
            f"pip install 'pombu[{extra}]'."
        )


class TensorBoard(Callback):
    """Writes every metric as a scalar event, by real steps."""

    def __init__(self, folder: Path | None = None) -> None:
        """Write into `folder`; None is `tensorboard` in the run folder."""
        _require("tensorboardX", "tensorboard")
        self._folder = folder
        self._writer: Any = None

    def on_start(self, progress: Progress) -> None:
        """Open the event file; events beyond a resumed run's checkpoint are purged."""
        from tensorboardX import SummaryWriter

        folder = self._folder or (progress.folder or Path(".")) / TENSORBOARD
        self._writer = SummaryWriter(str(folder), purge_step=progress.real_steps + 1)

    def on_iteration(self, progress: Progress) -> bool | None:
        """Write the iteration's metrics."""
        for name, value in progress.metrics.items():
            self._writer.add_scalar(_group(name), value, progress.real_steps)
        self._writer.flush()
        return None

    def on_stop(self, progress: Progress) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Callback):
    """Sends every metric to Weights & Biases; `WANDB_MODE=offline` keeps it here."""

    def __init__(self, project: str = "pombu") -> None:
        """Check that the client is installed."""
        _require("wandb", "wandb")
        self._project = project
        self._run: Any = None

    def on_start(self, progress: Progress) -> None:
        """Open the run under an id of its folder, so that a resumed run goes on.

        Raises:
            RunError: Weights & Biases does not start.
        """
        import wandb

        try:
            self._run = wandb.init(project=self._project, **self._named(progress))
        except Exception as error:
            raise RunError(
                f"Weights & Biases did not start ({in_one_line(error)}): log in, or "
                "set WANDB_MODE=offline."
            ) from error

    def _named(self, progress: Progress) -> dict[str, Any]:
        """What a run is called there, and where it keeps its files."""
        config = {
            "algorithm": progress.algorithm,
            "environment": progress.environment,
            "seed": progress.seed,
        }
        folder = progress.folder
        if folder is None:
            return {"config": config}
        return {
            "config": {**config, **open_run(folder).spec.config},
            "name": folder.name,
            "dir": str(folder),
            "id": _run_id(folder),
            "resume": "allow",
        }

    def on_iteration(self, progress: Progress) -> bool | None:
        """Send the iteration's metrics."""
        metrics = {_group(name): value for name, value in progress.metrics.items()}
        self._run.log({**metrics, "real_steps": progress.real_steps})
        return None

    def on_stop(self, progress: Progress) -> None:
        """Close the run."""
        if self._run is not None:
            self._run.finish()


def _run_id(folder: Path) -> str:
    """The same for every start of one run, and for no other run."""
    first_start = open_run(folder).starts()[0]["started"]
    return digest(f"{folder.resolve()} {first_start}".encode())[:16]


def _group(name: str) -> str:
    """Times and memory apart from what was learned."""
    machine = name.endswith(MACHINE_DEPENDENT)
    return f"{'machine' if machine else 'train'}/{name}"
