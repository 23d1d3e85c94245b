"""What is measured anew from a checkpoint: calibration, intervals, a preview.

Calibration asks whether the uncertainty of Q-values is as large as their errors. From
some start states, with one action each, the model's Q is compared with the mean of real
returns. Both are means of few trajectories, so their sampling variance is added to U:
otherwise that noise would be taken for overconfidence. Intervals are predicted for
single returns, start by start, and stand beside what came.
"""

import base64
import csv
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64
from numpy import ndarray

from pombu.agent.export import frames, write_video
from pombu.agent.runs import algorithm_of, load_state
from pombu.algorithms.pombu.learner import Learner, State
from pombu.envs import collect
from pombu.errors import UsageError
from pombu.files import write_atomic
from pombu.rng import Keys
from pombu.rollout.held_out import interval, real_returns, require_calibrated
from pombu.rollout.imagine import ImaginationRules
from pombu.rollout.q_value import q_estimate, q_returns, q_uncertainty
from pombu.rollout.real import act_alone
from pombu.training.algorithm import Algorithm
from pombu.training.run import Run

T = TypeVar("T")
Say = Callable[[str], None]
STARTS = 24
REAL_EPISODES = 4
IMAGINED = 8
ROLLOUTS = 20
"""Imagined trajectories per start."""


@dataclass(frozen=True)
class Calibrated:
    """Errors of Q at some start states, and what was predicted of them."""

    error: Float64[ndarray, " n"]
    """Mean real return minus the model's Q."""
    uncertainty: Float64[ndarray, " n"]
    """sqrt(U); where the run corrected it by real returns, that instead."""
    noise: float
    """Standard deviation of the error by sampling alone."""

    @property
    def sigma(self) -> Float64[ndarray, " n"]:
        """The predicted standard deviation of the error."""
        return np.sqrt(self.uncertainty**2 + self.noise**2)


@dataclass(frozen=True)
class Preview:
    """An animated picture of one episode."""

    uri: str
    """`data:image/gif;base64,...`"""
    episode_return: float
    steps: int


@dataclass(frozen=True)
class RunMeasures:
    """What was measured of one run; None where it was not asked for or failed."""

    calibrated: Calibrated | None = None
    preview: Preview | None = None
    missing: tuple[str, ...] = ()
    """Why something is not there, in sentences."""


