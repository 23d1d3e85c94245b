"""MBPO: model-based policy optimisation (Janner et al., 2019).

One iteration collects real steps, fits the members to all of them, imagines short
branches that start in stored real states, and updates a soft actor-critic many times
per real step, mostly on imagined transitions.

All updates of an iteration are one program: a loop over blocks, each with branches from
stored real states and `branch.every` updates. The length of the branches is an
argument, so nothing is compiled again as they grow.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.algorithms.base import Metrics
from pombu.algorithms.mbpo.config import MBPOConfig
from pombu.algorithms.soft_actor_critic import (
    PLAIN,
    Critics,
    Imagination,
    Networks,
    Optimisers,
    critic_loss,
    follow,
    move_blocks,
    one_step_uncertainty,
    temperature_loss,
    value_range,
)
from pombu.algorithms.soft_learner import SoftLearner, SoftState
from pombu.dynamics.error import limited, strays
from pombu.envs import Episode
from pombu.nn import SquashedPolicy
from pombu.parallel import jit
from pombu.rng import Keys

REPORTED = (
    "value_loss",
    "actor_loss",
    "entropy",
    "temperature",
    "reward_model",
    "q_mean",
    "q_std",
    "dropped_steps",
)
"""Means over an iteration's updates."""

_UNCERTAINTY_ROWS = 256
"""Stored states at which sqrt(U) is reported."""


class Transitions(NamedTuple):
    """Steps, real or imagined."""

    states: Float[Array, "*n o"]
    actions: Float[Array, "*n a"]
    """In policy space."""
    rewards: Float[Array, "*n"]
    following: Float[Array, "*n o"]
    ends: Float[Array, "*n"]
    """1 where the step ended the episode for good."""
    weight: Float[Array, "*n"]
    """0 where the step is dropped."""


def branch_step(
    policy: SquashedPolicy,
    imagination: Imagination,
    states: Float[Array, "n o"],
    key: PRNGKeyArray,
    config: MBPOConfig,
) -> tuple[Transitions, Bool[Array, " n"]]:
    """One imagined step of every branch, and where a branch is over."""
    act, move, order = jax.random.split(key, 3)
    actions, _ = policy.sample(imagination.normal(states), act)
    following, rewards, ends = move_blocks(
        imagination, states, actions, config.elites, move, order, "step"
    )
    dropped = ~imagination.dynamics.plausible(following, config.runaway)
    if config.branch.disagreement_stop is not None:
        each = imagination.dynamics.step(states, imagination.box.to_box(actions)).states
        strayed = strays(imagination.dynamics, each)
        assert strayed is not None, "the learner limits the dynamics"
        dropped |= strayed
    # What is dropped must be finite all the same: 0 times infinity is no number.
    steps = Transitions(
        states,
        actions,
        jnp.where(dropped, 0.0, rewards),
        jnp.where(dropped[:, None], states, following),
        ends.astype(jnp.float32),
        1.0 - dropped,
    )
    return steps, ends | dropped


def branch_out(
    policy: SquashedPolicy,
    imagination: Imagination,
    real: Transitions,
    filled: Int[Array, ""],
    length: Int[Array, ""],
    key: PRNGKeyArray,
    config: MBPOConfig,
) -> Transitions:
    """Branches of `length` steps from stored real states, [longest, starts, ...].

    A branch that is over is followed by another one from another stored state, so that
    every row is a step; rows beyond `length` are empty.
    """
    number, longest = config.branch.starts, config.branch.last_steps

    def stored(key: PRNGKeyArray) -> Float[Array, "n o"]:
        return real.states[jax.random.randint(key, (number,), 0, filled)]

    def step(index: Array, carry: tuple[Array, Transitions]) -> Any:
        states, taken_before = carry
        own, fresh = jax.random.split(jax.random.fold_in(key, index))
        taken, over = branch_step(policy, imagination, states, own, config)
        steps = jax.tree.map(
            lambda all_, one: all_.at[index].set(one), taken_before, taken
        )
        return jnp.where(over[:, None], stored(fresh), taken.following), steps

    empty = jax.tree.map(
        lambda leaf: jnp.zeros((longest, number, *leaf.shape[1:])), real
    )
    first = stored(jax.random.fold_in(key, longest))
    steps: Transitions
    _, steps = jax.lax.fori_loop(0, length, step, (first, empty))
    return steps


