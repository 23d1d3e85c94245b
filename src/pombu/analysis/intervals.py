"""Predicted intervals beside real returns, start by start."""

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure
from numpy import ndarray

from pombu.algorithms.pombu.learner import Learner
from pombu.analysis.plots import BLACK, BLUE, grid, style
from pombu.envs import collect
from pombu.errors import UsageError
from pombu.files import write_atomic
from pombu.rng import Keys
from pombu.rollout.q_value import interval, q_estimate, require_calibrated
from pombu.rollout.real import act_alone
from pombu.uncertainty.calibration import coverage_curve

ROLLOUTS = 20
"""Imagined trajectories per start."""


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
    low, high = interval(found, state.calibration, ROLLOUTS, level, of_return=True)
    returns = learner.rules.returns
    clip = np.inf if returns.reward_clip is None else returns.reward_clip
    discounts = returns.gamma ** np.arange(learner.task.horizon)
    came = [discounts[: len(e)] @ np.clip(e.rewards, -clip, clip) for e in real]
    q = np.asarray(found.q, np.float64)
    return Intervals(q, low, high, np.array(came, np.float64), level)


def draw_reliability(error: Any, sigma: Any, title: str = "") -> Figure:
    """Reliability diagram: the share of errors inside intervals of every level."""
    nominal, covered = coverage_curve(error, sigma)
    with style():
        figure, axes = grid(1, 1)
        ax = axes[0, 0]
        ax.plot([0, 1], [0, 1], color=BLACK, linewidth=0.8, label="calibrated")
        ax.plot(nominal, covered, color=BLUE, label="observed")
        ax.set(title=title, xlabel="level of the interval", ylabel="errors inside")
        ax.legend()
    return figure
