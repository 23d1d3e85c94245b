"""`pombu model-study`: which kind of model foretells stored episodes best."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from pombu.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Command:
    """Fit kinds of models to stored episodes, and measure their error by horizon.

    Models learn from the first part of each run. They are judged by held-out episodes
    of that part and by those right after it, which a newer policy collected. A variant
    is a name and fields of the model: `wide:hidden=512x512,max_steps=4000`.

    Examples:
      pombu model-study runs/cheetah --out study
      pombu model-study runs/* --out study --variant a:activation=silu b:hidden=512x512
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    out: Path
    """Folder for model-study.csv and model-study.md."""
    variant: tuple[str, ...] = ()
    """Models to compare; none takes both activations with both normalisations."""
    seeds: tuple[int, ...] = (0,)
    """Each fits every variant once."""
    share: float = 0.5
    """Share of a run's real steps that models may learn from."""
    steps: int = 2000
    """Gradient steps per fit."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""

    def run(self) -> int:
        """Measure, and print the page."""
        from pombu.analysis.model_study import study, text_of, write

        if not self.runs:
            raise UsageError("No run is named: give at least one run folder.")
        if not 0 < self.share < 1:
            raise UsageError(f"share is {self.share}; it must lie in (0, 1).")
        if self.steps < 1:
            raise UsageError(f"steps is {self.steps}: it must be at least 1.")
        options = (self.variant, self.seeds, self.share, self.steps, self.env)
        rows = list(study(self.runs, *options))
        paths = write(rows, self.out)
        print(text_of(rows))
        print(f"All numbers are in {paths[0]}.")
        return 0
