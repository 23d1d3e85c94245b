"""How fast the other algorithms are on HalfCheetah, in units of their own work.

TRPO, ME-TRPO and SLBO are given per imagined step, whole updates included: imagination,
advantages, baseline or value function, the trust region step and, for SLBO, the model's
share; at their paper's sizes. PETS acts, STEVE updates and MB-MPO meta-steps, at their
`fast` sizes; each is compared with the machine's limit by the operations in matrix
products that the algorithm asks for.

DHMBPO's updates are timed as training does them: a block with the distribution rollout
before it, in one compiled program. They are compared with plain PyTorch without
sqrt(U), as DHMBPO is published, and with themselves with sqrt(U).
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import equinox as eqx
import jax
import numpy as np

from pombu.algorithms.dhmbpo import learner as dhmbpo
from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.training import distribution_rollout
from pombu.algorithms.mbmpo import learner as mbmpo
from pombu.algorithms.metrpo import learner as metrpo
from pombu.algorithms.pets import learner as pets
from pombu.algorithms.registry import preset
from pombu.algorithms.slbo import learner as slbo
from pombu.algorithms.soft_learner import SoftState
from pombu.algorithms.steve import learner as steve
from pombu.bench.workload import (
    SEED,
    TASK,
    Work,
    backward_too,
    forward,
    products,
    random_episodes,
    take_turns,
    tamed,
)
from pombu.data import learn_from
from pombu.data.episodes import EpisodeStore
from pombu.envs import Episode, Task, load
from pombu.optim.trpo import improve_policy
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.plan import RolloutPlan, imaginer
from pombu.training.algorithm import StageTimer

STORED = 2000
TRAJECTORIES = 50
"""Of ME-TRPO: a fifth of its paper's batch, at the same cost per step."""
POLICY_UPDATES = 10
"""Of SLBO: a quarter of its paper's round, with a quarter of the model's updates."""
UPDATES = 50
"""Of STEVE in each timed piece."""
BLOCKS = 1
"""Of DHMBPO's updates in each timed piece."""
FIT_ROWS = 100
"""New rows of DHMBPO's timed fit."""

_roll_out = jit(distribution_rollout, static_argnames="config")


def measure_trust_region(
    repeats: int, budget: float, sizes: str = "paper"
) -> dict[str, dict[str, float]]:
    """Imagined steps per second of TRPO, ME-TRPO and SLBO.

    Args:
        repeats: rounds.
        budget: seconds after which no further round begins.
        sizes: the preset to take them from.
    """
    task = load(TASK)
    ensemble = _metrpo_learner(task, sizes)
    alternating = _slbo_learner(task, sizes)
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


def _metrpo_learner(task: Task, sizes: str) -> metrpo.Learner:
    """ME-TRPO that improves once."""
    config = preset("metrpo", sizes, TASK)
    imagination = replace(config.imagination, trajectories=TRAJECTORIES)
    return metrpo.Learner(task, replace(config, updates=1, imagination=imagination))


def _slbo_learner(task: Task, sizes: str) -> slbo.Learner:
    """SLBO that goes one short round."""
    config = preset("slbo", sizes, TASK)
    updates = config.model_updates * POLICY_UPDATES // config.policy_updates
    short = replace(
        config, rounds=1, model_updates=updates, policy_updates=POLICY_UPDATES
    )
    return slbo.Learner(task, short)


def trpo_step(learner: metrpo.Learner) -> Work:
    """One trust region step on a given batch."""
    state, episodes, keys = _prepared(
        learner, learner.config.returns.gamma, learner.config.returns.reward_clip
    )
    dynamics = learner.dynamics(tamed(state))
    given = (learner.rules, list(episodes), keys, learner.workers)
    imagine_batch = imaginer("ensemble", learner.task, dynamics, *given)
    plan: RolloutPlan = learner.plan("imagine")
    imagined = imagine_batch(state.policy, None, plan)
    batch, _, _, _ = metrpo.judge(imagined, state.baseline, learner.config.returns)
    return lambda: improve_policy(state.policy, batch, learner.config.trust_region)


def metrpo_update(learner: metrpo.Learner) -> Work:
    """One whole update of ME-TRPO."""
    state, episodes, keys = _prepared(
        learner, learner.config.returns.gamma, learner.config.returns.reward_clip
    )
    return lambda: learner.improve(state, episodes, keys, StageTimer())[0]


