"""Collection of real episodes, as many at once as there are seeds.

`BatchStepper` advances pombu's own tasks in one call, `SequentialStepper` any Gymnasium
environment one after the other; both give the same episodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from jaxtyping import Float

from pombu.envs.catalogue import close, find_entry, in_one_line
from pombu.envs.environment import Array32, Array64, TaskEnv, to_float32
from pombu.envs.task import Task
from pombu.envs.wrappers import first_stack, next_stack
from pombu.errors import RunError, UsageError

Rows = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

Act = Callable[[Float[np.ndarray, "n obs"], int], Any]
"""`act(observations, step)` gives policy-space actions, one row per episode."""


@dataclass(frozen=True)
class Episode:
    """One real trajectory of T steps."""

    observations: Float[np.ndarray, "_ obs"]
    """One more than steps: the last is where the episode ended."""

    actions: Float[np.ndarray, "T act"]
    """In the environment's units and clipped: what it received."""

    rewards: Float[np.ndarray, "T"]
    terminated: bool
    """False when a time limit (or a fault) ended it."""

    def __len__(self) -> int:
        return len(self.rewards)


LEAST_ENDS = 3
"""Episodes that must end alike before a time limit is suspected."""
LEAST_STEPS = 60
"""Steps that they must have together: short ones end alike by chance."""


def constant_end(lengths: Sequence[int], terminated: Sequence[bool]) -> int | None:
    """The one number of steps after which every episode terminated, if there is one.

    A rule about states hardly ever ends all episodes after equally many steps; a time
    limit does, and is no termination. Episodes of a single step have no clock.
    """
    ends = [n for n, over in zip(lengths, terminated, strict=True) if over]
    if len(ends) < LEAST_ENDS or sum(ends) < LEAST_STEPS or len(set(ends)) != 1:
        return None
    steps = ends[0]
    return steps if steps > 1 and max(lengths) <= steps else None


def suspected_limit(name: str, steps: int) -> str:
    """What to say of an environment that terminates after so many steps."""
    return (
        f"every episode of {name} that terminated did so after exactly {steps} steps, "
        "which looks like a time limit: `terminated` says that nothing more is to be "
        "had there, and imagined episodes cannot know when. Return it as `truncated`, "
        f"or cut episodes one step sooner (`--horizon {steps - 1}`), which counts as "
        "one"
    )


def time_limit_warning(task: Task, episodes: Sequence[Episode]) -> str | None:
    """A sentence on real episodes that end like clockwork; None where they do not."""
    if "terminal" in task.known:
        return None
    steps = constant_end(
        [len(episode) for episode in episodes],
        [episode.terminated for episode in episodes],
    )
    if steps is None:
        return None
    said = suspected_limit(task.config.id, steps)
    return f"{said[0].upper()}{said[1:]}."


class CollectionError(RunError):
    """Collection stopped early; `episodes` holds every transition gathered before."""

    def __init__(self, message: str, episodes: list[Episode]) -> None:
        super().__init__(message)
        self.episodes = episodes


@dataclass(frozen=True)
class Outcome:
    """What a reset or a step gave for the rows that went well."""

    rows: Rows
    observations: Array32
    rewards: Array64
    terminated: Flags
    truncated: Flags
    fault: str | None = None
    """What went wrong with the first row that did not."""
    cause: BaseException | None = None
    """What the environment raised there, with its traceback."""


@runtime_checkable
class Stepper(Protocol):
    """As many episodes side by side as it was made for."""

    def reset(self, seeds: Sequence[int]) -> Outcome:
        """Begin all episodes, each with its seed."""

    def step(self, rows: Rows, actions: Array32) -> Outcome:
        """Advance the episodes in `rows` by one action each, in the box's units."""

    def close(self) -> None:
        """Free the environments."""


class BatchStepper:
    """A pombu task's physics, all running episodes in one call.

    Each episode draws from its own generator in the order that the environment does, so
    the result equals stepping environments one by one.
    """

    def __init__(self, task: Task, number: int) -> None:
        env = task.make().unwrapped
        assert isinstance(env, TaskEnv)
        self._physics = env.physics
        box = env.action_space
        assert isinstance(box, gymnasium.spaces.Box)
        self._low, self._high = box.low.astype(float), box.high.astype(float)
        self._generators: list[np.random.Generator] = []
        self._horizon = task.horizon
        self._history = task.config.history
        self._stack = np.empty(0, np.float32)
        self._states = np.empty(0)
        self._noise = np.empty(0)
        self._step = 0

    def reset(self, seeds: Sequence[int]) -> Outcome:
        """Draw the starts, and all observation noise at once as the streams allow."""
        physics = self._physics
        self._generators = [seeding.np_random(int(seed))[0] for seed in seeds]
        self._states = np.stack([physics.start(rng) for rng in self._generators])
        shape = (self._horizon, physics.observe(self._states).shape[1])
        noise = physics.noise
        if noise.size:
            drawn = [noise.draw_episode(rng, *shape) for rng in self._generators]
            self._noise = np.stack(drawn, axis=1)
        self._step = 0
        every = np.arange(len(self._states))
        nothing = np.zeros(len(every))
        self._stack = first_stack(self._observe(every), self._history)
        return _finite(every, self._stack, nothing, nothing.astype(bool))

    def step(self, rows: Rows, actions: Array32) -> Outcome:
        """Advance the episodes in `rows`; those that have ended stay where they are."""
        physics = self._physics
        clipped = np.clip(actions.astype(np.float64), self._low, self._high)
        before = self._states[rows]
        after = physics.advance_all(before, clipped)
        self._states[rows] = after
        transition = physics.observe(before), clipped, physics.observe(after)
        rewards = physics.contract.reward(*transition)
        terminated = physics.contract.terminal(*transition)
        self._step += 1
        stack = next_stack(self._stack[rows], self._observe(rows))
        self._stack[rows] = stack
        return _finite(rows, stack, rewards, terminated)

    def close(self) -> None:
        """Free the physics."""
        self._physics.close()

    def _observe(self, rows: Rows) -> Array32:
        clean = self._physics.observe(self._states[rows])
        if self._noise.size:
            clean = clean + self._noise[self._step, rows]
        return to_float32(clean)


