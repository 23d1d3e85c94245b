"""Diagnosis of a run: its learned dynamics against fresh real episodes of its policy.

`measure` compares the two, `find_limit` says in sentences what limits the run, and
`draw_figures` shows prediction errors, a trajectory and the members' disagreement.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pombu.algorithms.base import ModelLearner
from pombu.algorithms.registry import ALGORITHMS, learner_type
from pombu.analysis.plots import BLACK, BLUE, CYCLE, GREY, VERMILLION, grid, style
from pombu.data import Normaliser
from pombu.dynamics.error import open_loop
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task, collect
from pombu.errors import RunError, UsageError
from pombu.nn import GaussianPolicy
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.imagine import ImaginationRules, imagine
from pombu.rollout.real import act_alone
from pombu.training.metrics import Row
from pombu.uncertainty.calibration import spearman

LONGEST = 50
"""Steps ahead that are compared."""
LARGEST = 1e6
"""Errors count up to here, so that a prediction that diverges leaves a number."""

OPTIMISM = 2.0
"""Imagined returns this many standard errors above real ones are called biased."""
NOTABLE = 0.1
"""... if the gap is also this share of the returns' size."""
TOO_LOW, TOO_HIGH = 0.4, 3.0
"""Disagreement divided by error: between the two, uncertainty is called fitting."""
STILL = 1e-4
"""KL per update below which the policy hardly moves."""
QUIET = 0.15
"""Standard deviation of actions below which the policy hardly explores."""
NAMED = 6
"""Dimensions that are drawn one by one: those with the largest errors."""
DOTS = 4000
FLOOR = 1e-6

_imagine = jit(imagine)
_step = jit(Dynamics.step)


@dataclass(frozen=True)
class Measurements:
    """Learned dynamics compared with the real environment, under the same policy."""

    error: np.ndarray
    """[T, o] median absolute error of open-loop predictions by horizon, in standard
    deviations of the data; member by member, from many real states."""
    real: np.ndarray
    """[T + 1, o] one real trajectory."""
    predicted: np.ndarray
    """[T + 1, K, o] each member's prediction of it from its first state and actions."""
    disagreement: np.ndarray
    """[n] spread of the members' next states, in standard deviations of the change."""
    one_step_error: np.ndarray
    """[n] error of the members' mean next state, in the same units and states."""
    real_returns: np.ndarray
    """[e] of whole real episodes."""
    imagined_returns: np.ndarray
    """[e] of whole imagined ones from the same starts."""
    action_std: float
    """Mean standard deviation of the policy, where [-1, 1] spans the action box."""
    constant: tuple[int, ...]
    """Observed entries that never changed in the run's data."""


def measure(
    learner: Any, state: Any, episodes: Sequence[Episode], number: int, seed: int
) -> Measurements:
    """Run the policy in `number` real episodes and repeat them in the learned dynamics.

    Raises:
        UsageError: The run's policy does not learn from imagined trajectories.
        RunError: There is nothing to compare yet.
    """
    if not isinstance(learner, ModelLearner):
        able = [
            one for one in ALGORITHMS if issubclass(learner_type(one), ModelLearner)
        ]
        raise UsageError(
            f"{learner.name} has no policy that learns from imagined trajectories, "
            f"which is what there is to diagnose: give a run of {', '.join(able)}."
        )
    if learner.config.model.kind == "simulator":
        raise UsageError(
            "The run imagined in the simulator, so it has no learned dynamics to "
            "diagnose."
        )
    if not len(episodes):
        raise RunError("The run has no real episodes yet: train it first.")
    task: Task = learner.task
    policy: GaussianPolicy = state.policy
    dynamics, rules = learner.dynamics(state), learner.rules
    normaliser = Normaliser.of(state.experience.observation)
    keys = Keys(seed, int(state.iteration))
    act = act_alone(policy, normaliser, number, keys.jax("diagnose"))
    real = collect(task, act, keys.episodes("diagnose", number))
    spread = state.experience.observation.squares
    disagreement, one_step = _one_step(dynamics, real)
    error, trajectory, predicted = _open_loop(dynamics, real)
    return Measurements(
        error,
        trajectory,
        predicted,
        disagreement,
        one_step,
        np.array([episode.rewards.sum() for episode in real]),
        _imagined_returns(policy, dynamics, rules, task, real, keys),
        float(np.mean(np.exp(np.asarray(policy.log_std)))),
        tuple(np.flatnonzero(spread[: task.frame_dim] == 0).tolist()),
    )


