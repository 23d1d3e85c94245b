"""DHMBPO's updates: distribution rollouts, training rollouts, and one compiled loop.

All updates of an iteration are one program: a loop over blocks, each with one
distribution rollout and `distribution.every` updates. Their number is an argument, so
nothing is compiled again as data grow or episodes get shorter.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.losses import (
    TrainingRollout,
    expanded_target,
    soft_value,
    value_bounds,
)
from pombu.algorithms.soft_actor_critic import (
    Critics,
    Imagination,
    Networks,
    Optimisers,
    Tail,
    critic_loss,
    follow,
    move_blocks,
    one_step_uncertainty,
    sqrt_u,
    temperature_loss,
)
from pombu.nn import MLP, SquashedPolicy, VarianceValue, predict_variance
from pombu.parallel import jit
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


@partial(jit, static_argnames=("target_entropy", "config"))
def improve(
    networks: Networks,
    optimisers: Optimisers,
    imagination: Imagination,
    real: Float[Array, "r o"],
    filled: Int[Array, ""],
    done: Int[Array, ""],
    warmup: Int[Array, ""],
    blocks: Int[Array, ""],
    key: PRNGKeyArray,
    target_entropy: float,
    config: DHMBPOConfig,
) -> tuple[Networks, Optimisers, Float[Array, " m"], Float[Array, ""]]:
    """All updates of an iteration.

    Args:
        networks: what is trained.
        optimisers: Adam's moments.
        imagination: where to imagine.
        real: stored real states, padded.
        filled: how many there are.
        done: updates in earlier iterations.
        warmup: blocks in which the critics learn alone, before the others.
        blocks: blocks in which all learn.
        key: of every draw.
        target_entropy: what the temperature aims at.
        config: horizons, rates, sizes.

    Returns:
        The networks, Adam's moments, means of `REPORTED`, and the mean of sqrt(U).
    """
    every, kept = config.distribution.every, config.distribution.kept
    rows = (config.distribution.steps + 1) * config.distribution.starts
    ring = jnp.zeros((kept * rows, real.shape[-1]))

    def block(number: Array, carry: Any) -> Any:
        networks, optimisers, ring, totals, uncertainty = carry
        roll_key, update_key, look_key = jax.random.split(
            jax.random.fold_in(key, number), 3
        )
        states = distribution_rollout(
            networks.policy, imagination, real, filled, roll_key, config
        )
        ring = jax.lax.dynamic_update_slice(
            ring, states.reshape(rows, -1), (number % kept * rows, 0)
        )
        full = jnp.minimum(number + 1, kept) * rows

        def one(carry: Any, index: Array) -> Any:
            networks, optimisers, totals = carry
            start_key, own = jax.random.split(jax.random.fold_in(update_key, index))
            starts = ring[jax.random.randint(start_key, (config.batch_size,), 0, full)]
            networks, optimisers, report = update(
                networks,
                optimisers,
                imagination,
                starts,
                done + number * every + index == 0,
                number >= warmup,
                own,
                target_entropy,
                config,
            )
            return (networks, optimisers, totals + report), None

        (networks, optimisers, totals), _ = jax.lax.scan(
            one, (networks, optimisers, totals), jnp.arange(every)
        )
        starts = states.reshape(rows, -1)[: config.batch_size]
        rollout = training_rollout(
            networks.policy, imagination, starts, look_key, config
        )
        found = uncertainty_along(rollout, networks, imagination, config)
        return networks, optimisers, ring, totals, uncertainty + jnp.mean(found)

    number = warmup + blocks
    networks, optimisers, _, totals, uncertainty = jax.lax.fori_loop(
        0,
        number,
        block,
        (
            networks,
            optimisers,
            ring,
            jnp.zeros(len(REPORTED)),
            jnp.zeros(()),
        ),
    )
    count = jnp.maximum(number, 1)
    return networks, optimisers, totals / (count * every), uncertainty / count


@partial(jit, static_argnames="config")
def explore(
    networks: Networks,
    imagination: Imagination,
    observations: Float[Array, "n o"],
    key: PRNGKeyArray,
    config: DHMBPOConfig,
) -> Float[Array, "n a"]:
    """Of several actions that the policy draws, the one of highest Q + bonus sqrt(U).

    U of an action is Algorithm 1's over one step: the members' disagreement about it,
    and the critics' variance where it leads on average.
    """
    count, (number, dim) = config.candidates, observations.shape
    states = jnp.broadcast_to(observations, (count, number, dim)).reshape(-1, dim)
    normal = imagination.normal(states)
    actions, _ = networks.policy.sample(normal, key)
    values = networks.critics.values(normal, actions, networks.bounds)
    uncertainty = one_step_uncertainty(
        networks, imagination, states, actions, config.gamma
    )
    score = jnp.mean(values, 0) + config.bonus * uncertainty
    best = jnp.argmax(score.reshape(count, number), 0)
    return actions.reshape(count, number, -1)[best, jnp.arange(number)]