def draw_batch(
    ring: Transitions,
    full: Int[Array, ""],
    length: Int[Array, ""],
    real: Transitions,
    filled: Int[Array, ""],
    key: PRNGKeyArray,
    config: MBPOConfig,
) -> Transitions:
    """Real and imagined transitions for an update, at random."""
    slot_key, step_key, row_key, real_key = jax.random.split(key, 4)
    count = config.batch_size - config.real_rows
    slot = jax.random.randint(slot_key, (count,), 0, full)
    step = jax.random.randint(step_key, (count,), 0, length)
    row = jax.random.randint(row_key, (count,), 0, config.branch.starts)
    stored = jax.random.randint(real_key, (config.real_rows,), 0, filled)
    batch: Transitions = jax.tree.map(
        lambda imagined, seen: jnp.concatenate(
            [seen[stored], imagined[slot, step, row]]
        ),
        ring,
        real,
    )
    return batch


def soft_target(
    batch: Transitions,
    next_values: Float[Array, "c b"],
    next_log_probs: Float[Array, " b"],
    temperature: Float[Array, ""],
    gamma: float,
) -> Float[Array, " b"]:
    """y = r + gamma (1 - end) (min Q-(s', a') - alpha log pi(a'|s'))."""
    soft = jnp.min(next_values, 0) - temperature * next_log_probs
    return batch.rewards + gamma * (1.0 - batch.ends) * soft


def least(values: Float[Array, "c b"]) -> Float[Array, " b"]:
    """The least of the critics' values; the gradient is that of the critic it is from.

    The gradient of `jnp.min` looks for values that equal the minimum. A compiler may
    compute them a second time with other roundings, so that none does, and then it is
    0 / 0.
    """
    return jnp.take_along_axis(values, jnp.argmin(values, 0)[None], 0)[0]


def actor_loss(
    policy: SquashedPolicy,
    critics: Critics,
    normal: Float[Array, "b o"],
    bounds: Float[Array, "2"],
    temperature: Float[Array, ""],
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], tuple[Array, Array]]:
    """alpha log pi - min Q, and the values and the entropy that it is made of."""
    actions, log_probs = policy.sample(normal, key)
    values = critics.values(normal, actions, bounds)
    loss = jnp.mean(temperature * log_probs - least(values))
    return loss, (values, -jnp.mean(log_probs))