def slbo_round(learner: slbo.Learner) -> Work:
    """One round of SLBO: the model's updates, then the policy's."""
    state, episodes, keys = _prepared(
        learner, learner.config.returns.gamma, learner.config.returns.reward_clip
    )
    return lambda: learner.alternate(state, episodes, keys, StageTimer())[0]


def measure_planners(
    repeats: int, budget: float, f32_gflops: float, sizes: str = "fast"
) -> dict[str, dict[str, float]]:
    """Actions, updates and meta-steps per second, and their shares of the limit.

    Args:
        repeats: rounds.
        budget: seconds after which no further round begins.
        f32_gflops: the machine's limit.
        sizes: the preset to take them from.
    """
    task = load(TASK)
    planner = pets.Learner(task, preset("pets", sizes, TASK))
    expander = steve.Learner(task, preset("steve", sizes, TASK))
    config = replace(preset("mbmpo", sizes, TASK), updates=1)
    adapter = mbmpo.Learner(task, config)
    work: dict[str, Work] = {
        "pets": actions(planner),
        "steve": updates(expander),
        "mbmpo": meta_step(adapter),
    }
    amount = {"pets": planner.config.trajectories, "steve": UPDATES, "mbmpo": 1}
    operations = {
        "pets": _action_operations(planner),
        "steve": _update_operations(expander),
        "mbmpo": _meta_step_operations(adapter),
    }
    times = take_turns(work, repeats, budget)
    return {
        name: {
            "seconds": times.median(name) / amount[name],
            "per_s": (speed := amount[name] / times.median(name)),
            "share_of_limit": speed * operations[name] / 1e9 / f32_gflops,
        }
        for name in work
    }


def actions(learner: pets.Learner) -> Work:
    """An action for each of the trajectories that are collected side by side.

    Every search has a plan to go on from, as all but an episode's first have.
    """
    state, episodes, _ = _prepared(learner, learner.config.gamma)
    controller = learner.policy(state)
    observations = np.stack([e.observations[0] for e in episodes])
    observations = observations[: learner.config.trajectories]
    return lambda: controller(observations, True, jax.random.key(SEED))


def updates(learner: steve.Learner) -> Work:
    """Updates of models and actor-critic, side by side."""
    episodes = random_episodes(learner.task, STORED)
    state, (data, filled) = learner.init(SEED), learner.data(episodes)
    keys = Keys(SEED, 0)
    return lambda: learner.train(state, data, filled, UPDATES, keys)[0]


def meta_step(learner: mbmpo.Learner) -> Work:
    """Rollouts before and after adaptation, and the outer step."""
    state, episodes, keys = _prepared(learner, learner.config.returns.gamma)
    stage, tasks = StageTimer(), learner.tasks(tamed(state))
    return lambda: learner.meta_step(
        state.policy, state.value, 0, tasks, episodes, keys, stage
    )


def _sizes(task: Task) -> tuple[int, int]:
    return task.observation_dim, task.action_dim


def _action_operations(learner: pets.Learner) -> int:
    """One search: every member or particle predicts every step of every candidate."""
    obs, act = _sizes(learner.task)
    config, planner = learner.config, learner.config.planner
    member = products(obs + act, config.model.hidden, 2 * obs)
    moved = config.model.members if planner.propagation == "mean" else planner.particles
    rounds = planner.iterations if planner.kind == "cem" else 1
    steps = rounds * planner.population * planner.horizon
    return steps * moved * forward(member)


def _update_operations(learner: steve.Learner) -> int:
    """Expanded targets, and gradient steps of all five groups of networks."""
    obs, act = _sizes(learner.task)
    config, nets = learner.config, learner.config.actor_critic
    transition = products(obs + act, config.model.hidden, obs)
    inner = products(2 * obs + act, config.model.reward_hidden, 1)
    actor = products(obs, nets.actor_hidden, act)
    critic = products(obs + act, nets.critic_hidden, 1)
    members = config.model.members
    modelled = forward(transition) + 2 * members * forward(inner)
    valued = forward(actor) + nets.members * forward(critic)
    expanded = members * (config.expansion * modelled + (config.expansion + 1) * valued)
    learned = backward_too(transition) + 2 * backward_too(inner)
    improved = backward_too(critic) + backward_too(actor)
    # The actor's gradient comes through every critic, whose own weights stay.
    improved += nets.members * 2 * forward(critic)
    return config.batch_size * (expanded + learned + improved)


