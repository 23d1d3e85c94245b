"""Does an iteration take longer when more real data is stored?"""

from dataclasses import replace

from pombu.algorithms.pombu import Learner
from pombu.benchmarks.timing import Work, seconds
from pombu.benchmarks.workload import (
    SEED,
    TASK,
    random_episodes,
    stored_steps,
    with_experience,
)
from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, load
from pombu.presets import preset
from pombu.randomness import Keys
from pombu.training.algorithm import StageTimer

SIZES = (20_000, 100_000, 200_000)
_SHORT_FIT = 200


def measure(whole: bool) -> dict[int, float]:
    """Seconds per iteration of the `fast` preset by stored transitions.

    Args:
        whole: time whole iterations; else one fit, of 200 steps, plus one update of
            policy and value, in which what grows with the data weighs more.
    """
    config = preset("pombu", "fast", TASK)
    config = replace(config, capacity=max(SIZES) + config.trajectories * 200)
    if not whole:
        config = replace(
            config, updates=1, model=replace(config.model, max_steps=_SHORT_FIT)
        )
    learner = Learner(load(TASK), config)
    # Growth is about how many rows there are, so the same ones may come again.
    few = random_episodes(learner.task, SIZES[0])
    brief = replace(config, updates=1, model=replace(config.model, max_steps=1))
    _iteration(Learner(learner.task, brief), few, whole)()
    return {
        size: seconds(_iteration(learner, few * (size // stored_steps(few)), whole))
        for size in SIZES
    }


def _iteration(learner: Learner, episodes: list[Episode], whole: bool) -> Work:
    """What is to be timed, with everything known about the episodes beforehand."""
    state = with_experience(learner, episodes)
    store, stage, keys = EpisodeStore(episodes), StageTimer(), Keys(SEED, 1)

    def iterate() -> object:
        if whole:
            return learner.iterate(state, store, stage)
        fitted, _ = learner.fit(state, store, keys)
        return learner.improve(fitted, store, keys, stage)

    return iterate
