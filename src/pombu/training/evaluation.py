"""Evaluation: returns of a policy in real episodes that are not learned from."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pombu.envs import Task, collect
from pombu.errors import UsageError
from pombu.rng import require_seed
from pombu.training.algorithm import Planner, Policy
from pombu.training.run import EVALUATION, write_json

FINAL_EPISODES = 20
MOST_EPISODES = 100_000


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
    if not (isinstance(number, int) and 1 <= number <= MOST_EPISODES):
        raise UsageError(
            f"episodes is {number!r}; it must be a whole number from 1 to "
            f"{MOST_EPISODES}."
        )


def write_evaluation(run: Path, task: Task, policy: Policy) -> None:
    """Measure a run's final policy, with and without its noise.

    A planner has none: it is measured once.
    """
    still = evaluate(task, policy, FINAL_EPISODES, deterministic=True)
    noisy = still
    if not isinstance(policy, Planner):
        noisy = evaluate(task, policy, FINAL_EPISODES, deterministic=False)
    content = {"deterministic": still.to_json(), "stochastic": noisy.to_json()}
    write_json(run / EVALUATION, content)
