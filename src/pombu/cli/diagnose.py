"""`pombu diagnose`: how good a run's learned dynamics is, and what limits the run."""

import dataclasses
import json
import sys
from pathlib import Path

import tyro

from pombu.agent.runs import algorithm_of
from pombu.errors import UsageError
from pombu.training import checkpoint
from pombu.training.loop import identity
from pombu.training.run import open_run

FOLDER = "diagnosis"


@dataclasses.dataclass(frozen=True)
class Command:
    """Compare a run's learned dynamics with fresh real episodes, in figures and words.

    Drawn are the prediction error by horizon and dimension, a real trajectory beside
    the imagined one, and the members' disagreement against their error. The words say
    what limits the run: model bias, uncertainty that is too low or too high, or
    exploration.

    Examples:
      pombu diagnose runs/pendulum
      pombu diagnose runs/mine --env my_module:make_env --episodes 20 --json
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 10
    """Real episodes to compare with."""
    out: Path | None = None
    """Folder for the figures; None takes `diagnosis` in the run folder."""
    seed: int = 0
    """The same seed gives the same episodes."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object instead of sentences."""

    def run(self) -> int:
        """Measure, draw, and say it."""
        from pombu.analysis.artifacts import save_figure, write_json
        from pombu.analysis.diagnosis import (
            disagreement_over_error,
            draw_figures,
            judge,
            measure,
            optimism,
        )

        if self.episodes < 1:
            raise UsageError(f"episodes is {self.episodes}: it must be at least 1.")
        # 1. Load the last checkpoint.
        run = open_run(self.folder)
        learner = algorithm_of(run, self.env)
        found = checkpoint.load_latest(
            run.path, learner.init(run.spec.seed), identity(learner, run), _complain
        )
        if found is None:
            raise UsageError(
                f"{run.path} has no checkpoint yet: go on with `pombu resume "
                f"{run.named}` first."
            )
        loaded, episodes = found
        # 2. Compare it with real episodes, and read the run's metrics.
        measured = measure(
            learner, loaded.state, list(episodes), self.episodes, self.seed
        )
        rows = run.rows()
        verdict = judge(measured, rows)
        # 3. Write figures and numbers.
        out = self.out or run.path / FOLDER
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in draw_figures(measured).items():
            save_figure(figure, out, name)
        summary = {
            "limit": verdict.limit,
            "sentences": verdict.sentences,
            "return_real": measured.real_returns.mean(),
            "return_imagined": measured.imagined_returns.mean()
            if len(measured.imagined_returns)
            else None,
            "optimism": optimism(measured)[0],
            "calibration": disagreement_over_error(measured),
            "error_by_horizon": measured.error.mean(1).tolist(),
        }
        written = write_json(out / "diagnosis.json", summary)
        if self.json:
            print(json.dumps(json.loads(written.read_text())))
            return 0
        print(f"What limits {run.path}: {verdict.limit}.")
        for sentence in verdict.sentences:
            print(f"- {sentence}")
        print(f"Figures and numbers are in {out}.")
        return 0


def _complain(message: str) -> None:
    print(message, file=sys.stderr)
