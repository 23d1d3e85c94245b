"""A search for options: trials of Optuna, each a run per seed on a study's backend.

tune.journal   every trial, line by line; a kill loses none
trials/        a run folder per trial and seed
trials.csv     a table of the trials
best.toml      the best trial as a config file
tuning.json    what was searched, by which seeds, and what was found
importance.png which options mattered

The journal says which trials were under way when the process ended. Their runs go on
from their checkpoints. What is drawn depends on the sampler's seed, the trial's number
and the trials that have ended before, and not on where the search was interrupted.
"""

import contextlib
import dataclasses
import importlib.util
import time
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pombu.errors import PombuError, RunError, UsageError
from pombu.files import changes, write_atomic
from pombu.studies.backends import PATIENCE, Backend, note_failure, read_failure
from pombu.studies.progress import RunProgress, examine, rows_of
from pombu.studies.study import Display, Planned, locked, prepare, require_same
from pombu.studies.tuning_file import Tuning
from pombu.studies.tuning_results import (
    FAILURE,
    SCORES,
    best_trial,
    learning_curve,
    rung_scores,
    score,
    short,
    write_importance,
    write_results,
)
from pombu.training.callbacks import StopRequest, stop_requests
from pombu.training.run import METRICS

JOURNAL, TRIALS = "tune.journal", "trials"
DEFINITION = "definition"
ATTEMPTS = 2
"""How often a run is started that fails, as one whose process was killed does."""
HOPELESS = 3
"""Trials that fail before any has succeeded, after which the search ends."""
POLL = 0.2


@dataclass(frozen=True)
class Limits:
    """When a search ends."""

    trials: int | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Found:
    """What a search has come to."""

    trials: int
    """Those that have ended."""
    best: Any = None
    """The best trial of Optuna, if one is complete."""
    signal: int | None = None
    unfinished: int = 0
    """Trials that the same command goes on with."""


def tune(
    tuning: Tuning,
    folder: Path,
    limits: Limits,
    backend: Backend,
    display: Display,
    trusted: Collection[str] = (),
) -> Found:
    """Search until the limits are reached, beginning where an earlier call ended.

    Raises:
        UsageError: Optuna is not installed, another process is at work in the folder,
            or it holds another search.
        RunError: Nothing but failures has come of it.
    """
    require_optuna()
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder))
        stack.callback(backend.close)
        study = open_journal(tuning, folder)
        request = stack.enter_context(stop_requests(display.say))
        loop = _Loop(tuning, folder, limits, backend, display, trusted, request, study)
        found = loop.run()
        if found.best is not None:
            write_importance(study, folder)
        return found


def require_optuna() -> None:
    """Say how to get Optuna before anything is begun.

    Raises:
        UsageError: It is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UsageError(
            "`pombu tune` needs Optuna, which is not installed: "
            "pip install 'pombu[tune]'."
        )


def open_journal(tuning: Tuning, folder: Path) -> Any:
    """The study of Optuna that a folder's journal holds; a new one where there is none.

    Only one process at a time has the folder, so a lock of the journal, or half a line
    at its end, was left by a process that was killed.

    Raises:
        UsageError: The folder holds another search, or the journal is damaged.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = folder / JOURNAL
    path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            write_atomic(path, whole)
    try:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        study = optuna.create_study(
            storage=storage,
            study_name="pombu",
            direction="maximize",
            load_if_exists=True,
            pruner=_pruner(tuning),
        )
        definition = study.user_attrs.get(DEFINITION)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"{path} is damaged ({error}): restore it, or choose another --out."
        ) from None
    if definition is None:
        study.set_user_attr(DEFINITION, tuning.definition)
    elif changed := changes(definition, tuning.definition):
        raise UsageError(
            f"{folder} holds another search, in which {changed[0]}: choose another "
            "--out, or restore the file."
        )
    return study


def _pruner(tuning: Tuning) -> Any:
    import optuna

    if not tuning.pruning.use:
        return optuna.pruners.NopPruner()
    steps = tuning.job({}, tuning.seeds[0]).spec().total_steps
    return optuna.pruners.MedianPruner(
        n_startup_trials=tuning.startup_trials,
        n_warmup_steps=int(tuning.pruning.warmup * steps),
    )


