"""The learn loop: iterate, record, save, stop, and evaluate at the end.

An iteration's row is written before its checkpoint. A crash between the two leaves a
row too many, which resuming drops; it can never leave one too few.

Ctrl-C and `kill` ask a run to stop; it does so between two stages, so that nothing is
lost.

An evaluation is the returns of a policy in real episodes that are not learned from. A
run may give them a share of its real steps (`affordable_episodes`).
"""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Generic

import jax
import numpy as np

from pombu.data.episodes import EPISODES, EpisodeStore, write_kept
from pombu.envs import Task, collect
from pombu.envs.collection import time_limit_warning
from pombu.errors import RunError, UsageError, require_seed
from pombu.files import write_atomic
from pombu.parallel import usable_cores
from pombu.training import checkpoint
from pombu.training.algorithm import (
    FINAL_EPISODES,
    Algorithm,
    LearnsOffline,
    Planner,
    Policy,
    S,
    StageTimer,
    affordable_episodes,
    final_episodes,
    late_start_warning,
    random_policy,
)
from pombu.training.callbacks import (
    Callback,
    CallbackList,
    Progress,
    StopNow,
    StopRequest,
    stop_requests,
)
from pombu.training.checkpoint import Identity, Manifest
from pombu.training.metrics import (
    MetricsFile,
    NonFiniteError,
    NothingLearnedError,
    peak_memory,
    require_finite,
    require_learning,
    require_rows,
)
from pombu.training.run import Run

SCORE = "return_real"
DIVERGED = "diverged.safetensors"
MOST_EPISODES = 100_000


@dataclasses.dataclass(frozen=True)
class Result(Generic[S]):
    """Where a run ended."""

    state: S
    episodes: EpisodeStore
    finished: bool
    """Whether all real steps were taken or a callback was content."""
    signal: int | None
    """The signal that stopped it."""


def learn(
    algorithm: Algorithm[S],
    seed: int,
    total_steps: int,
    callbacks: Sequence[Callback] = (),
    run: Run | None = None,
    begin: tuple[S, EpisodeStore] | None = None,
    evaluation_share: float | None = None,
    offline: int = 0,
    evaluate: bool = True,
) -> Result[S]:
    """Train until `total_steps` real steps are taken.

    With a run folder, training goes on from the last good checkpoint in it, saves as
    the folder's config says and ends with an evaluation; without one everything stays
    in memory. `begin` is where to go on from instead of an untrained state.

    The others say what a folder says where there is one: `evaluation_share` limits
    evaluation, `offline` is the iteration until which stored episodes alone are learned
    from, and without `evaluate` nothing is ever measured in the real environment.

    Raises:
        RunError: The run cannot go on; what was collected is kept in the run folder.
    """
    combined = CallbackList(callbacks)
    with contextlib.ExitStack() as stack:
        request = stack.enter_context(stop_requests(combined.on_message))
        if run is not None:
            stack.enter_context(run.locked())
            run.record_start()
            run.record_observation(algorithm.task.observation_parts)
            run.record_task(algorithm.task.described)
        share = evaluation_share if run is None else run.spec.evaluation_share
        if run is not None:
            offline, evaluate = run.spec.offline, run.spec.evaluate
        limits = _Limits(share, offline, evaluate)
        loop = _Loop(
            algorithm, seed, total_steps, combined, request, run, begin, limits
        )
        result = loop.learn()
        if run is not None and result.finished and evaluate:
            policy = algorithm.policy(result.state)
            steps, horizon = int(result.state.real_steps), algorithm.task.horizon
            number = final_episodes(share, horizon, steps)
            if isinstance(policy, Planner):
                combined.on_message(
                    f"Measuring what was learned in {number} more episodes; "
                    "every step is planned, so this takes a while."
                )
            _write_evaluation(run, algorithm.task, policy, number)
        return result