def _meta_step_operations(learner: mbmpo.Learner) -> int:
    """Two rollouts of every task, and the derivatives of the outer step.

    An evaluation of the outer objective takes a gradient step and a prediction per
    sample; its gradient, and each Fisher-vector product, about three times as much.
    """
    obs, act = _sizes(learner.task)
    config = learner.config
    member = products(obs + act, config.model.hidden, obs)
    policy = products(obs, config.policy.hidden, act)
    samples = config.tasks * config.imagination.trajectories * learner.task.horizon
    imagined = 2 * (forward(member) + forward(policy))
    evaluation = backward_too(policy) + forward(policy)
    derivatives = config.trust_region.conjugate_gradients + 2
    return samples * (imagined + (3 * derivatives + 1) * evaluation)


def _prepared(
    learner: Any, gamma: float, reward_clip: float | None = None
) -> tuple[Any, EpisodeStore, Keys]:
    """An untrained state with the experience of random episodes."""
    episodes = EpisodeStore(random_episodes(learner.task, STORED))
    state = learner.init(SEED)
    experience = learn_from(state.experience, list(episodes), gamma, reward_clip)
    known = eqx.tree_at(lambda s: s.experience, state, experience)
    return known, episodes, Keys(SEED, 0)


def measure_pathwise(
    repeats: int, budget: float, f32_gflops: float, sizes: str = "fast"
) -> dict[str, Any]:
    """Per second of DHMBPO: updates, rollouts, fits; shares of the limit, and ratios.

    Args:
        repeats: rounds.
        budget: seconds after which no further round begins.
        f32_gflops: the machine's limit.
        sizes: the preset to take them from.
    """
    task = load(TASK)
    config = preset("dhmbpo", sizes, TASK)
    plain = dhmbpo.Learner(task, replace(config, kappa=0.0))
    penalised = dhmbpo.Learner(task, replace(config, kappa=1.0))
    episodes = random_episodes(task, STORED)
    state = dhmbpo_state(plain, episodes)
    pieces: dict[str, Work] = {
        "update": dhmbpo_updates(plain, state, episodes),
        "with_uncertainty": dhmbpo_updates(penalised, state, episodes),
        "distribution": dhmbpo_rollout(plain, state, episodes),
        "fit": dhmbpo_fit(plain, state, episodes),
    }
    count = BLOCKS * config.distribution.every
    if find_spec("torch") is not None:
        from pombu.bench import pytorch_pathwise

        pieces["pytorch"] = pytorch_pathwise.piece(plain, state, count)
    times = take_turns(pieces, repeats, budget)
    rows = dhmbpo_fit_steps(config) * config.model.batch_size * config.model.members
    amounts = {"update": count, "distribution": 1, "fit": rows}
    work = dhmbpo_operations(task, config)
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


def dhmbpo_state(learner: dhmbpo.Learner, episodes: list[Episode]) -> SoftState:
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


def dhmbpo_updates(
    learner: dhmbpo.Learner, state: SoftState, episodes: list[Episode]
) -> Work:
    """Blocks of updates, each with its distribution rollout."""
    real, filled = learner.real_states(episodes)
    given = (
        learner.networks(state),
        learner.optimisers(state),
        learner.imagination(state),
    )
    key = jax.random.key(SEED)
    return lambda: dhmbpo.improve(
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


def dhmbpo_rollout(
    learner: dhmbpo.Learner, state: SoftState, episodes: list[Episode]
) -> Work:
    """One distribution rollout."""
    real, filled = learner.real_states(episodes)
    imagination, key = learner.imagination(state), jax.random.key(SEED)
    return lambda: _roll_out(
        state.actor, imagination, real, filled, key, learner.config
    )


def dhmbpo_fit_steps(config: DHMBPOConfig) -> int:
    """Gradient steps of the timed fit."""
    return int(config.model.steps_per_new_row * FIT_ROWS)


def dhmbpo_fit(
    learner: dhmbpo.Learner, state: SoftState, episodes: list[Episode]
) -> Work:
    """A fit for so many new rows."""
    steps = dhmbpo_fit_steps(learner.config)
    model = replace(learner.config.model, min_steps=steps, max_steps=steps)
    short = dhmbpo.Learner(learner.task, replace(learner.config, model=model))
    return lambda: short.fit(state, episodes, Keys(SEED, 0))[0].members


def dhmbpo_operations(task: Task, config: DHMBPOConfig) -> dict[str, int]:
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
