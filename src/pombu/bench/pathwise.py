"""How fast DHMBPO is on HalfCheetah: updates, distribution rollouts and fits.

At the sizes of `fast`. An update is timed as training does it: a block of updates with
the distribution rollout before them, in one compiled program. It is compared with plain
PyTorch without sqrt(U), as DHMBPO is published, and with itself with sqrt(U).
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import equinox as eqx
import jax

from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.learner import Learner
from pombu.algorithms.dhmbpo.training import distribution_rollout, improve
from pombu.algorithms.presets import preset
from pombu.algorithms.soft_learner import SoftState
from pombu.bench.workload import (
    SEED,
    TASK,
    Work,
    backward_too,
    forward,
    products,
    random_episodes,
    take_turns,
)
from pombu.data import learn_from
from pombu.envs import Episode, Task, load
from pombu.parallel import jit
from pombu.rng import Keys

STORED = 2000
BLOCKS = 1
"""Blocks of updates in a timed piece."""
FIT_ROWS = 100
"""New rows of a timed fit."""

_roll_out = jit(distribution_rollout, static_argnames="config")


def measure_pathwise(
    repeats: int, budget: float, f32_gflops: float, sizes: str = "fast"
) -> dict[str, Any]:
    """Updates, rollouts and fits per second, their shares of the limit, and ratios.

    Args:
        repeats: rounds.
        budget: seconds after which no further round begins.
        f32_gflops: the machine's limit.
        sizes: the preset to take them from.
    """
    task = load(TASK)
    config = preset("dhmbpo", sizes, TASK)
    plain = Learner(task, replace(config, kappa=0.0))
    doubting = Learner(task, replace(config, kappa=1.0))
    episodes = random_episodes(task, STORED)
    state = with_experience(plain, episodes)
    pieces: dict[str, Work] = {
        "update": updates(plain, state, episodes),
        "with_uncertainty": updates(doubting, state, episodes),
        "distribution": rollout(plain, state, episodes),
        "fit": fit(plain, state, episodes),
    }
    if find_spec("torch") is not None:
        from pombu.bench import pytorch_pathwise

        pieces["pytorch"] = pytorch_pathwise.piece(plain, state)
    times = take_turns(pieces, repeats, budget)
    count = BLOCKS * config.distribution.every
    rows = fit_steps(config) * config.model.batch_size * config.model.members
    amounts = {"update": count, "distribution": 1, "fit": rows}
    work = operations(task, config)
    return {
        **{
            name: {
                "seconds": times.median(name) / amount,
                "per_s": (speed := amount / times.median(name)),
                "share_of_limit": speed * work[name] / 1e9 / f32_gflops,
            }
            for name, amount in amounts.items()
        },
        "uncertainty_overhead": times.ratio("with_uncertainty", "update") - 1.0,
        "vs_pytorch": times.ratio("pytorch", "update") if "pytorch" in pieces else None,
    }


def with_experience(learner: Learner, episodes: list[Episode]) -> SoftState:
    """An untrained state that has seen the episodes."""
    state = learner.init(SEED)
    experience = learn_from(state.experience, episodes, learner.config.gamma)
    # Untrained members must predict small changes, so that no rollout runs away.
    known: SoftState = eqx.tree_at(
        lambda s: (s.experience, s.members.layers.weights[-1], s.members.log_std),
        state,
        (
            experience,
            0.05 * state.members.layers.weights[-1],
            state.members.log_std - 3.0,
        ),
    )
    return known


def updates(learner: Learner, state: SoftState, episodes: list[Episode]) -> Work:
    """Blocks of updates, each with its distribution rollout."""
    real, filled = learner.real_states(episodes)
    given = (
        learner.networks(state),
        learner.optimisers(state),
        learner.imagination(state),
    )
    key = jax.random.key(SEED)
    return lambda: improve(
        *given,
        real,
        filled,
        0,
        0,
        BLOCKS,
        key,
        learner.target_entropy,
        learner.config,
    )


def rollout(learner: Learner, state: SoftState, episodes: list[Episode]) -> Work:
    """One distribution rollout."""
    real, filled = learner.real_states(episodes)
    imagination, key = learner.imagination(state), jax.random.key(SEED)
    return lambda: _roll_out(
        state.actor, imagination, real, filled, key, learner.config
    )


def fit_steps(config: DHMBPOConfig) -> int:
    """Gradient steps of the timed fit."""
    return int(config.model.steps_per_new_row * FIT_ROWS)


def fit(learner: Learner, state: SoftState, episodes: list[Episode]) -> Work:
    """A fit for so many new rows."""
    steps = fit_steps(learner.config)
    model = replace(learner.config.model, min_steps=steps, max_steps=steps)
    short = Learner(learner.task, replace(learner.config, model=model))
    return lambda: short.fit(state, episodes, Keys(SEED, 0))[0].members


def operations(task: Task, config: DHMBPOConfig) -> dict[str, int]:
    """In matrix products: of an update, a distribution rollout, a row of a fit."""
    obs, act = task.observation_dim, task.action_dim
    nets, batch = config.actor_critic, config.batch_size
    member = products(obs + act, config.model.hidden, obs)
    actor = products(obs, nets.hidden, 2 * act)
    critic = products(obs + act, nets.hidden, 1)
    # 1. The training rollout, and gradients back through members and actor.
    steps = config.training_steps
    rolled = steps * 2 * forward(member) + (steps + 1) * backward_too(actor)
    # 2. Targets, the critics' gradient step, and the actor's way through them.
    guides = nets.actor_subset or nets.critics
    judged = nets.subset * forward(critic) + nets.critics * backward_too(critic)
    judged += guides * 2 * forward(critic)
    distribution = config.distribution.starts * config.distribution.steps
    rollout = distribution * (forward(member) + forward(actor))
    return {
        # Its part of a distribution rollout is the update's as well.
        "update": batch * (rolled + judged) + rollout // config.distribution.every,
        "distribution": rollout,
        "fit": backward_too(member),
    }