def identity(algorithm: Algorithm[S], run: Run | None = None) -> Identity:
    """What this algorithm's checkpoints, in this run, are checkpoints of."""
    environment = dataclasses.asdict(algorithm.task.config)
    config = None if run is None else run.spec.bound
    return Identity(algorithm.name, environment, config)


@dataclasses.dataclass(frozen=True)
class _Limits:
    """What may be done in the real environment."""

    evaluation_share: float | None = None
    offline: int = 0
    evaluate: bool = True


class _Loop(Generic[S]):
    """One call of `learn`."""

    def __init__(
        self,
        algorithm: Algorithm[S],
        seed: int,
        total_steps: int,
        callbacks: CallbackList,
        request: StopRequest,
        run: Run | None,
        begin: tuple[S, EpisodeStore] | None,
        limits: _Limits,
    ) -> None:
        self.algorithm = algorithm
        self.limits = limits
        self.seed = seed
        self.total_steps = total_steps
        self.callbacks = callbacks
        self.request = request
        self.run = run
        self.timer = StageTimer(
            self._before_stage, callbacks.on_stage_end, self._evaluation_episodes
        )
        self.earlier = 0
        self.started = time.perf_counter()
        self.checkpoint_seconds = 0.0
        self.metrics: dict[str, float] = {}
        self.score: float | None = None
        self.told_of_limit = False
        self.returns: list[float] = []
        self.state, self.episodes = begin or (algorithm.init(seed), EpisodeStore())
        self.saved_iteration = 0
        if run is not None:
            self._restore(run)

    @property
    def iteration(self) -> int:
        return int(self.state.iteration)

    def learn(self) -> Result[S]:
        """Iterate to the end, and save what is not saved yet."""
        content = False
        try:
            self.callbacks.on_start(self._progress())
            late = late_start_warning(self.algorithm, self.total_steps)
            taught = self.limits.offline or self._all_steps_taken()
            if late is not None and not taught:
                self.callbacks.on_message(late)
            while not (content or self.request or self._all_steps_taken()):
                content = self._iterate()
        except StopNow:
            pass
        finally:
            self.callbacks.on_stop(self._progress())
        self._save()
        finished = content or self._all_steps_taken()
        return Result(self.state, self.episodes, finished, self.request.signal)

    def _restore(self, run: Run) -> None:
        """Go on from the last good checkpoint; without one, start again."""
        checkpoint.clean(run.path)
        found = checkpoint.load_latest(
            run.path,
            self.state,
            identity(self.algorithm, run),
            self.callbacks.on_message,
        )
        self.file = MetricsFile(run.metrics)
        if found is not None:
            loaded, self.episodes = found
            self.state = loaded.state
            self.saved_iteration = self.iteration
            self._compare(loaded.manifest)
            checkpoint.set_aside_after(run.path, self.iteration)
            # A kill may have come between a save and its pruning.
            checkpoint.prune(run.path, run.spec.keep_checkpoints)
        self.file.drop_after(self.iteration)
        if found is None and len(self.episodes):
            # What the run begins with cannot be had again by resuming it.
            self.saved_iteration = -1
            self._save()
        self.returns = [row[SCORE] for row in self.file.rows() if SCORE in row]

    def _compare(self, manifest: Manifest) -> None:
        """Refuse damaged metrics; tell of another number of cores than before."""
        if manifest.metrics_checksum is not None:
            if self.file.path.exists():
                checksum = manifest.metrics_checksum
                require_rows(self.file.path, self.file.rows(), self.iteration, checksum)
            else:
                self.callbacks.on_message(
                    f"{self.file.path} is missing, so its rows begin anew after "
                    f"iteration {self.iteration}."
                )
        if manifest.cores not in (None, usable_cores()):
            self.callbacks.on_message(
                f"Until iteration {self.iteration} the run had {manifest.cores} cores, "
                f"and now it has {usable_cores()}: the last digits of its numbers may "
                "differ from those of an uninterrupted run."
            )

    def _iterate(self) -> bool:
        """One iteration; whether a callback wants no more."""
        self.timer.reset()
        start = time.perf_counter()
        earlier = self.earlier = len(self.episodes)
        try:
            state, metrics = self._advance()
            self._record(state, metrics, time.perf_counter() - start)
            self._require_finite(state, metrics)
            self.score = metrics.get(SCORE)
        except StopNow:
            self.episodes.drop_after(earlier)
            raise
        except Exception as error:
            self._keep_what_was_collected(earlier, error)
            raise
        except BaseException:  # a second Ctrl-C: what was not learned from is dropped
            self.episodes.drop_after(earlier)
            raise
        self.state = state
        if self.run is None or self.iteration % self.run.spec.checkpoint_every == 0:
            self._save()
        progress = self._progress()
        go_on = self.callbacks.on_iteration(progress)
        if SCORE in metrics:
            go_on = self.callbacks.on_evaluation(progress) and go_on
        self._tell_of_limit()
        try:
            require_learning(metrics, self.iteration)
        except NothingLearnedError:
            self._save()
            raise
        return not go_on

    def _advance(self) -> tuple[S, dict[str, float]]:
        """The next state, with real steps or without."""
        if self.iteration >= self.limits.offline:
            return self.algorithm.iterate(self.state, self.episodes, self.timer)
        assert isinstance(self.algorithm, LearnsOffline), "the caller has asked"
        return self.algorithm.offline(self.state, self.episodes, self.timer)

    def _tell_of_limit(self) -> None:
        """Say once that episodes seem to end by a clock."""
        if self.told_of_limit:
            return
        warning = time_limit_warning(self.algorithm.task, list(self.episodes))
        if warning is not None:
            self.told_of_limit = True
            self.callbacks.on_message(warning)

    def _record(self, state: S, metrics: dict[str, float], seconds: float) -> None:
        """Write the iteration's row."""
        self.metrics = {
            "iteration": int(state.iteration),
            "real_steps": int(state.real_steps),
            "imagined_steps": int(state.imagined_steps),
            **metrics,
            **self.timer.columns,
            "checkpoint_seconds": self.checkpoint_seconds,
            "iteration_seconds": seconds,
            "elapsed_seconds": time.perf_counter() - self.started,
            "peak_memory": peak_memory(),
        }
        self.checkpoint_seconds = 0.0
        if SCORE in metrics:
            self.returns.append(metrics[SCORE])
        if self.run is not None:
            self.file.append(self.metrics)

    def _save(self) -> None:
        """Write a checkpoint unless this iteration has one."""
        if self.run is None or self._is_saved():
            return
        start = time.perf_counter()
        checkpoint.save(
            self.run.path,
            self.state,
            self.episodes,
            identity(self.algorithm, self.run),
            self.iteration,
            self.score,
            self.file.checksum,
        )
        checkpoint.prune(self.run.path, self.run.spec.keep_checkpoints)
        self.saved_iteration = self.iteration
        self.checkpoint_seconds += time.perf_counter() - start

    def _require_finite(self, state: S, metrics: dict[str, float]) -> None:
        """Stop at the first number that is not one, with the state kept to look at."""
        try:
            require_finite(metrics, int(state.iteration))
        except NonFiniteError:
            if self.run is not None:
                path = self.run.path / DIVERGED
                write_atomic(path, checkpoint.state_to_bytes(state))
                self.callbacks.on_message(f"The diverged state is kept in {path}.")
            raise

    def _keep_what_was_collected(self, earlier: int, error: Exception) -> None:
        """Save the real episodes of an iteration that cannot be finished.

        They stay apart from the checkpoints, because the iteration will be done again.
        """
        extra = [*self.episodes.drop_after(earlier), *getattr(error, "episodes", ())]
        with contextlib.suppress(RunError):  # the error that is raised says more
            self._save()
        if self.run is None or not extra:
            return
        with contextlib.suppress(RunError):
            shard = write_kept(self.run.path / EPISODES, extra)
            self.callbacks.on_message(
                f"The {shard.steps} real steps of the unfinished iteration are kept in "
                f"{self.run.path / EPISODES / shard.file}."
            )

    def _before_stage(self, name: str) -> None:
        """Stages are where a run may stop, once its last iteration is on the disk."""
        if self.request and self._is_saved():
            raise StopNow
        self.callbacks.on_stage(name)

    def _evaluation_episodes(self, wanted: int) -> int:
        if not self.limits.evaluate:
            return 0
        before = int(self.state.real_steps)
        new = list(self.episodes)[self.earlier :]
        return affordable_episodes(
            wanted,
            self.limits.evaluation_share,
            int(self.algorithm.task.horizon),
            (before, before + sum(map(len, new))),
            self.iteration,
        )

    def _is_saved(self) -> bool:
        return self.run is None or self.saved_iteration == self.iteration

    def _all_steps_taken(self) -> bool:
        steps = int(self.state.real_steps)
        if self.run is not None:
            return self.run.spec.is_done(self.iteration, steps)
        return self.iteration >= self.limits.offline and steps >= self.total_steps

    def _progress(self) -> Progress:
        return Progress(
            algorithm=self.algorithm.name,
            environment=self.algorithm.task.config.id,
            seed=self.seed,
            total_steps=self.total_steps,
            iteration=self.iteration,
            real_steps=int(self.state.real_steps),
            imagined_steps=int(self.state.imagined_steps),
            metrics=self.metrics,
            returns=tuple(self.returns),
            state=self.state,
            folder=None if self.run is None else self.run.path,
            offline=self.limits.offline,
            last_iteration=None if self.run is None else self.run.spec.last_iteration,
        )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Returns of a number of episodes."""

    deterministic: bool
    seed: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation over episodes."""
        return float(np.std(self.returns))

    def to_json(self) -> dict[str, Any]:
        """For `evaluation.json` and `--json`."""
        summary = {"mean": self.mean, "std": self.std, "episodes": len(self.returns)}
        return {**summary, **dataclasses.asdict(self)}


