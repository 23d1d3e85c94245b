"""`pombu evaluate`: measure a trained policy on real episodes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import tyro

from pombu.agent.runs import Which, algorithm_of, load_state
from pombu.analysis.intervals import Intervals, measure_intervals
from pombu.training.evaluation import evaluate
from pombu.training.run import open_run

INTERVALS = "intervals.csv"


@dataclasses.dataclass(frozen=True)
class Command:
    """Measure a trained policy on real episodes.

    Examples:
      pombu evaluate runs/cheetah --episodes 20
      pombu evaluate runs/cheetah --checkpoint best --stochastic --json
      pombu evaluate runs/cheetah --intervals
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 20
    """Episodes to run."""
    checkpoint: Which = "last"
    """The last policy, or the one with the highest return during training."""
    stochastic: bool = False
    """Sample actions instead of taking their mean."""
    seed: int = 0
    """The same seed gives the same episodes."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object instead of a sentence."""
    intervals: bool = False
    """Also run the sampled policy, predict each return from its start with a 90 %
    interval, and write both to intervals.csv in the folder."""

    def run(self) -> int:
        """Run the episodes and print their returns."""
        run = open_run(self.folder)
        algorithm = algorithm_of(run, self.env)
        state = load_state(run, algorithm, self.checkpoint)
        result = evaluate(
            algorithm.task,
            algorithm.policy(state),
            self.episodes,
            self.seed,
            deterministic=not self.stochastic,
        )
        found = self._intervals(run.path, algorithm, state) if self.intervals else None
        if self.json:
            where = {"folder": str(run.path), "iteration": int(state.iteration)}
            more = {} if found is None else {"coverage_90": found.coverage}
            print(json.dumps({**where, **result.to_json(), **more}))
            return 0
        kind = "sampled" if self.stochastic else "mean"
        print(
            f"return {result.mean:.2f} ± {result.std:.2f} over {self.episodes} "
            f"episodes of {algorithm.task.config.id} with {kind} actions "
            f"(iteration {int(state.iteration)}, {int(state.real_steps):,} real steps)"
        )
        if found is not None:
            print(
                f"{found.coverage:.0%} of {self.episodes} returns lie in their 90 % "
                f"interval ({run.path / INTERVALS})"
            )
        return 0

    def _intervals(self, folder: Path, algorithm: Any, state: Any) -> Intervals:
        found = measure_intervals(algorithm, state, self.episodes, self.seed)
        found.write(folder / INTERVALS)
        return found
