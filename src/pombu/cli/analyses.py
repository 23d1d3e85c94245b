"""Commands that say what runs show: `pombu plot`, `report`, `results` and others.

What draws or computes is imported when a command runs, so that its help is quick.
"""

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from pombu.cli.parsing import parse
from pombu.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw the learning curves of one or more runs.

    Runs that differ in their seed and length alone are taken for seeds of one
    experiment: each is drawn thin, their mean thick.

    Examples:
      pombu plot runs/cheetah
      pombu plot runs/cheetah-* --out curves.png
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    out: Path | None = None
    """Picture to write (.png, .pdf or .svg); None puts it into the first run folder."""
    json: bool = False
    """Print one JSON object with the picture's path and the returns."""

    def run(self) -> int:
        """Draw and say where the picture is."""
        from pombu.analysis.curves import RETURNS, read_curves
        from pombu.analysis.plots import draw_learning

        if not self.runs:
            raise UsageError("No run is named: give at least one run folder.")
        curves = read_curves(self.runs)
        path = self.out or self.runs[0] / "returns.png"
        if path.suffix not in {".png", ".pdf", ".svg"}:
            raise UsageError(f"{path} is no .png, .pdf or .svg file: choose one.")
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_learning(curves).savefig(path)
        finals = {str(curve.run.path): curve.final() for curve in curves}
        returns = {str(curve.run.path): curve.returns for curve in curves}
        if self.json:
            known = {name: _known(values) for name, values in returns.items()}
            answer = {"picture": str(path), "final_return": finals, "returns": known}
            print(json.dumps(answer))
            return 0
        for name, values in returns.items():
            print(f"{name}: {_listed(values)}")
        for kind, meaning in RETURNS.items():
            print(f"  {kind}: {meaning}")
        print(f"The picture is {path}.")
        return 0


@dataclasses.dataclass(frozen=True)
class Report:
    """Write one HTML page about one or more runs; it needs no network.

    It shows learning curves, model error, calibration of the uncertainty, overfitting,
    alpha, beta and KL, stage times, config differences and the policy itself. Runs that
    differ in their seed alone are taken for one experiment.

    Examples:
      pombu report runs/cheetah
      pombu report runs/cheetah-* --out cheetah.html
      pombu report runs/* --no-video --no-calibration
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    out: Path | None = None
    """The page (.html); None puts report.html into the first run folder."""
    video: bool = True
    """Record an episode of each run's last policy."""
    calibration: bool = True
    """Compare each run's uncertainty with real returns, which takes some episodes."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object with the page's path and the returns."""

    def run(self) -> int:
        """Write the page and say where it is."""
        from pombu.analysis.report.page import build
        from pombu.files import write_atomic

        if not self.runs:
            raise UsageError("No run is named: give at least one run folder.")
        path = self.out or self.runs[0] / "report.html"
        if path.suffix not in {".html", ".htm"}:
            raise UsageError(f"{path} is no .html file: choose a name that ends so.")
        report = build(self.runs, self.video, self.calibration, self.env, _say)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, report.page.encode())
        if self.json:
            known = {name: _known(values) for name, values in report.returns.items()}
            answer = {"report": str(path), "final_return": report.final_returns}
            missing = {"missing": report.missing}
            print(json.dumps({**answer, "returns": known, **missing}))
            return 0
        for reason in report.missing:
            print(reason)
        print(f"The report is {path}.")
        return 0


def parse_report(arguments: Sequence[str]) -> Report:
    """Read the flags of `pombu report`; `--film` was the name of `--video`."""
    renamed = {"--film": "--video", "--no-film": "--no-video"}
    for old in sorted(renamed.keys() & set(arguments)):
        _say(f"pombu: {old} is now {renamed[old]}, and the next version drops {old}.")
    return parse(Report, "report", [renamed.get(one, one) for one in arguments])


def _known(returns: dict[str, float]) -> dict[str, float]:
    return {kind: value for kind, value in returns.items() if not math.isnan(value)}


def _listed(returns: dict[str, float]) -> str:
    named = (f"{kind} {value:.1f}" for kind, value in _known(returns).items())
    return "returns " + ", ".join(named)


def _say(message: str) -> None:
    print(message, file=sys.stderr)


@dataclasses.dataclass(frozen=True)
class Results:
    """Keep the files of runs for others to check, and write a page about them.

    There is a section for every task, with the paper's numbers where it has some. A
    file `remarks.md` in the folder is repeated on the page.

    Examples:
      pombu results runs/cheetah-0 runs/cheetah-1 --out results/halfcheetah
      pombu results --out results/halfcheetah
      pombu results runs/own-* --out results/own-environments
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders to add; none writes the page again from what was kept."""
    out: Path = Path("results/halfcheetah")
    """Folder for the kept files; the page is written beside it."""
    title: str | None = None
    """The page's heading; None takes the folder's name."""
    up_to: int | None = None
    """Real steps at which longer runs are cut, to be compared with shorter ones."""
    json: bool = False
    """Print one JSON object with the page's path and the kept runs."""

    def run(self) -> int:
        """Keep, draw, write."""
        from pombu.analysis.results_page import keep, write_page
        from pombu.paper.experiments import published_for

        if self.up_to is not None and self.up_to < 1:
            raise UsageError(f"up_to is {self.up_to}: it must be at least 1.")
        if self.out.name in ("", ".."):
            raise UsageError(
                f"out is '{self.out}': name a folder, for the page beside it has its "
                "name."
            )
        kept = keep(self.runs, self.out)
        if not kept:
            raise UsageError(
                f"{self.out} keeps no run yet: name the run folders to add."
            )
        title = self.title or self.out.name
        command = f"pombu results --out {shlex.quote(str(self.out))}"
        if self.title is not None:
            command += f" --title {shlex.quote(self.title)}"
        if self.up_to is not None:
            command += f" --up-to {self.up_to}"
        page = write_page(self.out, title, command, published_for, self.up_to)
        if self.json:
            print(json.dumps({"page": str(page), "runs": [str(run) for run in kept]}))
        else:
            runs = "a run" if len(kept) == 1 else f"{len(kept)} runs"
            print(f"The page is {page}; it speaks of {runs}.")
        return 0


