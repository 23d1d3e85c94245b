"""Diagnosis of a run: its learned dynamics against fresh real episodes of its policy.

`measure` compares the two, `pombu.analysis.plots` draws it, and what it means is said
by `pombu.analysis.verdict`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pombu.algorithms.base import ModelLearner
from pombu.algorithms.pombu.learner import Learner
from pombu.algorithms.registry import ALGORITHMS, learner_type
from pombu.data import Normaliser
from pombu.dynamics.error import open_loop
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task, collect
from pombu.errors import RunError, UsageError, require_seed
from pombu.nn import GaussianPolicy
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.held_out import real_steps
from pombu.rollout.imagine import ImaginationRules, imagine
from pombu.rollout.real import act_alone
from pombu.uncertainty.calibration import coverage_curve
from pombu.uncertainty.n_step import STEPS, RealSteps, windows

LONGEST = 50
"""Steps ahead that are compared."""
LARGEST = 1e6
"""Errors count up to here, so that a prediction that diverges leaves a number."""
IMAGINED = 8
"""Imagined trajectories from each real start."""
NAMED = 6
"""Dimensions that are drawn one by one: those with the largest errors."""
UNEXPLAINED = 0.2
"""Share of the change's variance that predictions miss, from which an entry may be
noise ..."""
AGREED = 0.25
"""... if the members' variance is a smaller share of that than this ..."""
LASTING = 0.4
"""... and errors of neighbouring steps correlate less than this."""
FLOOR = 1e-6

_imagine = jit(imagine)
_step = jit(Dynamics.step)


@dataclass(frozen=True)
class Ends:
    """Real steps, and what the learned dynamics says of them: is it the last one?"""

    real: int
    """Steps that ended an episode for good."""
    missed: int
    """Those that most members take for others."""
    others: int
    """Steps that did not."""
    invented: int
    """Those that most members take for ends."""
    imagined_share: float = 0.0
    """Share of imagined trajectories that end before the time limit."""


@dataclass(frozen=True)
class Reliability:
    """How often errors of n-step returns lie in central intervals of each level."""

    nominal: np.ndarray
    """[L] levels from 0 to 1."""
    plain: np.ndarray
    """[L] observed shares, with sigma = sqrt(U) as Algorithm 1 gives it."""
    corrected: np.ndarray | None
    """[L] observed shares, with sigma as the run corrected it by other real episodes;
    None where it has not."""

    def at(self, level: float) -> tuple[float, float | None]:
        """Observed shares at one level: plain and corrected."""
        plain = float(np.interp(level, self.nominal, self.plain))
        if self.corrected is None:
            return plain, None
        return plain, float(np.interp(level, self.nominal, self.corrected))


@dataclass(frozen=True)
class Measurements:
    """Learned dynamics compared with the real environment, under the same policy."""

    names: tuple[str, ...]
    """Of the o observed entries."""
    error: np.ndarray
    """[T, o] median absolute error of open-loop predictions by horizon, in standard
    deviations of the data; member by member, from many real states."""
    real: np.ndarray
    """[T + 1, o] one real trajectory."""
    predicted: np.ndarray
    """[T + 1, K, o] each member's prediction of it from its first state and actions."""
    disagreement: np.ndarray
    """[n, o] spread of the members' next states, in standard deviations of the
    change."""
    one_step_error: np.ndarray
    """[n, o] the members' mean next state minus the real one, in the same units."""
    reward_error: np.ndarray
    """[n] the members' mean reward minus the real one."""
    episode: np.ndarray
    """[n] which real episode a step is of."""
    real_returns: np.ndarray
    """[e] of whole real episodes."""
    imagined_returns: np.ndarray
    """[e, m] of imagined ones from the same starts; NaN where one ran away."""
    ends: Ends
    action_std: float
    """Mean standard deviation of the policy, where [-1, 1] spans the action box."""
    constant: tuple[int, ...] = ()
    """Observed entries that never changed in the run's data."""
    reward_known: bool = False
    """Whether rewards come from the environment's contract."""
    ends_known: bool = False
    """Whether ends come from it, if from anywhere; else they are learned."""
    uses_disagreement: bool = True
    """Whether the algorithm makes use of the members' disagreement."""
    reliability: Reliability | None = None
    """None where the algorithm has no Q-values with an uncertainty."""

    @property
    def members(self) -> int:
        """How many predicted."""
        return int(self.predicted.shape[1])