def update(
    networks: Networks,
    optimisers: Optimisers,
    imagination: Imagination,
    batch: Transitions,
    first: Bool[Array, ""],
    key: PRNGKeyArray,
    target_entropy: float,
    config: MBPOConfig,
) -> tuple[Networks, Optimisers, Float[Array, " m"]]:
    """One update of critics, targets, actor and temperature.

    Args:
        networks: what is trained.
        optimisers: Adam's memory.
        imagination: its units.
        batch: what to learn from.
        first: whether it is a run's first update, which sets the bounds of Q.
        key: of actions, and of the critics that are drawn.
        target_entropy: what the temperature aims at.
        config: rates and sizes.
    """
    settings = config.actor_critic
    transform = optax.adam(settings.learning_rate)
    next_key, pick_key, act_key = jax.random.split(key, 3)
    temperature = jnp.exp(networks.log_temperature)
    normal, after = (
        imagination.normal(batch.states),
        imagination.normal(batch.following),
    )
    next_actions, next_log_probs = networks.policy.sample(after, next_key)
    # 1. Bounds of Q, where it has any.
    bounds = networks.bounds
    if settings.bound_rate:
        soft = batch.rewards - temperature * next_log_probs
        found = value_range(soft, config.gamma, settings.bound_quantile)
        rate = jnp.where(first, 1.0, settings.bound_rate)
        bounds = bounds + rate * (found - bounds)
    # 2. Critics towards the soft target.
    order = jax.random.permutation(pick_key, settings.critics)[: settings.subset]
    judges = networks.targets.some(order)
    next_values = judges.values(after, next_actions, bounds)
    if settings.bound_rate:
        next_values = jnp.clip(next_values, bounds[0], bounds[1])
    targets = soft_target(batch, next_values, next_log_probs, temperature, config.gamma)
    value_loss, gradient = jax.value_and_grad(critic_loss)(
        networks.critics, normal, batch.actions, targets, bounds, batch.weight
    )
    direction, critics_memory = transform.update(gradient, optimisers.critics)
    critics = optax.apply_updates(networks.critics, direction)
    # 3. The actor up the least of the critics that were drawn.
    (loss, (values, entropy)), gradient = jax.value_and_grad(actor_loss, has_aux=True)(
        networks.policy, critics.some(order), normal, bounds, temperature, act_key
    )
    direction, policy_memory = transform.update(gradient, optimisers.policy)
    policy = optax.apply_updates(networks.policy, direction)
    # 4. The temperature towards the entropy aimed at.
    slope = jax.grad(temperature_loss)(
        networks.log_temperature, entropy, target_entropy
    )
    direction, temperature_memory = transform.update(slope, optimisers.temperature)
    log_temperature = optax.apply_updates(networks.log_temperature, direction)
    # 5. Slow copies.
    followed = follow(networks.targets, critics, settings.tau)
    average = follow(networks.average, policy, settings.policy_average)
    report = jnp.stack(
        [
            value_loss,
            loss,
            entropy,
            temperature,
            jnp.mean(batch.rewards),
            jnp.mean(values),
            jnp.mean(jnp.std(values, 0)),
            1.0 - jnp.mean(batch.weight),
        ]
    )
    return (
        Networks(policy, average, critics, followed, log_temperature, bounds),
        Optimisers(policy_memory, critics_memory, temperature_memory),
        report,
    )