def evaluate(
    task: Task, policy: Policy, episodes: int, seed: int = 0, deterministic: bool = True
) -> Evaluation:
    """Run a policy for some episodes; the same arguments give the same returns."""
    _require_episodes(episodes)
    require_seed(seed)
    key = jax.random.key(seed)
    policy = policy.begin() if isinstance(policy, Planner) else policy

    def act(observations: Any, step: int) -> Any:
        return policy(observations, deterministic, jax.random.fold_in(key, step))

    drawn = np.random.SeedSequence(seed).generate_state(episodes)
    collected = collect(task, act, [int(number) for number in drawn >> 1])
    return Evaluation(
        deterministic=deterministic,
        seed=seed,
        returns=tuple(float(episode.rewards.sum()) for episode in collected),
        lengths=tuple(len(episode) for episode in collected),
    )


def _require_episodes(number: Any) -> None:
    whole = isinstance(number, int) and not isinstance(number, bool)
    if not (whole and 1 <= number <= MOST_EPISODES):
        raise UsageError(
            f"episodes is {number!r}; it must be a whole number from 1 to "
            f"{MOST_EPISODES}."
        )


def _write_evaluation(
    run: Run, task: Task, policy: Policy, episodes: int = FINAL_EPISODES
) -> None:
    """Measure a run's last policy, with and without its noise, and a random one.

    A planner has no noise: it is measured once.
    """
    still = evaluate(task, policy, episodes, deterministic=True)
    noisy = still
    if not isinstance(policy, Planner):
        noisy = evaluate(task, policy, episodes, deterministic=False)
    chance = evaluate(task, random_policy(task), episodes, deterministic=False)
    measured = {"deterministic": still, "stochastic": noisy, "random": chance}
    run.write_evaluation({name: one.to_json() for name, one in measured.items()})