def _sampler(tuning: Tuning, number: int) -> Any:
    """A sampler for one trial: an interrupted search draws what another would have."""
    import optuna

    seed = np.random.SeedSequence([tuning.sampler_seed, number]).generate_state(1)[0]
    with warnings.catch_warnings():
        # Some versions call it an experiment that what runs is taken into account.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=int(seed), n_startup_trials=tuning.startup_trials, constant_liar=True
        )


@dataclass(eq=False)
class _Trial:
    """A trial under way."""

    trial: Any
    """Optuna's."""
    values: Mapping[str, Any]
    runs: list[Planned]
    waiting: list[Planned]
    running: set[Path] = dataclasses.field(default_factory=set)
    pruned: bool = False
    failure: str = ""
    told: set[int] = dataclasses.field(default_factory=set)
    """Steps at which Optuna knows its learning curve."""

    @property
    def number(self) -> int:
        return int(self.trial.number)

    @property
    def ended(self) -> bool:
        return not self.running and (not self.waiting or self.pruned or self.given_up)

    @property
    def given_up(self) -> bool:
        return bool(self.failure)


class _Loop:
    """One call of `tune`."""

    def __init__(
        self,
        tuning: Tuning,
        folder: Path,
        limits: Limits,
        backend: Backend,
        display: Display,
        trusted: Collection[str],
        request: StopRequest,
        study: Any,
    ) -> None:
        self.tuning = tuning
        self.folder = folder
        self.limits = limits
        self.backend = backend
        self.display = display
        self.trusted = tuning.task if tuning.task in trusted else None
        self.request = request
        self.study = study
        self.attempts: Counter[Path] = Counter()
        minutes = limits.minutes or float("inf")
        self.end = time.monotonic() + 60 * minutes
        self.active: list[_Trial] = []

    def run(self) -> Found:
        """Until the limits are reached, or someone asks to stop."""
        import optuna

        running = (optuna.trial.TrialState.RUNNING,)
        for begun in self.study.get_trials(deepcopy=False, states=running):
            trial = optuna.trial.Trial(self.study, begun._trial_id)
            self._begin(trial, begun.intermediate_values)
        while not (self.request or time.monotonic() >= self.end):
            self._fill()
            if not self.active:
                break
            self._look()
            self.display.show(self._progress(), self.backend.slots)
            time.sleep(POLL)
        self._stop()
        ended = [one for one in self.study.trials if one.state.is_finished()]
        unfinished = len(self.study.trials) - len(ended)
        return Found(len(ended), self._best(), self.request.signal, unfinished)

    def _fill(self) -> None:
        """Give every free slot a run: those of begun trials come first."""
        while self._free():
            waiting = [t for t in self.active if t.waiting and not t.pruned]
            if waiting:
                self._start(waiting[0], waiting[0].waiting.pop(0))
            elif self.limits.trials and len(self.study.trials) >= self.limits.trials:
                return
            else:
                self.study.sampler = _sampler(self.tuning, len(self.study.trials))
                self._begin(self.study.ask())

    def _free(self) -> int:
        return self.backend.slots - sum(len(one.running) for one in self.active)

    def _begin(self, trial: Any, told: Collection[int] = ()) -> None:
        """Take up a trial: a new one, or one that was interrupted."""
        values = {one.key: one.suggest(trial) for one in self.tuning.space}
        begun = _Trial(trial, values, [], [], told=set(told))
        try:
            for seed in self.tuning.seeds:
                spec = self.tuning.job(values, seed).spec()
                spec = dataclasses.replace(spec, keep_checkpoints=1)
                path = self.folder / TRIALS / f"{begun.number:04d}-seed{seed}"
                job = self.tuning.job(values, seed)
                begun.runs.append(Planned(job, spec, path))
                require_same(begun.runs[-1])
        except UsageError as error:  # values that do not go together
            begun.failure = str(error)
        begun.waiting = [
            one
            for one in begun.runs
            if examine(one.path, one.spec.total_steps).state != "finished"
        ]
        # It may have been killed between a report and what follows from it.
        unfinished = (
            begun.runs
            and max(told, default=0) < len(begun.runs) * begun.runs[0].spec.total_steps
        )
        begun.pruned = bool(told and unfinished and trial.should_prune())
        self.active.append(begun)
        self._tell_if_ended(begun)

    def _start(self, trial: _Trial, one: Planned) -> None:
        self.attempts[one.path] += 1
        try:
            prepare(one)
            self.backend.start(one.path, self.trusted)
        except (PombuError, OSError) as error:
            note_failure(one.path, str(error))
            trial.failure = str(error)
            self._tell_if_ended(trial)
            return
        trial.running.add(one.path)

    def _look(self) -> None:
        """Take in which runs have ended, and what the others have learned."""
        ended = self.backend.poll()
        for trial in list(self.active):
            for path in trial.running & ended.keys():
                trial.running.discard(path)
                self._end_run(trial, path, ended[path])
            self._report(trial)
            if trial.given_up or trial.pruned:
                self.backend.stop(trial.running)
            self._tell_if_ended(trial)

    def _end_run(self, trial: _Trial, path: Path, state: str) -> None:
        if state == "finished" or trial.pruned or trial.given_up:
            return
        if state == "failed" and self.attempts[path] >= ATTEMPTS:
            trial.failure = read_failure(path)
            return
        # Its process was killed, or someone else stopped it: it goes on.
        trial.waiting.insert(0, next(one for one in trial.runs if one.path == path))

    def _report(self, trial: _Trial) -> None:
        """Tell Optuna of the learning curves, and ask whether to go on."""
        if trial.pruned or trial.given_up:
            return
        steps = trial.runs[0].spec.total_steps
        objective = self.tuning.objective
        seeds = [
            rung_scores(rows_of(r.path / METRICS), steps, objective) for r in trial.runs
        ]
        curve = learning_curve(seeds, steps)
        for step in sorted(curve.keys() - trial.told):
            trial.trial.report(curve[step], step)
            trial.told.add(step)
            # Point by point, so that it does not matter how often one looks.
            if step < steps * len(seeds) and trial.trial.should_prune():
                trial.pruned = True
                return

    def _tell_if_ended(self, trial: _Trial) -> None:
        """Close a trial whose runs have all ended, and write down what is known."""
        import optuna

        if not trial.ended or trial not in self.active:
            return
        self.active.remove(trial)
        scores = [
            score(rows_of(run.path / METRICS), self.tuning.objective)
            for run in trial.runs
        ]
        known = [value for value in scores if value is not None]
        if not trial.pruned:
            trial.trial.set_user_attr(SCORES, scores)
        if not trial.failure and not trial.pruned and len(known) < len(scores):
            trial.failure = "no evaluation was made: raise total_steps"
        # A failure is the worst that can come of values, and is learned from as such.
        state = optuna.trial.TrialState.PRUNED
        if trial.failure:
            trial.trial.set_user_attr(FAILURE, trial.failure)
            self.study.tell(trial.trial, state=state)
        elif trial.pruned:
            self.study.tell(trial.trial, state=state)
        else:
            self.study.tell(trial.trial, float(np.mean(known)))
        self._say(trial)
        write_results(self.study, self.tuning, self.folder)
        self._require_hope(trial)

    def _require_hope(self, trial: _Trial) -> None:
        """End a search in which nothing works."""
        ended = [one for one in self.study.trials if one.state.is_finished()]
        failed = [one for one in ended if FAILURE in one.user_attrs]
        if len(failed) == len(ended) >= HOPELESS:
            raise RunError(
                f"all of the first {len(failed)} trials failed, the last one because "
                f"{trial.failure.rstrip('.')}: fix what they share, and choose another "
                "--out."
            )

    def _best(self) -> Any:
        return best_trial(self.study)

    def _say(self, trial: _Trial) -> None:
        frozen = self.study.trials[trial.number]
        searched = ", ".join(f"{k} = {short(v)}" for k, v in trial.values.items())
        if trial.failure:
            end = f"failed: {trial.failure}"
        elif trial.pruned:
            last = max(frozen.intermediate_values.items())
            end = f"given up at {last[1]:.4g}, below the median of the others there"
        else:
            end = f"{self.tuning.objective} {frozen.value:.4g}"
        best = self._best()
        known = "" if best is None else f"; best: trial {best.number}, {best.value:.4g}"
        self.display.say(f"trial {trial.number}: {end}{known} ({searched})")

    def _progress(self) -> list[RunProgress]:
        return [
            examine(one.path, one.spec.total_steps, one.path in trial.running)
            for trial in self.active
            for one in trial.runs
        ]

    def _stop(self) -> None:
        """Have every run save itself; its trial stays open in the journal."""
        self.backend.stop()
        end = time.monotonic() + PATIENCE
        while any(one.running for one in self.active) and time.monotonic() < end:
            ended = self.backend.poll()
            for trial in self.active:
                trial.running -= ended.keys()
            time.sleep(POLL)
