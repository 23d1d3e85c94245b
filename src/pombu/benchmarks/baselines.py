"""How fast TRPO, ME-TRPO and SLBO are, at their paper's HalfCheetah sizes.

All three are given per imagined step, whole updates included: imagination, advantages,
baseline or value function, the trust region step and, for SLBO, the model's share.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx

from pombu.algorithms import metrpo, slbo
from pombu.benchmarks.timing import Work, take_turns
from pombu.benchmarks.workload import SEED, TASK, random_episodes, tamed
from pombu.data import learn_from
from pombu.data.episodes import EpisodeStore
from pombu.dreams import Plan, in_ensemble
from pombu.envs import Task, load
from pombu.presets import preset
from pombu.randomness import Keys
from pombu.training.algorithm import StageTimer
from pombu.trpo import improve_policy

STORED = 2000
TRAJECTORIES = 50
"""Of ME-TRPO: a fifth of its paper's batch, at the same cost per step."""
POLICY_UPDATES = 10
"""Of SLBO: a quarter of its paper's round, with a quarter of the model's updates."""


def measure(
    repeats: int, budget: float, sizes: str = "paper"
) -> dict[str, dict[str, float]]:
    """Imagined steps per second of each.

    Args:
        repeats: rounds.
        budget: seconds after which no further round begins.
        sizes: the preset to take them from.
    """
    task = load(TASK)
    ensemble = metrpo_learner(task, sizes)
    alternating = slbo_learner(task, sizes)
    work: dict[str, Work] = {
        "trpo": trpo_step(ensemble),
        "metrpo": metrpo_update(ensemble),
        "slbo": slbo_round(alternating),
    }
    batch = TRAJECTORIES * task.horizon
    per_update = alternating.config.imagination.trajectories * task.horizon
    steps = {
        "trpo": batch,
        "metrpo": batch,
        "slbo": POLICY_UPDATES * per_update,
    }
    times = take_turns(work, repeats, budget)
    return {
        name: {
            "seconds": times.median(name),
            "steps_per_s": steps[name] / times.median(name),
        }
        for name in work
    }


def metrpo_learner(task: Task, sizes: str) -> metrpo.Learner:
    """ME-TRPO that improves once."""
    config = preset("metrpo", sizes, TASK)
    imagination = replace(config.imagination, trajectories=TRAJECTORIES)
    return metrpo.Learner(task, replace(config, updates=1, imagination=imagination))


def slbo_learner(task: Task, sizes: str) -> slbo.Learner:
    """SLBO that goes one short round."""
    config = preset("slbo", sizes, TASK)
    updates = config.model_updates * POLICY_UPDATES // config.policy_updates
    short = replace(
        config, rounds=1, model_updates=updates, policy_updates=POLICY_UPDATES
    )
    return slbo.Learner(task, short)


def trpo_step(learner: metrpo.Learner) -> Work:
    """One trust region step on a given batch."""
    state, episodes, keys = prepared(learner)
    world = learner.world(tamed(state))
    dream = in_ensemble(
        learner.task, world, learner.rules, list(episodes), keys, learner.workers
    )
    plan: Plan = learner.plan("imagine")
    imagined = dream(state.policy, None, plan)
    batch, _, _, _ = metrpo.judge(imagined, state.baseline, learner.config.returns)
    return lambda: improve_policy(state.policy, batch, learner.config.trust_region)


def metrpo_update(learner: metrpo.Learner) -> Work:
    """One whole update of ME-TRPO."""
    state, episodes, keys = prepared(learner)
    return lambda: learner.improve(state, episodes, keys, StageTimer())[0]


def slbo_round(learner: slbo.Learner) -> Work:
    """One round of SLBO: the model's updates, then the policy's."""
    state, episodes, keys = prepared(learner)
    return lambda: learner.alternate(state, episodes, keys, StageTimer())[0]


def prepared(learner: Any) -> tuple[Any, EpisodeStore, Keys]:
    """An untrained state with the experience of random episodes."""
    episodes = EpisodeStore(random_episodes(learner.task, STORED))
    state, returns = learner.init(SEED), learner.config.returns
    experience = learn_from(
        state.experience, list(episodes), returns.gamma, returns.reward_clip
    )
    known = eqx.tree_at(lambda s: s.experience, state, experience)
    return known, episodes, Keys(SEED, 0)
