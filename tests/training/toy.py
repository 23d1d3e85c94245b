"""A tiny algorithm for tests of the loop: quick, deterministic, easy to make fail.

`python toy.py FOLDER [SECONDS]` trains it in a run folder, or goes on with it, taking
at least that long per iteration.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pombu.data.episodes import EpisodeStore
from pombu.envs import CollectionError, Episode, Task, load
from pombu.training.algorithm import StageTimer
from pombu.training.display import display
from pombu.training.loop import Result, learn
from pombu.training.run import Run, RunSpec, create, open_run

TOTAL_STEPS = 240
STEPS_PER_ITERATION = 24


class State(NamedTuple):
    iteration: Any
    real_steps: Any
    imagined_steps: Any
    weights: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class Config:
    seconds: float = 0.0
    """Time to waste in each iteration."""
    nan_at: int = 0
    """Iteration that gives a NaN."""
    fail_at: int = 0
    """Iteration whose second episode breaks off."""


@dataclasses.dataclass(frozen=True)
class Toy:
    """Weights drift by the mean reward of all episodes and by counted noise."""

    task: Task
    config: Config = Config()
    name: str = "toy"

    def init(self, seed: int) -> State:
        counters = np.asarray(0)
        return State(counters, counters, counters, jnp.zeros(50), jax.random.key(seed))

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, dict[str, float]]:
        number = int(state.iteration) + 1
        with stage("collect"):
            collected = [make_episode(number, 0), make_episode(number, 1)]
            if number == self.config.fail_at:
                raise CollectionError("The simulator broke.", collected[:1])
            episodes.append(collected)
            time.sleep(self.config.seconds / 2)
        with stage("fit"):
            time.sleep(self.config.seconds / 2)
            rewards = np.concatenate([episode.rewards for episode in episodes])
            noise = jax.random.normal(jax.random.fold_in(state.key, number), (50,))
            weights = state.weights + rewards.mean() + 0.1 * noise
        new = State(
            state.iteration + 1,
            state.real_steps + STEPS_PER_ITERATION,
            state.imagined_steps + 1000,
            weights,
            state.key,
        )
        loss = float("nan") if number == self.config.nan_at else float(weights.sum())
        return new, {"return_real": float(number % 7), "loss": loss}

    def policy(self, state: State) -> Any:
        def act(observations: Any, deterministic: bool, key: jax.Array) -> Any:
            mean = -observations * (1.0 + state.weights[0])
            noise = 0.0 if deterministic else jax.random.normal(key, mean.shape)
            return mean + noise

        return act


def make_episode(*seed: int) -> Episode:
    draw = np.random.default_rng(seed)
    steps = STEPS_PER_ITERATION // 2
    return Episode(
        observations=draw.normal(size=(steps + 1, 2)).astype(np.float32),
        actions=draw.normal(size=(steps, 2)).astype(np.float32),
        rewards=draw.normal(size=steps).astype(np.float32),
        terminated=False,
    )


def make_toy(**config: Any) -> Toy:
    return Toy(load("Point2D"), Config(**config))


def new_run(folder: Path, **settings: Any) -> Run:
    return create(folder, RunSpec("toy", "none", 3, TOTAL_STEPS, {}, **settings))


def train(run: Run, toy: Toy | None = None, callbacks: Any = ()) -> Result[State]:
    spec = run.spec
    return learn(toy or make_toy(), spec.seed, spec.total_steps, callbacks, run)


def main(folder: Path, seconds: float) -> int:
    run = open_run(folder) if folder.exists() else new_run(folder)
    result = train(run, make_toy(seconds=seconds), [display()])
    return 0 if result.signal is None else 128 + result.signal


if __name__ == "__main__":
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    sys.exit(main(Path(sys.argv[1]), seconds))
