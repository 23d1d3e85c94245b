"""DHMBPO's update: distribution rollouts, training rollouts, losses, gradient steps.

A training rollout has H steps: rewards r_0 ... r_{H-1}, log-probabilities of a_0 ...
a_H, and m_0 ... m_H, which are 1 where the rollout was alive before the step.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.soft_actor_critic import (
    Critics,
    Imagination,
    Networks,
    Optimisers,
    Tail,
    critic_loss,
    follow,
    move_blocks,
    sqrt_u,
    temperature_loss,
    value_range,
)
from pombu.nn import MLP, SquashedPolicy, VarianceValue, predict_variance
from pombu.uncertainty.algorithm1 import local_uncertainty, propagate

REPORTED = (
    "value_loss",
    "actor_loss",
    "entropy",
    "temperature",
    "actor_gradient_norm",
    "reward_model",
    "q_mean",
    "q_std",
    "ended_rollouts",
)
"""Means over an iteration's updates."""


class TrainingRollout(NamedTuple):
    """Differentiable steps in the learned dynamics, time first."""

    states: Float[Array, "T b o"]
    """H + 1 states in the task's units."""
    actions: Float[Array, "T b a"]
    """H + 1 actions in policy space."""
    log_probs: Float[Array, "T b"]
    rewards: Float[Array, "H b"]
    alive: Float[Array, "T b"]
    """m: 1 before the first end, then 0; no gradient."""


def expanded_target(
    rollout: TrainingRollout,
    tail: Float[Array, " b"],
    temperature: Float[Array, ""],
    gamma: float,
) -> Float[Array, " b"]:
    """y = sum gamma^t m_t r_t - alpha sum_{t>0} gamma^t m_t log pi_t + gamma^H m_H Q-.

    Args:
        rollout: from the states and actions whose Q is learned.
        tail: Q- of the last state and action.
        temperature: alpha.
        gamma: the discount factor.
    """
    discounts = gamma ** jnp.arange(len(rollout.alive), dtype=jnp.float32)
    weights = discounts[:, None] * rollout.alive
    entropy = -temperature * jnp.sum((weights * rollout.log_probs)[1:], 0)
    return jnp.sum(weights[:-1] * rollout.rewards, 0) + entropy + weights[-1] * tail


def soft_value(
    rollout: TrainingRollout,
    tail: Float[Array, " b"],
    temperature: Float[Array, ""],
    gamma: float,
) -> Float[Array, " b"]:
    """What the actor maximises: the expanded value with the entropy of every step."""
    target = expanded_target(rollout, tail, temperature, gamma)
    return target - temperature * rollout.log_probs[0]


def value_bounds(
    rollout: TrainingRollout,
    temperature: Float[Array, ""],
    gamma: float,
    quantile: float,
) -> Float[Array, "2"]:
    """Q's range if every step earned a low, or a high, quantile of soft rewards."""
    soft = rollout.rewards - temperature * rollout.log_probs[:-1]
    return value_range(soft, gamma, quantile)


