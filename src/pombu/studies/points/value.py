"""Training V on imagined trajectories, for a few epochs and until its loss is flat."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.networks import MLP
from pombu.studies.points.settings import PointSettings
from pombu.studies.points.world import PointModel, roll
from pombu.values import init_value
from pombu.values import predict as predict_value


class Trained(NamedTuple):
    """The value function after so many epochs."""

    epochs: int
    value: MLP


class Training(NamedTuple):
    """All stages at which V is judged, the flat one last."""

    stages: tuple[Trained, ...]
    losses: tuple[tuple[int, float], ...]
    """(epochs, mean loss of the window that ended there), in scaled units."""


def values(
    model: PointModel, value: MLP, states: Float[Array, "*b o"]
) -> Float[Array, "*b"]:
    """V of states, in the task's own units."""
    world = model.world
    return world.return_std * predict_value(value, world.observation.normalise(states))


def train(settings: PointSettings, model: PointModel, key: PRNGKeyArray) -> Training:
    """The literal stages first, then on and on until the loss is flat."""
    init_key, epoch_key = jax.random.split(key)
    dim = model.world.observation.mean.shape[0]
    value = init_value(init_key, dim, settings.value_hidden)
    optimiser = optax.adam(settings.value_learning_rate)
    state = optimiser.init(value)
    done = 0
    stages: list[Trained] = []
    losses: list[tuple[int, float]] = []
    for target, is_stage in _milestones(settings):
        if target > done:
            chunk_key = jax.random.fold_in(epoch_key, target)
            value, state, loss = _epochs(
                settings, model, value, state, chunk_key, target - done
            )
            losses.append((target, float(loss)))
            done = target
        if is_stage:
            stages.append(Trained(done, value))
        elif _flat(settings, losses):
            break
    stages.append(Trained(done, value))
    return Training(tuple(stages), tuple(losses))


def _milestones(settings: PointSettings) -> Iterator[tuple[int, bool]]:
    """Epoch counts to stop at, and whether V is judged there."""
    for epochs in settings.value_epochs:
        yield epochs, True
    last = settings.value_epochs[-1]
    for epochs in range(
        last + settings.flat_window, settings.flat_limit + 1, settings.flat_window
    ):
        yield epochs, False


def _flat(settings: PointSettings, losses: list[tuple[int, float]]) -> bool:
    """Whether the last window lowered the loss by less than the asked share.

    Every epoch's loss is taken on trajectories that V has not seen before.
    """
    windows = losses[-2:]
    before, after = windows[0], windows[-1]
    whole = after[0] - before[0] == settings.flat_window
    first = before[0] <= settings.value_epochs[-1]
    return whole and not first and after[1] > (1 - settings.flat_gain) * before[1]


@partial(jax.jit, static_argnames=("settings", "count"))
def _epochs(
    settings: PointSettings,
    model: PointModel,
    value: MLP,
    state: Any,
    key: PRNGKeyArray,
    count: int,
) -> tuple[MLP, Any, Float[Array, ""]]:
    """Train for ``count`` epochs, each on its own fresh trajectories."""
    start_key, roll_key, order_key = jax.random.split(key, 3)
    per_epoch = settings.virtual_trajectories
    contract = model.rules.contract
    assert contract is not None
    starts = contract.initial(start_key, count * per_epoch)
    rolled = roll(model, starts, roll_key)
    returns = jnp.cumsum(rolled.rewards[::-1], axis=0)[::-1] / model.world.return_std
    inputs = model.world.observation.normalise(rolled.states)
    horizon, dim = model.rules.horizon, inputs.shape[-1]

    def by_epoch(x: Array) -> Array:
        return x.reshape(horizon, count, per_epoch, -1).swapaxes(0, 1)

    optimiser = optax.adam(settings.value_learning_rate)
    batches = max(horizon * per_epoch // settings.value_batch, 1)

    def epoch(carry: Any, data: tuple[Array, Array, Array]) -> tuple[Any, Array]:
        x, y, key = data
        order = jax.random.permutation(key, horizon * per_epoch)
        rows = order[: batches * settings.value_batch].reshape(batches, -1)
        flat_x, flat_y = x.reshape(-1, dim), y.reshape(-1)
        return jax.lax.scan(
            lambda c, i: _step(optimiser, c, flat_x[i], flat_y[i]), carry, rows
        )

    keys = jax.random.split(order_key, count)
    (value, state), losses = jax.lax.scan(
        epoch, (value, state), (by_epoch(inputs), by_epoch(returns), keys)
    )
    return value, state, losses.mean()


def _step(
    optimiser: optax.GradientTransformation,
    carry: tuple[MLP, Any],
    inputs: Float[Array, "b o"],
    returns: Float[Array, " b"],
) -> tuple[tuple[MLP, Any], Float[Array, ""]]:
    """One step down L_v."""
    value, state = carry
    loss, gradient = jax.value_and_grad(
        lambda v: jnp.mean((predict_value(v, inputs) - returns) ** 2)
    )(value)
    updates, state = optimiser.update(gradient, state)
    return (optax.apply_updates(value, updates), state), loss


def stack(values: list[MLP]) -> MLP:
    """Several value functions as one pytree with a leading axis."""
    stacked: MLP = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
    return stacked
