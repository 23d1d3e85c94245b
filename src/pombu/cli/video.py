"""`pombu video`: film a trained policy."""

import dataclasses
import json
from pathlib import Path

import tyro

from pombu.agent.runs import Which, algorithm_of, load_state
from pombu.agent.video import frames, write_video
from pombu.errors import UsageError
from pombu.training.run import open_run


@dataclasses.dataclass(frozen=True)
class Command:
    """Film one episode of a trained policy as mp4, with an animated preview.

    Examples:
      pombu video runs/cheetah
      pombu video runs/cheetah --checkpoint best --out cheetah.mp4
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The mp4 file; None puts video.mp4 into the run folder."""
    checkpoint: Which = "last"
    """The last policy, or the one with the highest return during training."""
    stochastic: bool = False
    """Sample actions instead of taking their mean."""
    seed: int = 0
    """Which episode."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object instead of a sentence."""

    def run(self) -> int:
        """Film and say where the files are."""
        path = self.out or self.folder / "video.mp4"
        if path.suffix != ".mp4":
            raise UsageError(f"{path} is no .mp4 file: choose a name that ends so.")
        run = open_run(self.folder)
        algorithm = algorithm_of(run, self.env)
        state = load_state(run, algorithm, self.checkpoint)
        pictures, total, rate = frames(
            algorithm.task, algorithm.policy(state), self.seed, not self.stochastic
        )
        preview = write_video(path, pictures, rate)
        if self.json:
            files = {"video": str(path), "preview": str(preview)}
            print(json.dumps({**files, "frames": len(pictures), "return": total}))
        else:
            print(
                f"{len(pictures)} frames of an episode with return {total:.1f}: {path} "
                f"and the preview {preview}."
            )
        return 0