class SequentialStepper:
    """Any Gymnasium environment, one instance per episode, stepped in turn."""

    def __init__(self, task: Task, number: int) -> None:
        self._envs = [task.make() for _ in range(number)]
        self._shape = (task.observation_dim,)
        self._box = task.action_box

    def reset(self, seeds: Sequence[int]) -> Outcome:
        """Reset each environment with its seed."""

        def one(row: int) -> tuple[Any, ...]:
            observation, _ = self._envs[row].reset(seed=int(seeds[row]))
            return observation, 0.0, False, False

        return self._each(range(len(self._envs)), one)

    def step(self, rows: Rows, actions: Array32) -> Outcome:
        """Step each environment; a fault leaves the others' transitions intact."""
        action_of = dict(zip(rows.tolist(), actions, strict=True))

        def one(row: int) -> tuple[Any, ...]:
            action = self._box.to_env(action_of[row])
            return self._envs[row].step(action)[:4]

        return self._each(rows.tolist(), one)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            # The episodes are here already, and they are what counts.
            close(env)

    def _each(self, rows: Sequence[int], one: Any) -> Outcome:
        done: list[int] = []
        results: list[tuple[Any, ...]] = []
        fault: str | None = None
        cause: BaseException | None = None
        for row in rows:
            try:
                observation, *rest = one(row)
            except (Exception, SystemExit) as error:
                if fault is None:
                    fault, cause = f"raised {in_one_line(error)}", error
                continue
            if any(map(np.ndim, rest)):
                reward, terminated, truncated = map(np.shape, rest)
                fault = fault or (
                    f"gave a reward of shape {reward} and flags of shapes "
                    f"{terminated} and {truncated} where one number each is due"
                )
                continue
            if odd := _no_numbers(*rest):
                fault = fault or odd
                continue
            if observation.shape != self._shape:
                fault = fault or (
                    f"gave an observation with {observation.size} entries where its "
                    f"space has {self._shape[0]}"
                )
                continue
            done.append(row)
            results.append((observation, *rest))
        if not results:
            none = np.empty(0)
            empty = none.astype(np.float32).reshape(0, *self._shape)
            flags = none.astype(bool)
            rows_done = none.astype(np.intp)
            return Outcome(rows_done, empty, none, flags, flags, fault, cause)
        observations, rewards, terminated, truncated = zip(*results, strict=True)
        return _finite(
            np.asarray(done),
            np.stack(observations),
            np.asarray(rewards, dtype=np.float64),
            np.asarray(terminated, dtype=bool),
            np.asarray(truncated, dtype=bool),
            fault,
            cause,
        )


def _no_numbers(reward: Any, terminated: Any, truncated: Any) -> str | None:
    """What to say of a reward or flag that is none; None of proper ones."""
    parts = {"reward": reward, "terminated": terminated, "truncated": truncated}
    for name, given in parts.items():
        if isinstance(given, str | bytes) or np.iscomplexobj(given):
            return f"gave {given!r:.40} as {name}, which is no number"
    try:
        # None becomes NaN, of which there is more to say.
        np.asarray(reward, np.float64)
    except (TypeError, ValueError):
        return f"gave {reward!r:.40} as reward, which is no number"
    return None


def _finite(
    rows: Rows,
    observations: Array32,
    rewards: Array64,
    terminated: Flags,
    truncated: Flags | None = None,
    fault: str | None = None,
    cause: BaseException | None = None,
) -> Outcome:
    """Leave out rows with NaN or infinity, and say so."""
    if truncated is None:
        truncated = np.zeros_like(terminated)
    good_observation = np.isfinite(observations).all(axis=1)
    good = good_observation & np.isfinite(rewards)
    if not good.all():
        what = "a reward" if good_observation.all() else "an observation"
        fault = fault or f"gave {what} that is not finite"
    return Outcome(
        rows[good],
        observations[good],
        rewards[good],
        terminated[good],
        truncated[good],
        fault,
        cause,
    )