def measure(
    run: Run, name: str, video: bool, calibration: bool, env: str | None, say: Say
) -> RunMeasures:
    """Load a run's last checkpoint and measure what is asked for.

    The page can do without any of it, so no failure stops it.
    """
    missing: list[str] = []

    def attempt(what: str, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except Exception as error:
            missing.append(
                f"{name} has no {what}: {str(error) or type(error).__name__}"
            )
            return None

    def load() -> tuple[Algorithm[Any], Any]:
        algorithm = algorithm_of(run, env)
        return algorithm, load_state(run, algorithm)

    calibrated = recorded = None
    loaded = attempt("video and no calibration", load)
    if loaded is not None and calibration:
        say(f"comparing the uncertainty of {name} with real returns")
        calibrated = attempt("calibration", lambda: calibrate(*loaded))
    if loaded is not None and video:
        say(f"recording {name}")
        recorded = attempt("video", lambda: preview(*loaded))
    return RunMeasures(calibrated, recorded, tuple(missing))


def calibrate(algorithm: Algorithm[Any], state: Any, seed: int = 0) -> Calibrated:
    """Compare a run's Q-values with real returns.

    Raises:
        UsageError: The algorithm has no ensemble with an uncertainty.
    """
    if not isinstance(algorithm, Learner) or algorithm.config.model.kind != "ensemble":
        raise UsageError(
            f"{algorithm.name} gives no uncertainty of its Q-values here: only pombu "
            "and meppo with a learned ensemble do."
        )
    keys = Keys(seed, int(state.iteration))
    observations, actions, real = _real_returns(algorithm, state, keys)
    dynamics = algorithm.dynamics(state)
    # Whole episodes, also where training imagines less: real ones are whole, too.
    rules = replace(algorithm.rules, horizon=algorithm.task.horizon)
    task = (state.policy, state.value, dynamics, rules)
    imagined, sound = q_returns(
        *task,
        jnp.repeat(observations, IMAGINED, 0),
        jnp.repeat(actions, IMAGINED, 0),
        keys.jax("imagined"),
    )
    pairs = (*task, observations, actions, IMAGINED, keys.jax("uncertainty"))
    corrected = state.calibration
    if corrected is not None and int(corrected.episodes):
        found = q_estimate(*pairs, jnp.float32(corrected.rho))
        uncertainty = corrected.imagined_scale_for(rules.horizon) * found.sigma
    else:
        uncertainty = q_uncertainty(*pairs)
    model = np.where(np.asarray(sound), np.asarray(imagined, float), np.nan)
    return _compare(
        real, model.reshape(STARTS, IMAGINED), np.asarray(uncertainty, float)
    )


def _compare(
    real: Float64[ndarray, "n r"],
    model: Float64[ndarray, "n m"],
    uncertainty: Float64[ndarray, " n"],
) -> Calibrated:
    """Errors of means, and the sampling noise pooled over the start states."""
    whole = np.isfinite(model).all(1) & np.isfinite(uncertainty)
    if not whole.any():
        raise UsageError("Every trajectory from every start state left the model.")
    real, model = real[whole], model[whole]
    noise = real.var(1, ddof=1).mean() / real.shape[1]
    noise += model.var(1, ddof=1).mean() / model.shape[1]
    return Calibrated(
        real.mean(1) - model.mean(1), uncertainty[whole], float(np.sqrt(noise))
    )


def _real_returns(
    learner: Learner, state: State, keys: Keys
) -> tuple[Float[Array, "n o"], Float[Array, "n a"], Float64[ndarray, "n r"]]:
    """Start states, first actions, and the discounted returns that followed.

    Episodes of one start state share their reset seed and their first action.
    """
    policy, key = learner.policy(state), keys.jax("real")

    def act(observations: np.ndarray, step: int) -> np.ndarray:
        own = jax.random.fold_in(key, step)
        if step:
            return np.asarray(policy(observations, False, own))
        first = policy(observations[::REAL_EPISODES], False, own)
        return np.repeat(np.asarray(first), REAL_EPISODES, 0)

    seeds = np.repeat(keys.episodes("start", STARTS), REAL_EPISODES)
    episodes = collect(learner.task, act, [int(one) for one in seeds])
    returns = [_discounted(episode.rewards, learner.rules) for episode in episodes]
    chosen = episodes[::REAL_EPISODES]
    return (
        jnp.asarray(np.stack([episode.observations[0] for episode in chosen])),
        jnp.asarray(np.stack([episode.actions[0] for episode in chosen])),
        np.array(returns).reshape(STARTS, REAL_EPISODES),
    )


def _discounted(rewards: np.ndarray, rules: ImaginationRules) -> float:
    """The return that the agent seeks, in units of the task's reward."""
    clip = rules.returns.reward_clip
    limited = rewards if clip is None else np.clip(rewards, -clip, clip)
    return float(limited @ rules.returns.gamma ** np.arange(len(rewards)))


def preview(algorithm: Algorithm[Any], state: Any, seed: int = 0) -> Preview:
    """Record one episode of the deterministic policy."""
    pictures, total, rate = frames(algorithm.task, algorithm.policy(state), seed)
    with tempfile.TemporaryDirectory() as folder:
        picture = write_video(Path(folder) / "video.mp4", pictures, rate)
        text = base64.b64encode(picture.read_bytes()).decode()
    return Preview(f"data:image/gif;base64,{text}", total, len(pictures) - 1)


@dataclass(frozen=True)
class Intervals:
    """Real returns and what was predicted of them before."""

    q: Float64[ndarray, " n"]
    """Predicted return."""
    low: Float64[ndarray, " n"]
    """Lower end of its interval, noise of policy and environment included."""
    high: Float64[ndarray, " n"]
    """Upper end."""
    returns: Float64[ndarray, " n"]
    """What came: discounted as in training, in units of the task's reward."""
    level: float

    @property
    def coverage(self) -> float:
        """Share of returns inside their intervals."""
        inside = (self.low <= self.returns) & (self.returns <= self.high)
        return float(np.mean(inside))

    def write(self, path: Path) -> None:
        """A CSV file with one row per start."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["start", "q", "low", "high", "return"])
        rows = zip(self.q, self.low, self.high, self.returns, strict=True)
        writer.writerows([i, *map(float, row)] for i, row in enumerate(rows))
        write_atomic(path, text.getvalue().encode())


def measure_intervals(
    learner: Any, state: Any, episodes: int, seed: int = 0, level: float = 0.9
) -> Intervals:
    """Run the stochastic policy, and predict each episode's return from its start.

    Raises:
        UsageError: The run has no calibrated uncertainty.
    """
    if not isinstance(learner, Learner) or learner.config.model.kind != "ensemble":
        raise UsageError(
            f"{learner.name} gives no uncertainty of its Q-values here: only pombu "
            "and meppo with a learned ensemble do."
        )
    require_calibrated(state.calibration)
    keys = Keys(seed, int(state.iteration))
    act = act_alone(
        state.policy, learner.normaliser(state), episodes, keys.jax("intervals")
    )
    real = collect(learner.task, act, keys.episodes("intervals", episodes))
    found = q_estimate(
        state.policy,
        state.value,
        learner.dynamics(state),
        replace(learner.rules, horizon=learner.task.horizon),
        jnp.asarray(np.stack([one.observations[0] for one in real])),
        jnp.asarray(np.stack([one.actions[0] for one in real])),
        ROLLOUTS,
        keys.jax("imagined"),
        jnp.float32(state.calibration.rho),
    )
    whole = learner.task.horizon
    low, high = interval(found, state.calibration, ROLLOUTS, whole, level, True)
    q = np.asarray(found.q, np.float64)
    return Intervals(q, low, high, real_returns(real, learner.rules), level)