@partial(jit, static_argnames=("target_entropy", "config"))
def improve(
    networks: Networks,
    optimisers: Optimisers,
    imagination: Imagination,
    real: Transitions,
    filled: Int[Array, ""],
    length: Int[Array, ""],
    done: Int[Array, ""],
    updates: Int[Array, ""],
    key: PRNGKeyArray,
    target_entropy: float,
    config: MBPOConfig,
) -> tuple[Networks, Optimisers, Float[Array, " m"], Float[Array, ""]]:
    """All updates of an iteration.

    Args:
        networks: what is trained.
        optimisers: Adam's moments.
        imagination: where to imagine.
        real: stored real transitions, padded.
        filled: how many there are.
        length: steps of a branch.
        done: updates in earlier iterations.
        updates: updates to do.
        key: of every draw.
        target_entropy: what the temperature aims at.
        config: rates and sizes.

    Returns:
        The networks, Adam's moments, means of `REPORTED`, and the mean of sqrt(U) over
        real states.
    """
    settings = config.branch
    ring = jax.tree.map(
        lambda leaf: jnp.zeros(
            (settings.kept, settings.last_steps, settings.starts, *leaf.shape[1:])
        ),
        real,
    )

    def block(number: Array, carry: Any) -> Any:
        networks, optimisers, ring, totals = carry
        own = jax.random.fold_in(key, number)
        branch_key, update_key = jax.random.split(own)
        steps = branch_out(
            networks.policy, imagination, real, filled, length, branch_key, config
        )
        slot = number % settings.kept
        ring = jax.tree.map(lambda all_, new: all_.at[slot].set(new), ring, steps)
        full = jnp.minimum(number + 1, settings.kept)

        def one(index: Array, carry: Any) -> Any:
            networks, optimisers, totals = carry
            draw_key, learn_key = jax.random.split(
                jax.random.fold_in(update_key, index)
            )
            batch = draw_batch(ring, full, length, real, filled, draw_key, config)
            first = done + number * settings.every + index == 0
            networks, optimisers, report = update(
                networks,
                optimisers,
                imagination,
                batch,
                first,
                learn_key,
                target_entropy,
                config,
            )
            return networks, optimisers, totals + report

        due = jnp.minimum(settings.every, updates - number * settings.every)
        networks, optimisers, totals = jax.lax.fori_loop(
            0, due, one, (networks, optimisers, totals)
        )
        return networks, optimisers, ring, totals

    blocks = -(-updates // settings.every)
    start = (networks, optimisers, ring, jnp.zeros(len(REPORTED)))
    networks, optimisers, _, totals = jax.lax.fori_loop(0, blocks, block, start)
    look_key, act_key = jax.random.split(jax.random.fold_in(key, blocks))
    rows = jax.random.randint(look_key, (_UNCERTAINTY_ROWS,), 0, filled)
    states = real.states[rows]
    actions, _ = networks.policy.sample(imagination.normal(states), act_key)
    uncertainty = one_step_uncertainty(
        networks, imagination, states, actions, config.gamma
    )
    report = totals / jnp.maximum(updates, 1)
    return networks, optimisers, report, jnp.mean(uncertainty)


class Learner(SoftLearner[MBPOConfig]):
    """MBPO over one task: `init` a state, then `iterate` it."""

    algorithm = "mbpo"
    critic_form = PLAIN

    def improve(
        self, state: SoftState, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[SoftState, Metrics]:
        """As many updates as the steps ask for that were not learned from yet."""
        config = self.config
        new = int(state.real_steps - state.learned_steps)
        updates = round(config.updates_per_step * new)
        length = config.branch.length(int(state.real_steps))
        real, filled = self.real_transitions(episodes)
        networks, memory, report, uncertainty = improve(
            self.networks(state),
            self.optimisers(state),
            self.elites(state, episodes),
            real,
            filled,
            length,
            int(state.updates),
            updates,
            keys.jax("improve"),
            self.target_entropy,
            config,
        )
        imagined = -(-updates // config.branch.every) * length * config.branch.starts
        state = eqx.tree_at(
            lambda s: (s.updates, s.learned_steps, s.imagined_steps),
            self.with_networks(state, networks, memory),
            (
                state.updates + updates,
                state.real_steps,
                state.imagined_steps + imagined,
            ),
        )
        metrics = dict(zip(REPORTED, np.asarray(report).tolist(), strict=True))
        return state, {
            **metrics,
            "branch_steps": float(length),
            "sqrt_u": float(uncertainty),
        }

    def elites(self, state: SoftState, episodes: Sequence[Episode]) -> Imagination:
        """Where branches happen: the best members, and how far they may disagree."""
        error = jnp.sum(state.members.log_std, -1)
        best = jnp.argsort(error)[: self.config.elites]
        elites = jax.tree.map(lambda leaf: leaf[best], state.members)
        dynamics = eqx.tree_at(lambda d: d.members, self.dynamics(state), elites)
        allowed = self.config.branch.disagreement_stop
        return Imagination(limited(dynamics, allowed, episodes), self.task.action_box)

    def real_transitions(self, episodes: Sequence[Episode]) -> tuple[Transitions, int]:
        """Stored real transitions, padded, and how many there are."""
        box = self.task.action_box
        actions = np.concatenate([episode.actions for episode in episodes])
        ends = [np.zeros(len(episode)) for episode in episodes]
        for episode, of_steps in zip(episodes, ends, strict=True):
            of_steps[-1] = episode.terminated
        steps = (
            np.concatenate([episode.observations[:-1] for episode in episodes]),
            (actions - box.middle) / box.unit,
            np.concatenate([episode.rewards for episode in episodes]),
            np.concatenate([episode.observations[1:] for episode in episodes]),
            np.concatenate(ends),
            np.ones(len(actions)),
        )
        return Transitions(*map(self.stored, steps)), len(actions)