def collect(
    task: Task, act: Act, seeds: Sequence[int], batched: bool = True
) -> list[Episode]:
    """One real episode per seed, in the order of `seeds`.

    Args:
        task: Where to collect.
        act: Called with the observations of all episodes, row i belonging to
            `seeds[i]`, and the step's number. Rows of ended episodes are ignored.
        seeds: Each episode is reset with its own, so none depends on the others.
        batched: Step pombu's own tasks together: the result is the same, only sooner.

    Raises:
        CollectionError: The environment or the policy failed; holds what there was.
    """
    if not len(seeds):
        return []
    return collect_rounds(task, lambda _: (act, seeds), 0, batched)


def collect_rounds(
    task: Task,
    round_of: Callable[[int], tuple[Act, Sequence[int]]],
    least_steps: int,
    batched: bool = True,
) -> list[Episode]:
    """One round of episodes, and further ones until there are `least_steps` steps.

    Args:
        task: Where to collect.
        round_of: Gives a round's `act` and seeds, as `collect` takes them; all rounds
            have equally many seeds.
        least_steps: What to collect at least, where episodes end early.
        batched: As for `collect`.

    Raises:
        CollectionError: The environment or the policy failed; holds what there was.
    """
    own = find_entry(task.config.id) is not None
    done: list[Episode] = []
    act, seeds = round_of(0)
    stepper = (BatchStepper if own and batched else SequentialStepper)(task, len(seeds))
    try:
        while True:
            done += _run(task, act, stepper, seeds)
            if sum(map(len, done)) >= least_steps:
                return done
            act, seeds = round_of(len(done) // len(seeds))
    except CollectionError as error:
        raise CollectionError(str(error), [*done, *error.episodes]) from error
    finally:
        stepper.close()


def _run(task: Task, act: Act, stepper: Stepper, seeds: Sequence[int]) -> list[Episode]:
    n = len(seeds)
    record = _Record(task, n)
    first = stepper.reset(seeds)
    record.begin(first)
    _raise_fault(first, task, record)
    running = np.arange(n)
    for step in range(task.horizon):
        raw = np.asarray(act(record.latest, step), dtype=np.float32)
        if raw.shape != (n, task.action_dim):
            raise UsageError(
                f"act returned actions of shape {raw.shape}, but {task.config.id} with "
                f"{n} episodes needs {(n, task.action_dim)}: return a row per episode."
            )
        if not np.isfinite(raw[running]).all():
            raise CollectionError(
                f"The policy gave an action that is not finite in step {step} of "
                f"{task.config.id}; the steps before it are kept: lower the learning "
                "rate or look at the policy's inputs.",
                record.episodes(),
            )
        actions = task.action_box.to_box(raw)
        outcome = stepper.step(running, actions[running])
        record.add(outcome, actions[outcome.rows])
        _raise_fault(outcome, task, record)
        running = outcome.rows[~(outcome.terminated | outcome.truncated)]
        if not len(running):
            break
    return record.episodes()


def _raise_fault(outcome: Outcome, task: Task, record: "_Record") -> None:
    if outcome.fault is None:
        return
    episodes = record.episodes()
    kept = sum(len(episode) for episode in episodes)
    raise CollectionError(
        f"{task.config.id} {outcome.fault}; the {kept} transitions of this batch from "
        "before that are kept: fix the environment and resume.",
        episodes,
    ) from outcome.cause


class _Record:
    """The transitions of all episodes, one row each."""

    def __init__(self, task: Task, n: int) -> None:
        horizon = task.horizon
        self.latest = np.zeros((n, task.observation_dim), np.float32)
        self._observations = np.zeros(
            (n, horizon + 1, task.observation_dim), np.float32
        )
        self._actions = np.zeros((n, horizon, task.action_dim), np.float32)
        self._rewards = np.zeros((n, horizon), np.float32)
        self._lengths = np.zeros(n, np.intp)
        self._terminated = np.zeros(n, np.bool_)

    def begin(self, outcome: Outcome) -> None:
        self.latest[outcome.rows] = outcome.observations
        self._observations[:, 0] = self.latest

    def add(self, outcome: Outcome, actions: Array32) -> None:
        rows, at = outcome.rows, self._lengths[outcome.rows]
        self.latest[rows] = outcome.observations
        self._observations[rows, at + 1] = outcome.observations
        self._actions[rows, at] = actions
        self._rewards[rows, at] = outcome.rewards
        self._terminated[rows] = outcome.terminated
        self._lengths[rows] += 1

    def episodes(self) -> list[Episode]:
        return [
            Episode(
                observations=self._observations[row, : length + 1].copy(),
                actions=self._actions[row, :length].copy(),
                rewards=self._rewards[row, :length].copy(),
                terminated=bool(self._terminated[row]),
            )
            for row, length in enumerate(self._lengths)
            if length
        ]