def measure(
    learner: Any,
    state: Any,
    episodes: Sequence[Episode],
    number: int,
    seed: int,
    logged: Sequence[Episode] | None = None,
) -> Measurements:
    """Run the policy in `number` real episodes and repeat them in the learned dynamics.

    With logged episodes as many of them take the place of the policy's, and returns are
    imagined with their actions: nothing is done in the real environment.

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
    # 1. Real episodes of the policy, which nothing is learned from.
    require_seed(seed)
    task: Task = learner.task
    policy: GaussianPolicy = state.policy
    dynamics = learner.dynamics(state)
    normaliser = Normaliser.of(state.experience.observation)
    keys = Keys(seed, int(state.iteration))
    if logged is None:
        act = act_alone(policy, normaliser, number, keys.jax("diagnose"))
        real = collect(task, act, keys.episodes("diagnose", number))
    else:
        evenly = np.linspace(0, len(logged) - 1, min(number, len(logged)))
        real = [logged[int(index)] for index in evenly.round()]
    # 2. The same in the learned dynamics: one step, many steps, whole episodes.
    steps = _one_step(dynamics, real)
    error, trajectory, predicted = _open_loop(dynamics, real)
    if logged is None:
        returns, ended = _imagined(policy, dynamics, learner.rules, task, real, keys)
    else:
        returns, ended = _followed(dynamics, learner.rules, real)
    squares = state.experience.observation.squares
    return Measurements(
        task.frame_names,
        error,
        trajectory,
        predicted,
        steps.disagreement,
        steps.error,
        steps.reward_error,
        np.repeat(np.arange(len(real)), [len(episode) for episode in real]),
        np.array([episode.rewards.sum() for episode in real]),
        returns,
        _ends(real, steps.said_ended, ended),
        float(np.mean(np.exp(np.asarray(policy.log_std)))),
        tuple(np.flatnonzero(squares[: task.frame_dim] == 0).tolist()),
        dynamics.reward is None,
        learner.config.model.termination == "known",
        isinstance(learner, Learner),
        # Errors of V are those of the policy's own returns.
        _reliability_of(learner, state, real) if logged is None else None,
    )


@dataclass(frozen=True)
class _Steps:
    """What members make of real steps, one by one."""

    disagreement: np.ndarray
    error: np.ndarray
    reward_error: np.ndarray
    said_ended: np.ndarray


def _one_step(dynamics: Dynamics, real: Sequence[Episode]) -> _Steps:
    before = np.concatenate([episode.observations[:-1] for episode in real])
    after = np.concatenate([episode.observations[1:] for episode in real])
    actions = np.concatenate([episode.actions for episode in real])
    rewards = np.concatenate([episode.rewards for episode in real])
    following, learned, ends = _step(dynamics, before, actions)
    unit = np.asarray(dynamics.delta.std)
    scaled = np.asarray(following)[..., : len(unit)] / unit
    with np.errstate(over="ignore", invalid="ignore"):
        return _Steps(
            scaled.std(0),
            scaled.mean(0) - after[:, : len(unit)] / unit,
            np.asarray(learned).mean(0) - rewards,
            np.asarray(ends).mean(0) > 0.5,
        )


def _ends(real: Sequence[Episode], said: np.ndarray, imagined_share: float) -> Ends:
    ended = np.zeros(len(said), bool)
    last = np.cumsum([len(episode) for episode in real]) - 1
    ended[last] = [episode.terminated for episode in real]
    return Ends(
        int(ended.sum()),
        int((ended & ~said).sum()),
        int((~ended).sum()),
        int((said & ~ended).sum()),
        imagined_share,
    )


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


def _imagined(
    policy: GaussianPolicy,
    dynamics: Dynamics,
    rules: ImaginationRules,
    task: Task,
    real: Sequence[Episode],
    keys: Keys,
) -> tuple[np.ndarray, float]:
    """[e, m] returns of whole imagined episodes; the share that end before the limit.

    Trajectories that run away have no return: theirs is NaN.
    """
    first = np.stack([episode.observations[0] for episode in real])
    whole = replace(rules, horizon=task.horizon, draw="trajectory")
    members = dynamics.members.count
    everyone = jnp.full(members, 1.0 / members)
    key: jax.Array = keys.jax("diagnose imagined")
    starts = jnp.asarray(np.repeat(first, IMAGINED, 0))
    imagined = _imagine(policy, None, dynamics, whole, starts, everyone, key)
    weight = np.asarray(imagined.weight)
    counted = (np.asarray(imagined.raw_rewards, np.float64) * weight).sum(0)
    kept = weight[0] > 0
    over = (np.asarray(imagined.continues) == 0) & (weight > 0)
    returns = np.where(kept, counted, np.nan).reshape(len(real), IMAGINED)
    return returns, float(over.any(0)[kept].mean()) if kept.any() else 0.0


def _followed(
    dynamics: Dynamics, rules: ImaginationRules, real: Sequence[Episode]
) -> tuple[np.ndarray, float]:
    """[e, K] returns of each member that repeats the episodes' actions; share of ends.

    What runs away has no return: it is NaN.
    """
    lengths = np.array([len(episode) for episode in real])
    actions = np.zeros((lengths.max(), len(real), real[0].actions.shape[1]), np.float32)
    for number, episode in enumerate(real):
        actions[: len(episode), number] = episode.actions
    first = np.stack([episode.observations[0] for episode in real])
    rewards, ends, sound = map(
        np.asarray, _follow(dynamics, first, actions, rules.runaway)
    )
    counts = np.arange(len(actions))[:, None, None] < lengths
    total = np.where(counts, rewards, 0.0).sum(0, dtype=np.float64)
    kept = np.all(sound | ~counts, 0)
    early = np.arange(len(actions))[:, None, None] < lengths - 1
    over = np.any(ends & early, 0)
    returns = np.where(kept, total, np.nan).T
    share = np.sum(over & kept) / max(np.sum(kept), 1)
    return returns, float(share)


@partial(jit, static_argnames="runaway")
def _follow(
    dynamics: Dynamics,
    starts: Float[Array, "n o"],
    actions: Float[Array, "T n a"],
    runaway: float,
) -> tuple[Float[Array, "T K n"], Bool[Array, "T K n"], Bool[Array, "T K n"]]:
    """Rewards, ends, and whether states are plausible, of every member alone."""
    members = dynamics.members.count

    def step(states: Array, action: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        shared = jnp.broadcast_to(action, (members, *action.shape))
        moved = dynamics.move(states, shared)
        sound = dynamics.plausible(moved.states, runaway) & jnp.isfinite(moved.rewards)
        # What ran away goes on from where it was, so that no NaN reaches a matmul.
        following = jnp.where(sound[..., None], moved.states, states)
        return following, (moved.rewards, moved.ends, sound)

    first = jnp.broadcast_to(starts, (members, *starts.shape))
    _, found = jax.lax.scan(step, first, actions)
    rewards, ends, sound = found
    return rewards, ends, sound


def _reliability_of(
    learner: Any, state: Any, episodes: Sequence[Episode]
) -> Reliability | None:
    """Coverage of n-step errors by the run's sigma, on episodes it has not seen.

    None where there is no ensemble with a value function, or its members agree
    entirely.
    """
    if not isinstance(learner, Learner):
        return None
    gamma = learner.rules.returns.gamma
    real = real_steps(
        state.value,
        learner.dynamics(state),
        learner.rules,
        episodes,
        learner.task.horizon,
    )
    plain = _coverage(real, gamma, 0.0, lambda n: 1.0)
    if plain is None:
        return None
    fitted = state.calibration
    corrected = None
    if fitted is not None and int(fitted.episodes):
        corrected = _coverage(real, gamma, float(fitted.rho), fitted.scale_for)
    nominal = np.linspace(0.0, 1.0, len(plain))
    return Reliability(nominal, plain, corrected)


def _coverage(
    real: RealSteps, gamma: float, rho: float, scale_for: Callable[[int], float]
) -> np.ndarray | None:
    """Observed shares by level, the mean over all n that have errors."""
    curves = []
    for n in STEPS:
        found = windows(real, n, gamma, rho)
        if len(found.error):
            curves.append(coverage_curve(found.error, scale_for(n) * found.sigma)[1])
    return np.mean(curves, 0) if curves else None


def step_sizes(measured: Measurements) -> tuple[np.ndarray, np.ndarray]:
    """[n] disagreement and error of every real step, over the entries that change.

    What is only noise is left out, for members can learn nothing about it.
    """
    skipped = {*measured.constant, *noisy_dimensions(measured)}
    kept = [i for i in range(measured.error.shape[1]) if i not in skipped]
    kept = kept or list(range(measured.error.shape[1]))
    spread = np.sqrt((measured.disagreement[:, kept] ** 2).mean(1))
    return spread, np.sqrt((measured.one_step_error[:, kept] ** 2).mean(1))


def disagreement_over_error(measured: Measurements) -> float:
    """Typical disagreement of the members divided by their typical error."""
    spread, error = step_sizes(measured)
    return float(np.median(spread)) / max(float(np.median(error)), 1e-12)


def noisy_dimensions(measured: Measurements) -> list[int]:
    """Entries whose next value cannot be predicted, and about which members agree.

    Errors that come back from step to step are not noise: there the model is wrong.
    """
    error = measured.one_step_error.astype(np.float64)
    missed = (error**2).mean(0)
    disagreed = (measured.disagreement.astype(np.float64) ** 2).mean(0)
    same = measured.episode[1:] == measured.episode[:-1]
    again = (error[1:] * error[:-1])[same]
    lasting = again.mean(0) / np.maximum(missed, FLOOR) if len(again) else missed
    noisy = (missed > UNEXPLAINED) & (disagreed < AGREED * missed) & (lasting < LASTING)
    return [int(i) for i in np.flatnonzero(noisy) if i not in measured.constant]


def worst_dimensions(measured: Measurements) -> list[int]:
    """The dimensions with the largest errors at the end, in the data's order."""
    order = np.argsort(measured.error[-1])[::-1][:NAMED]
    return sorted(int(dimension) for dimension in order)
