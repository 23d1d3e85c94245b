"""An algorithm of NumPy alone: an iteration takes a millisecond, and JAX never starts.

So a process can be forked after its imports, and be killed as often as one likes.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, Task
from pombu.training import loop, run
from pombu.training.algorithm import StageTimer
from pombu.training.run import RunSpec, create, open_run

STEPS = 6
"""Of an iteration, in two episodes."""
ITERATIONS = 8


class State(NamedTuple):
    """Counters and some weights."""

    iteration: Any
    real_steps: Any
    imagined_steps: Any
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Toy:
    """Weights drift by the rewards of all episodes; a metric appears midway."""

    task: Task
    config: Any = None
    name: str = "toy"

    def init(self, seed: int) -> State:
        """Nothing learned."""
        zero = np.asarray(0)
        return State(zero, zero, zero, np.full(20, float(seed)))

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, dict[str, float]]:
        """Two episodes, and a step of the weights."""
        number = int(state.iteration) + 1
        with stage("collect"):
            episodes.append([episode(number, 0), episode(number, 1)])
        with stage("fit"):
            mean = float(np.mean([one.rewards.mean() for one in episodes]))
            weights = state.weights + mean
        new = State(
            state.iteration + 1,
            state.real_steps + STEPS,
            state.imagined_steps + 10,
            weights,
        )
        metrics = {"return_real": float(number % 5), "loss": float(weights.sum())}
        return new, metrics if number < 5 else {**metrics, "late": mean}

    def policy(self, state: State) -> Any:
        """Actions by the weights, without any noise."""

        def act(observations: Any, deterministic: bool, key: Any) -> Any:
            return -observations * (1.0 + state.weights[0])

        return act


def episode(*seed: int) -> Episode:
    """Some numbers."""
    draw, steps = np.random.default_rng(seed), STEPS // 2
    return Episode(
        observations=draw.normal(size=(steps + 1, 2)).astype(np.float32),
        actions=draw.normal(size=(steps, 2)).astype(np.float32),
        rewards=draw.normal(size=steps).astype(np.float32),
        terminated=False,
    )


def evaluation(
    task: Task, policy: Any, episodes: int, seed: int = 0, deterministic: bool = True
) -> loop.Evaluation:
    """In place of real episodes, whose actions need random numbers of JAX."""
    returns = (0.0,)
    if not hasattr(policy, "random"):
        returns = tuple(np.linspace(0, 1, episodes).tolist())
    return loop.Evaluation(deterministic, seed, returns, (STEPS,) * episodes)


def train(folder: Path, task: Task, every: int = 1) -> None:
    """Train in a folder, or go on with the run in it."""
    # What is measured here is files; versions and Git would take most of the time.
    run.provenance = lambda: {"started": "then", "usable_cores": 1}
    loop.evaluate = evaluation
    if folder.exists():
        found = open_run(folder)
    else:
        steps, config = ITERATIONS * STEPS, {"rate": 0.5}
        found = create(
            folder,
            RunSpec("toy", "none", 3, steps, config, every, keep_checkpoints=2),
        )
    loop.learn(Toy(task), found.spec.seed, found.spec.total_steps, (), found)