DIAGNOSIS = "diagnosis"


@dataclasses.dataclass(frozen=True)
class Diagnose:
    """Compare a run's learned dynamics with fresh real episodes, in figures and words.

    Drawn are the prediction error by horizon and dimension, a real trajectory beside
    the imagined one, promised against real returns, the members' disagreement against
    their error, and how much intervals hold. The words say what limits the run and what
    to try: a model that promises too much or too little, and whether its reward, its
    terminations or a noisy entry is to blame; uncertainty that is too low or too high;
    exploration; or nothing.

    Examples:
      pombu diagnose runs/pendulum
      pombu diagnose runs/mine --env my_module:make_env --episodes 20 --json
      pombu diagnose runs/offline --data held_out.npz
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 10
    """Real episodes to compare with."""
    data: str | None = None
    """Logged episodes to compare with instead, as `pombu train --data` takes them:
    their actions are repeated in the learned dynamics, and nothing is done in the real
    environment. They tell most if the run has not learned from them."""
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
        from pombu.agent.runs import algorithm_of
        from pombu.analysis.diagnosis import measure
        from pombu.analysis.plots import draw_diagnosis, save_figure, write_json
        from pombu.analysis.verdict import find_limit, summary_of
        from pombu.data import read_logged
        from pombu.training import checkpoint
        from pombu.training.loop import identity
        from pombu.training.run import open_run

        if self.episodes < 1:
            raise UsageError(f"episodes is {self.episodes}: it must be at least 1.")
        # 1. Load the last checkpoint.
        run = open_run(self.folder)
        learner = algorithm_of(run, self.env)
        found = checkpoint.load_latest(
            run.path, learner.init(run.spec.seed), identity(learner, run), _say
        )
        if found is None:
            raise UsageError(
                f"{run.path} has no checkpoint yet: go on with `pombu resume "
                f"{run.named}` first."
            )
        loaded, episodes = found
        # 2. Compare it with real episodes, and read the run's metrics.
        logged = None
        if self.data is not None:
            known = checkpoint.shard_checksums(self.data)
            logged = read_logged(self.data, learner.task, known)
        measured = measure(
            learner, loaded.state, list(episodes), self.episodes, self.seed, logged
        )
        rows = run.rows()
        verdict = find_limit(measured, rows)
        # 3. Write figures and numbers.
        out = self.out or run.path / DIAGNOSIS
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in draw_diagnosis(measured).items():
            save_figure(figure, out, name)
        summary = summary_of(measured, rows, verdict)
        written = write_json(out / "diagnosis.json", summary)
        if self.json:
            print(json.dumps(json.loads(written.read_text())))
            return 0
        print(f"Diagnosis of {run.path}: {verdict.limit}.")
        for sentence in verdict.sentences:
            print(f"- {sentence}")
        print(f"Figures and numbers are in {out}.")
        return 0


@dataclasses.dataclass(frozen=True)
class ModelStudy:
    """Fit kinds of models to stored episodes, and measure their error by horizon.

    Models learn from the first part of each run. They are tested on held-out episodes
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


@dataclasses.dataclass(frozen=True)
class CalibrationStudy:
    """Score the uncertainties of stored runs on fresh real episodes, stage by stage.

    U, F, U_rho and members rolled alone, each raw and recalibrated, are held against
    n-step returns. The policy of each stage plays the episodes; their steps are not
    counted as real steps of the run, and nothing is learned from them. Train with
    `--keep-checkpoints 1000` to have the stages.

    Examples:
      pombu calibration-study runs/pendulum --out results/uncertainty/stages
      pombu calibration-study runs/* --out stages --after 4000 20000 100000
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders of pombu or meppo."""
    out: Path
    """Folder for calibration-study.csv and calibration-study.md."""
    after: tuple[int, ...] = ()
    """Real steps of the stages, of which the nearest checkpoints are taken; none takes
    the last checkpoint."""
    episodes: int = 20
    """Fresh real episodes per stage, at least 10."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""

    def run(self) -> int:
        """Score, and print the page."""
        from pombu.analysis.calibration_study import study, text_of, write

        if not self.runs:
            raise UsageError("No run is named: give at least one run folder.")
        if any(steps < 1 for steps in self.after):
            raise UsageError(f"after is {self.after}; stages are at least 1 step.")
        rows = list(study(self.runs, self.after, self.episodes, self.env))
        paths = write(rows, self.out)
        print(text_of(rows))
        print(f"All numbers are in {paths[0]}.")
        return 0
