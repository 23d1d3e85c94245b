"""`pombu export`: a policy that runs where JAX does not."""

import dataclasses
import json
from pathlib import Path

import tyro

from pombu._version import __version__
from pombu.agent.export import export_policy
from pombu.agent.runs import Which, algorithm_of, load_checkpoint
from pombu.errors import UsageError
from pombu.training.run import open_run


@dataclasses.dataclass(frozen=True)
class Command:
    """Write a run's policy as one small file that needs no JAX.

    `pombu.agent.numpy_policy.load_policy` reads it with NumPy alone; that module is one
    short file that can be copied along.

    Examples:
      pombu export runs/cheetah policy.safetensors
      pombu export runs/cheetah policy.safetensors --checkpoint best
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    file: tyro.conf.Positional[Path] = Path("policy.safetensors")
    """Where to write; must not exist."""
    checkpoint: Which = "last"
    """The last policy, or the one with the highest return during training."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object instead of a sentence."""

    def run(self) -> int:
        """Write the file."""
        if self.file.exists():
            raise UsageError(f"{self.file} exists already: choose another name.")
        run = open_run(self.folder)
        algorithm = algorithm_of(run, self.env)
        found = load_checkpoint(run, algorithm, self.checkpoint)
        state = found.state
        about = {
            "algorithm": run.spec.algorithm,
            "environment": algorithm.task.config.id,
            "seed": run.spec.seed,
            "real_steps": int(state.real_steps),
            "iteration": found.manifest.iteration,
            "checkpoint_sha256": found.manifest.state_sha256,
            "pombu": __version__,
        }
        export_policy(self.file, algorithm.task, state, about)
        if self.json:
            print(json.dumps({"file": str(self.file), **about}))
        else:
            print(
                f"The policy is in {self.file}; `pombu.agent.numpy_policy.load_policy` "
                "reads it without JAX."
            )
        return 0
