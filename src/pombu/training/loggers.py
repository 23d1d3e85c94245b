"""Callbacks that log metrics to TensorBoard and Weights & Biases, one flag each."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from pombu.envs.catalogue import in_one_line
from pombu.errors import RunError, UsageError
from pombu.files import digest
from pombu.training.callbacks import Callback, Progress
from pombu.training.metrics import MACHINE_DEPENDENT
from pombu.training.run import TENSORBOARD, VERSIONS, open_run


def require(package: str, extra: str) -> None:
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
        require("tensorboardX", "tensorboard")
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
        require("wandb", "wandb")
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
    first_start = json.loads((folder / VERSIONS).read_bytes())[0]["started"]
    return digest(f"{folder.resolve()} {first_start}".encode())[:16]


def _group(name: str) -> str:
    """Times and memory apart from what was learned."""
    machine = name.endswith(MACHINE_DEPENDENT)
    return f"{'machine' if machine else 'train'}/{name}"
