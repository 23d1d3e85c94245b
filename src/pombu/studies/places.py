"""Where the runs of a study happen, as a user says it."""

from dataclasses import dataclass
from typing import Literal

from pombu.errors import UsageError
from pombu.studies.backends import Backend, LocalBackend


@dataclass(frozen=True)
class Place:
    """Options that `pombu study` and `pombu reproduce` share."""

    backend: Literal["local", "ray"] = "local"
    """local: processes on this machine, pinned to cores. ray: a Ray cluster."""
    workers: int | None = None
    """Runs side by side; None is as many as the cores allow."""
    cores_per_run: int = 1
    """Cores that each run has for itself."""
    gpus_per_run: float = 0.0
    """GPUs, or a share of one, for each run on Ray."""
    address: str | None = None
    """An existing Ray cluster, such as 10.0.0.1:6379 or auto; None starts one here."""
    retries: int = 3
    """How often a run is taken up again whose Ray worker has died."""

    def open(self) -> Backend:
        """The backend, ready to start runs.

        Raises:
            UsageError: The options do not fit together or this machine.
            RunError: The cluster cannot be reached.
        """
        for name, least in (("workers", 1), ("cores_per_run", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}: it must be at least {least}.")
        if self.gpus_per_run < 0:
            raise UsageError(
                f"--gpus-per-run is {self.gpus_per_run:g}: it must be 0 or more."
            )
        if self.backend == "ray":
            from pombu.studies.ray_backend import RayBackend

            return RayBackend(self)
        if self.address is not None or self.gpus_per_run:
            raise UsageError(
                "--address and --gpus-per-run are for Ray: add --backend ray, or leave "
                "them out."
            )
        return LocalBackend(self.workers, self.cores_per_run)