def distribution_rollout(
    policy: SquashedPolicy,
    imagination: Imagination,
    real: Float[Array, "r o"],
    filled: Int[Array, ""],
    key: PRNGKeyArray,
    config: DHMBPOConfig,
) -> Float[Array, "T n o"]:
    """States along rollouts of the policy that begin in stored real states.

    A rollout that ended, or ran away, begins again in another stored state, so that all
    states are ones to act in.
    """
    members, number = config.model.members, config.distribution.starts

    def stored(key: PRNGKeyArray) -> Float[Array, "n o"]:
        return real[jax.random.randint(key, (number,), 0, filled)]

    def step(states: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        act, move, fresh, order = jax.random.split(key, 4)
        actions, _ = policy.sample(imagination.normal(states), act)
        following, _, ends = move_blocks(
            imagination, states, actions, members, move, order, config.draw
        )
        over = ends | ~imagination.dynamics.plausible(following, config.runaway)
        states = jnp.where(over[:, None], stored(fresh), following)
        return states, states

    begin, rest = jax.random.split(key)
    first = stored(begin)
    _, later = jax.lax.scan(
        step, first, jax.random.split(rest, config.distribution.steps)
    )
    return jnp.concatenate([first[None], later])


def training_rollout(
    policy: SquashedPolicy,
    imagination: Imagination,
    starts: Float[Array, "b o"],
    key: PRNGKeyArray,
    config: DHMBPOConfig,
) -> TrainingRollout:
    """H steps of the policy, differentiable in its parameters all along.

    Unrolled, because H is small and a scan would stack what gradients need.
    """
    members = config.model.members
    state, alive = starts, jnp.ones(len(starts))
    states, actions, log_probs, rewards, lives = [], [], [], [], []
    for number in range(config.training_steps + 1):
        act, move, order = jax.random.split(jax.random.fold_in(key, number), 3)
        action, log_prob = policy.sample(imagination.normal(state), act)
        states.append(state)
        actions.append(action)
        log_probs.append(log_prob)
        lives.append(alive)
        if number == config.training_steps:
            break
        following, reward, ends = move_blocks(
            imagination, state, action, members, move, order, config.draw
        )
        lost = ~imagination.dynamics.plausible(following, config.runaway)
        # A state that is no number must not reach the gradient, not even times 0.
        state = jnp.where(lost[:, None], state, following)
        rewards.append(jnp.where(lost, 0.0, reward))
        alive = jax.lax.stop_gradient(alive * ~(ends | lost))
    return TrainingRollout(
        jnp.stack(states),
        jnp.stack(actions),
        jnp.stack(log_probs),
        jnp.stack(rewards),
        jnp.stack(lives),
    )


def local_along(
    rollout: TrainingRollout,
    policy: SquashedPolicy,
    guides: Critics,
    bounds: Float[Array, "2"],
    imagination: Imagination,
    config: DHMBPOConfig,
) -> Float[Array, "H n"]:
    """Local uncertainty at each step of the first `uncertainty_rows` rollouts.

    Every member predicts at the states and actions that were visited. V of what it
    predicts is the guides' mean at the actor's action there; the actor is held fixed
    in it, so that gradients run through the visited actions alone.

    Args:
        rollout: what was visited.
        policy: the actor of V.
        guides: the critics whose mean is V.
        bounds: range of Q.
        imagination: where to imagine.
        config: how many rollouts, and how long they are.
    """
    rows, steps = config.uncertainty_rows, config.training_steps
    policy = jax.lax.stop_gradient(policy)
    states = rollout.states[:-1, :rows].reshape(steps * rows, -1)
    actions = rollout.actions[:-1, :rows].reshape(steps * rows, -1)
    predicted = imagination.dynamics.step(states, imagination.box.to_box(actions))
    normal = imagination.normal(predicted.states)
    values = jnp.mean(guides.values(normal, policy.mode(normal), bounds), 0)
    values = jnp.where(predicted.ends, 0.0, values)
    local = local_uncertainty(predicted.rewards, values, config.gamma)
    return local.reshape(steps, rows)


def past_the_end(
    rollout: TrainingRollout,
    critics: Critics,
    bounds: Float[Array, "2"],
    tail: VarianceValue | None,
    imagination: Imagination,
    config: DHMBPOConfig,
) -> Float[Array, " n"]:
    """U of what lies past those rollouts: U_psi, or else the critics' variance."""
    rows = config.uncertainty_rows
    end = imagination.normal(rollout.states[-1, :rows])
    if tail is not None:
        return predict_variance(tail, end)
    return jnp.var(critics.values(end, rollout.actions[-1, :rows], bounds), 0)


def uncertainty_along(
    rollout: TrainingRollout,
    networks: Networks,
    imagination: Imagination,
    config: DHMBPOConfig,
) -> Float[Array, " n"]:
    """sqrt(U) of the first `uncertainty_rows` training rollouts."""
    critics, bounds = networks.critics, networks.bounds
    local = local_along(rollout, networks.policy, critics, bounds, imagination, config)
    tail = None if networks.tail is None else networks.tail.value
    beyond = past_the_end(rollout, critics, bounds, tail, imagination, config)
    alive = rollout.alive[:, : config.uncertainty_rows]
    return sqrt_u(local, alive, beyond, config.gamma)


_LEAST_UNIT = 1e-12
_SCALE_RATE = 0.01
"""Share of a batch's mean U in the running mean that is U_psi's unit."""


def improve_tail(
    tail: Tail,
    memory: Any,
    rollout: TrainingRollout,
    local: Float[Array, "H n"],
    imagination: Imagination,
    config: DHMBPOConfig,
) -> tuple[Tail, Any]:
    """One step of U_psi at the first states towards Algorithm 1 along the rollouts."""
    rows, settings = config.uncertainty_rows, config.actor_critic
    first, last = (imagination.normal(rollout.states[t, :rows]) for t in (0, -1))
    beyond = predict_variance(tail.slow, last)
    goal = propagate(local, config.gamma, rollout.alive[1:, :rows], beyond)[0]
    goal = jax.lax.stop_gradient(goal)
    unit, mean = tail.value.scale, jnp.mean(goal)
    unit = jnp.where(unit > 0, unit + _SCALE_RATE * (mean - unit), mean)

    def loss(network: MLP) -> Array:
        error = predict_variance(VarianceValue(network, unit), first) - goal
        return jnp.mean((error / jnp.maximum(unit, _LEAST_UNIT)) ** 2)

    gradient = jax.grad(loss)(tail.value.network)
    direction, memory = optax.adam(settings.learning_rate).update(gradient, memory)
    value = VarianceValue(optax.apply_updates(tail.value.network, direction), unit)
    return Tail(value, follow(tail.slow, value, settings.tau)), memory


def update(
    networks: Networks,
    optimisers: Optimisers,
    imagination: Imagination,
    starts: Float[Array, "b o"],
    first: Bool[Array, ""],
    acts: Bool[Array, ""],
    key: PRNGKeyArray,
    target_entropy: float,
    config: DHMBPOConfig,
) -> tuple[Networks, Optimisers, Float[Array, " m"]]:
    """One update of critics, targets, actor and temperature on one training rollout.

    Args:
        networks: what is trained.
        optimisers: Adam's memory.
        imagination: where to imagine.
        starts: states that the rollout begins in.
        first: whether it is a run's first update, which sets the bounds of Q.
        acts: whether the actor and the temperature learn as well.
        key: of the rollout's draws and of the target critics'.
        target_entropy: what the temperature aims at.
        config: horizons, rates, sizes.
    """
    settings = config.actor_critic
    transform = optax.adam(settings.learning_rate)
    roll_key, pick_key = jax.random.split(key)
    temperature = jnp.exp(networks.log_temperature)
    # 1. Roll out once; the critics learn from its values, the actor through it.
    rollout, pull_back = jax.vjp(
        lambda policy: training_rollout(policy, imagination, starts, roll_key, config),
        networks.policy,
    )
    # 2. Bounds of Q.
    found = value_bounds(rollout, temperature, config.gamma, settings.bound_quantile)
    rate = jnp.where(first, 1.0, settings.bound_rate)
    bounds = networks.bounds + rate * (found - networks.bounds)
    # 3. Critics towards the expanded target of the first state and action.
    start, last = imagination.normal(starts), imagination.normal(rollout.states[-1])
    order = jax.random.permutation(pick_key, settings.critics)
    judges = networks.targets.some(order[: settings.subset])
    tails = judges.values(last, rollout.actions[-1], bounds)
    tail = jnp.clip(jnp.min(tails, 0), bounds[0], bounds[1])
    targets = expanded_target(rollout, tail, temperature, config.gamma)
    value_loss, gradient = jax.value_and_grad(critic_loss)(
        networks.critics, start, rollout.actions[0], targets, bounds
    )
    direction, critics_memory = transform.update(gradient, optimisers.critics)
    critics = optax.apply_updates(networks.critics, direction)

    # 4. The actor up the soft value, whose tail is the critics' mean.
    guides = critics
    if settings.actor_subset is not None:
        guides = critics.some(order[-settings.actor_subset :])

    def actor_loss(rollout: TrainingRollout) -> tuple[Array, tuple[Array, Any]]:
        end = imagination.normal(rollout.states[-1])
        values = guides.values(end, rollout.actions[-1], bounds)
        value = soft_value(rollout, jnp.mean(values, 0), temperature, config.gamma)
        loss = -jnp.mean(value)
        if not config.kappa and networks.tail is None:
            return loss, (values, None)
        local = local_along(
            rollout, networks.policy, guides, bounds, imagination, config
        )
        tail = None if networks.tail is None else networks.tail.value
        beyond = past_the_end(rollout, critics, bounds, tail, imagination, config)
        alive = rollout.alive[:, : config.uncertainty_rows]
        uncertainty = jnp.mean(sqrt_u(local, alive, beyond, config.gamma))
        return loss + config.kappa * uncertainty, (values, local)

    (loss, (values, local)), sensitivity = jax.value_and_grad(actor_loss, has_aux=True)(
        rollout
    )
    (gradient,) = pull_back(sensitivity)
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    direction, policy_memory = transform.update(gradient, optimisers.policy)
    policy = optax.apply_updates(networks.policy, direction)
    # 5. The temperature towards the entropy aimed at, at the first step.
    entropy = -jnp.mean(rollout.log_probs[0])
    slope = jax.grad(temperature_loss)(
        networks.log_temperature, entropy, target_entropy
    )
    direction, temperature_memory = transform.update(slope, optimisers.temperature)
    log_temperature = optax.apply_updates(networks.log_temperature, direction)
    # 6. U_psi towards the uncertainty along the rollout.
    beyond, beyond_memory = networks.tail, optimisers.tail
    if beyond is not None:
        beyond, beyond_memory = improve_tail(
            beyond, beyond_memory, rollout, local, imagination, config
        )
    # 7. While critics learn alone, actor and temperature stay as they were.
    learned = (policy, policy_memory, log_temperature, temperature_memory)
    held = (
        networks.policy,
        optimisers.policy,
        networks.log_temperature,
        optimisers.temperature,
    )
    policy, policy_memory, log_temperature, temperature_memory = jax.tree.map(
        partial(jnp.where, acts), learned, held
    )
    after = Networks(
        policy,
        follow(networks.average, policy, settings.policy_average),
        critics,
        follow(networks.targets, critics, settings.tau),
        log_temperature,
        bounds,
        beyond,
    )
    memory = Optimisers(
        policy_memory, critics_memory, temperature_memory, beyond_memory
    )
    report = jnp.stack(
        [
            value_loss,
            loss,
            entropy,
            temperature,
            norm,
            jnp.mean(rollout.rewards[0]),
            jnp.mean(values),
            jnp.mean(jnp.std(values, 0)),
            1.0 - jnp.mean(rollout.alive[-1]),
        ]
    )
    return after, memory, report