def _one_step(
    dynamics: Dynamics, real: Sequence[Episode]
) -> tuple[np.ndarray, np.ndarray]:
    before = np.concatenate([episode.observations[:-1] for episode in real])
    after = np.concatenate([episode.observations[1:] for episode in real])
    actions = np.concatenate([episode.actions for episode in real])
    following = _step(dynamics, before, actions).states
    unit = np.asarray(dynamics.delta.std)
    scaled = np.asarray(following)[..., : len(unit)] / unit
    spread = np.sqrt(scaled.var(0).mean(-1))
    gap = scaled.mean(0) - after[:, : len(unit)] / unit
    return spread, np.sqrt(np.mean(gap**2, -1))


def _open_loop(
    dynamics: Dynamics, real: Sequence[Episode]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Error by horizon and dimension, and the longest episode with its predictions."""
    longest = max(real, key=len)
    length = min(LONGEST, len(longest))
    begins = [
        (episode, t)
        for episode in [longest, *(e for e in real if e is not longest)]
        for t in range(0, len(episode) - length + 1, length)
    ]
    states = np.stack([e.observations[t : t + length + 1] for e, t in begins], 1)
    actions = np.stack([e.actions[t : t + length] for e, t in begins], 1)
    frame = dynamics.delta.std.shape[-1]
    unit = np.asarray(dynamics.observation.std)[:frame]
    predicted = np.asarray(open_loop(dynamics, states[0], actions))[..., :frame]
    states = states[..., :frame]
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.abs(predicted - states[1:, None]) / unit
    error = np.median(np.fmin(gap, LARGEST), (1, 2))
    first = np.broadcast_to(states[0, 0], predicted[:1, :, 0].shape)
    return error, states[:, 0], np.concatenate([first, predicted[:, :, 0]])


def _imagined_returns(
    policy: GaussianPolicy,
    dynamics: Dynamics,
    rules: ImaginationRules,
    task: Task,
    real: Sequence[Episode],
    keys: Keys,
) -> np.ndarray:
    starts = jnp.asarray(np.stack([episode.observations[0] for episode in real]))
    whole = replace(rules, horizon=task.horizon, draw="trajectory")
    members = dynamics.members.count
    everyone = jnp.full(members, 1.0 / members)
    key: jax.Array = keys.jax("diagnose imagined")
    imagined = _imagine(policy, None, dynamics, whole, starts, everyone, key)
    counted = np.asarray(imagined.raw_rewards * imagined.weight).sum(0)
    kept = np.asarray(imagined.weight)[0] > 0
    return np.asarray(counted[kept])


@dataclass(frozen=True)
class Verdict:
    """What limits a run, and why one would say so."""

    limit: str
    """`model bias`, `uncertainty too low`, `uncertainty too high`, `exploration`, or
    `nothing in sight`."""
    sentences: tuple[str, ...]


def find_limit(measured: Measurements, rows: Sequence[Row]) -> Verdict:
    """Read the measurements, and the run's metrics by iteration."""
    found: list[tuple[str, str]] = []
    notes = [_errors(measured)]
    # 1. Does the model promise more than the environment gives?
    gap, biased = optimism(measured)
    real, imagined = measured.real_returns.mean(), measured.imagined_returns
    if not len(imagined):
        sentence = (
            "In the learned dynamics no trajectory stays finite: the model is not to "
            "be trusted beyond a few steps, so collect more data or shorten "
            "imagination.steps."
        )
        found.append(("model bias", sentence))
    elif biased:
        sentence = (
            f"In the learned dynamics the policy earns {imagined.mean():.4g}, in the "
            f"real one {real:.4g}: it exploits what the model got wrong. More real "
            "steps per iteration, a longer fit, a larger alpha (POMBU) or shorter "
            "imagination.steps help."
        )
        found.append(("model bias", sentence))
    else:
        notes.append(
            f"The learned dynamics promises {imagined.mean():.4g} and the real one "
            f"gives {real:.4g}: no optimism beyond chance ({gap:+.4g})."
        )
    # 2. Do the members disagree as much as they err?
    ratio = disagreement_over_error(measured)
    several = measured.predicted.shape[1] > 1
    if several:
        found += _uncertainty(ratio, rows)
    if several and not any("uncertainty" in name for name, _ in found):
        notes.append(
            f"Typical disagreement of the members is {ratio:.2g} times their typical "
            "error; the rank correlation of the two is "
            f"{rank_correlation(measured.disagreement, measured.one_step_error):.2f} "
            "(1: they always disagree most where they err most)."
        )
    notes += _calibration(rows)
    # 3. Does the run still see anything new?
    found += _exploration(measured, rows)
    if measured.constant:
        notes.append(
            f"Observed entries {', '.join(map(str, measured.constant))} never changed: "
            "nothing can be learned from them."
        )
    # 4. The first finding is what limits most: later ones may follow from it.
    limit = found[0][0] if found else "nothing in sight"
    sentences = [sentence for _, sentence in found] or [
        "Nothing stands out: the model is fair, its uncertainty fits and the policy "
        "still moves. Train on."
    ]
    return Verdict(limit, (*sentences, *notes))


def optimism(measured: Measurements) -> tuple[float, bool]:
    """Imagined minus real mean return, and whether that is more than chance."""
    real, imagined = measured.real_returns, measured.imagined_returns
    if not len(imagined):
        return float("nan"), True
    gap = float(imagined.mean() - real.mean())
    spread = real.var() / len(real) + imagined.var() / len(imagined)
    large = NOTABLE * max(abs(float(real.mean())), float(real.std()))
    return gap, gap > max(OPTIMISM * float(np.sqrt(spread)), large)


def disagreement_over_error(measured: Measurements) -> float:
    """Typical disagreement of the members divided by their typical error."""
    error = float(np.median(measured.one_step_error))
    return float(np.median(measured.disagreement)) / max(error, 1e-12)


def rank_correlation(one: np.ndarray, two: np.ndarray) -> float:
    """Spearman's correlation; 0 where one of the two does not vary."""
    found = spearman(one.astype(float), two.astype(float))
    return 0.0 if math.isnan(found) else found


def _errors(measured: Measurements) -> str:
    steps = len(measured.error)
    worst = int(np.argmax(measured.error[-1]))
    return (
        f"Predictions are off by {measured.error[0].mean():.2g} standard deviations "
        f"after 1 step and by {measured.error[-1].mean():.2g} after {steps}; entry "
        f"{worst} is the worst ({measured.error[-1, worst]:.2g})."
    )


def _uncertainty(ratio: float, rows: Sequence[Row]) -> list[tuple[str, str]]:
    kl = _last(rows, "kl")
    if ratio < TOO_LOW:
        sentence = (
            f"The members agree more than they are right: their disagreement is only "
            f"{ratio:.2g} of their error, so what is uncertain does not show. Raise "
            "model.members, or POMBU's alpha."
        )
        return [("uncertainty too low", sentence)]
    if ratio > TOO_HIGH and kl is not None and kl < STILL:
        sentence = (
            f"The members disagree {ratio:.2g} times as much as they err, and the "
            f"policy hardly moves (KL {kl:.1g} per update). Fit longer, or lower "
            "POMBU's alpha, whose penalty holds it back."
        )
        return [("uncertainty too high", sentence)]
    return []


def _calibration(rows: Sequence[Row]) -> list[str]:
    """What the run's last evaluation found of its intervals, if it looked."""
    last = rows[-1] if rows else {}
    if "coverage_90" not in last:
        return []
    return [
        f"Corrected by real returns (sigma times {last['calibration_scale']:.2g}, "
        f"errors of neighbouring steps correlated {last['calibration_rho']:.2g}), "
        f"{last['coverage_90']:.0%} of held-out n-step errors lie in the 90 % interval."
    ]


def _exploration(measured: Measurements, rows: Sequence[Row]) -> list[tuple[str, str]]:
    returns = np.array([row["return_real"] for row in rows if "return_real" in row])
    if len(returns) < 6 or measured.action_std > QUIET:
        return []
    third = len(returns) // 3
    before, late = returns[third : 2 * third], returns[-third:]
    if late.mean() > before.mean() + max(before.std(), late.std()):
        return []
    sentence = (
        f"Actions vary by only {measured.action_std:.2g} of the box's half-width, and "
        f"the return has stood still ({before.mean():.4g}, then {late.mean():.4g}): "
        "the run sees nothing new. Give the policy more noise, or raise POMBU's beta."
    )
    return [("exploration", sentence)]


def _last(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return float(np.mean(values[-3:])) if values else None


def draw_figures(measured: Measurements) -> dict[str, Figure]:
    """All figures, by the name of their files."""
    return {
        "error-by-horizon": _draw_errors(measured),
        "trajectories": _draw_trajectories(measured),
        "disagreement": _draw_disagreement(measured),
    }


def _draw_errors(measured: Measurements) -> Figure:
    """Open-loop prediction error of every dimension, the worst of them by name."""
    steps = np.arange(1, len(measured.error) + 1)
    error = np.maximum(measured.error, FLOOR)
    worst = worst_dimensions(measured)
    with style():
        figure, axes = grid(1, 1, 5.2, 3.4)
        axis = axes[0, 0]
        for dimension in range(error.shape[1]):
            if dimension not in worst:
                axis.plot(steps, error[:, dimension], color=GREY, linewidth=0.6)
        for dimension, colour in zip(worst, CYCLE, strict=False):
            axis.plot(
                steps, error[:, dimension], color=colour, label=f"entry {dimension}"
            )
        axis.plot(
            steps, error.mean(1), color=BLACK, linestyle="--", label="mean of all"
        )
        axis.set_yscale("log")
        axis.set_xlabel("steps ahead")
        axis.set_ylabel("median error / std of the data")
        axis.set_title("Prediction error by horizon")
        axis.legend(loc="lower right", ncols=2)
    return figure


def _draw_trajectories(measured: Measurements) -> Figure:
    """A real trajectory, and what each member makes of its start and actions."""
    shown = worst_dimensions(measured)
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    steps = np.arange(len(measured.real))
    with style():
        figure, axes = grid(rows, columns, 3.0, 2.2)
        for axis, dimension in zip(axes.ravel(), shown, strict=False):
            real = measured.real[:, dimension]
            members = measured.predicted[:, :, dimension]
            axis.plot(steps, members, color=BLUE, linewidth=0.9, alpha=0.7)
            axis.plot(steps, real, color=BLACK)
            margin = 0.5 * max(float(np.ptp(real)), 1e-3)
            axis.set_ylim(real.min() - margin, real.max() + margin)
            axis.set_title(f"entry {dimension}")
        for axis in axes.ravel()[len(shown) :]:
            axis.set_axis_off()
        axes[0, 0].plot([], [], color=BLACK, label="real")
        axes[0, 0].plot([], [], color=BLUE, label="imagined")
        axes[0, 0].legend(loc="best")
        for axis in axes[-1]:
            axis.set_xlabel("steps ahead")
        figure.suptitle("The same actions in the real and in the learned dynamics")
    return figure


def _draw_disagreement(measured: Measurements) -> Figure:
    """Members' disagreement against their error, one dot per real step."""
    chosen = slice(None, None, max(len(measured.disagreement) // DOTS, 1))
    x = np.maximum(measured.disagreement[chosen], FLOOR)
    y = np.maximum(measured.one_step_error[chosen], FLOOR)
    ratio = disagreement_over_error(measured)
    rank = rank_correlation(measured.disagreement, measured.one_step_error)
    with style():
        figure, axes = grid(1, 1, 4.4, 3.8)
        axis = axes[0, 0]
        axis.scatter(x, y, s=5, color=BLUE, alpha=0.3, linewidths=0)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        axis.plot(ends, ends, color=VERMILLION, linewidth=1.2, label="equal")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("disagreement of the members")
        axis.set_ylabel("error of their mean")
        axis.set_title(
            f"One step: disagreement is {ratio:.2g} times the error,\n"
            f"rank correlation {rank:.2f}"
        )
        axis.legend(loc="best")
    return figure


def worst_dimensions(measured: Measurements) -> list[int]:
    """The dimensions with the largest errors at the end, in the data's order."""
    order = np.argsort(measured.error[-1])[::-1][:NAMED]
    return sorted(int(dimension) for dimension in order)
