"""Value functions of the point experiment, trained for a few epochs or until flat.

The paper's V is a function of the state alone, though the value of a state falls with
the steps that remain. Beside it stands a V that is also told the step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.networks import MLP
from pombu.paper.point_model import PointModel, PointSettings, roll
from pombu.values import init_value
from pombu.values import predict as predict_value


class Samples(NamedTuple):
    """States with their steps, as V sees them, and returns to go in scaled units."""

    states: Float[Array, "*b o"]
    clock: Float[Array, "*b 1"]
    returns: Float[Array, "*b"]


class Trained(NamedTuple):
    """A value function after so many epochs."""

    epochs: int
    value: MLP


class Training(NamedTuple):
    """What came of training V; losses are (epochs, mean loss of the window)."""

    literal: tuple[Trained, ...]
    """V(s) after each of the paper's numbers of epochs."""
    flat: Trained
    """V(s) when its loss was flat."""
    timed: Trained
    """V(s, h) when its loss was flat."""
    losses: tuple[tuple[int, float], ...]
    timed_losses: tuple[tuple[int, float], ...]


def clock(horizon: int, steps: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Step 0..H-1 as a number of mean 0 and about unit size."""
    return (2 * steps / horizon - 1) * 3**0.5


def next_values(
    model: PointModel, value: MLP, states: Float[Array, "K H N o"]
) -> Float[Array, "K H N"]:
    """V(s') of predicted next states, in the task's own units."""
    return model.world.return_std * predict_value(
        value, model.world.observation.normalise(states)
    )


def timed_next_values(
    model: PointModel, value: MLP, states: Float[Array, "K H N o"]
) -> Float[Array, "K H N"]:
    """V(s', h+1); after the last step there is nothing to come."""
    horizon = model.rules.horizon
    following = jnp.arange(1, horizon + 1)[:, None]
    time = jnp.broadcast_to(clock(horizon, following), states.shape[:-1])
    inputs = jnp.concatenate(
        [model.world.observation.normalise(states), time[..., None]], axis=-1
    )
    values = model.world.return_std * predict_value(value, inputs)
    return jnp.where(following < horizon, values, 0.0)


class ValueLearner(NamedTuple):
    """A value function and its optimiser's state."""

    value: MLP
    state: Any


def train(settings: PointSettings, model: PointModel, key: PRNGKeyArray) -> Training:
    """The literal stages, then on until flat; a V with a clock until flat."""
    dim = model.world.observation.mean.shape[0]
    plain_key, timed_key, literal_key, pool_key, flat_key = jax.random.split(key, 5)
    learner = _start(init_value(plain_key, dim, settings.value_hidden))
    timed = _start(init_value(timed_key, dim + 1, settings.value_hidden))

    literal: list[Trained] = []
    done = 0
    for target in settings.value_epochs:
        if target > done:
            learner = _literal(settings, model, learner, target - done, literal_key)
            literal_key, _ = jax.random.split(literal_key)
            done = target
        literal.append(Trained(done, learner.value))

    pool = imagine_samples(model, settings.flat_pool, pool_key)
    with_clock = jnp.concatenate([pool.states, pool.clock], axis=-1)
    flat, losses = _until_flat(settings, learner, pool, flat_key)
    timed_flat, timed_losses = _until_flat(
        settings, timed, pool._replace(states=with_clock), flat_key
    )
    return Training(tuple(literal), flat, timed_flat, losses, timed_losses)


def _start(value: MLP) -> ValueLearner:
    return ValueLearner(value, optax.scale_by_adam().init(value))


def _literal(
    settings: PointSettings,
    model: PointModel,
    learner: ValueLearner,
    epochs: int,
    key: PRNGKeyArray,
) -> ValueLearner:
    """Appendix D: every epoch has its own fresh trajectories."""
    data_key, order_key = jax.random.split(key)
    count = epochs * settings.virtual_trajectories
    data = imagine_samples(model, count, data_key)
    rows = jnp.arange(count).reshape(epochs, -1)
    rate = settings.value_learning_rate
    trained: ValueLearner = _epochs(
        learner, data, rows, rate, order_key, settings.value_batch
    )[0]
    return trained


def _until_flat(
    settings: PointSettings, learner: ValueLearner, pool: Samples, key: PRNGKeyArray
) -> tuple[Trained, tuple[tuple[int, float], ...]]:
    """Halve the step size at every plateau; stop at that of the literal setting."""
    rate = settings.flat_learning_rate
    shape = (settings.flat_window, settings.virtual_trajectories)
    losses: list[tuple[int, float]] = []
    done, best = 0, float("inf")
    while done < settings.flat_limit:
        row_key, order_key = jax.random.split(jax.random.fold_in(key, done))
        rows = jax.random.randint(row_key, shape, 0, settings.flat_pool)
        learner, loss = _epochs(
            learner, pool, rows, rate, order_key, settings.value_batch
        )
        done += settings.flat_window
        losses.append((done, float(loss)))
        if float(loss) > (1 - settings.flat_gain) * best:
            if rate <= settings.value_learning_rate:
                break
            rate /= 2
        best = min(best, float(loss))
    return Trained(done, learner.value), tuple(losses)


@partial(jax.jit, static_argnames="count")
def imagine_samples(model: PointModel, count: int, key: PRNGKeyArray) -> Samples:
    """``count`` fresh imagined trajectories, trajectory first."""
    start_key, roll_key = jax.random.split(key)
    contract = model.rules.contract
    assert contract is not None
    rolled = roll(model, contract.initial(start_key, count), roll_key)
    returns = jnp.cumsum(rolled.rewards[::-1], axis=0)[::-1] / model.world.return_std
    horizon = model.rules.horizon
    time = jnp.broadcast_to(
        clock(horizon, jnp.arange(horizon))[:, None, None], (*returns.shape, 1)
    )
    states = model.world.observation.normalise(rolled.states)
    return Samples(*(x.swapaxes(0, 1) for x in (states, time, returns)))


@partial(jax.jit, static_argnames="batch")
def _epochs(
    learner: ValueLearner,
    data: Samples,
    rows: Int[Array, "epochs trajectories"],
    rate: Float[Array, ""] | float,
    key: PRNGKeyArray,
    batch: int,
) -> tuple[ValueLearner, Float[Array, ""]]:
    """Train on the chosen trajectories of every epoch, in shuffled minibatches."""
    samples = rows.shape[1] * data.returns.shape[1]
    batches = max(samples // batch, 1)

    def epoch(
        learner: ValueLearner, chosen: tuple[Array, Array]
    ) -> tuple[ValueLearner, Float[Array, " batches"]]:
        trajectories, key = chosen
        x = data.states[trajectories].reshape(samples, -1)
        y = data.returns[trajectories].reshape(samples)
        order = jax.random.permutation(key, samples)[: batches * batch]
        return jax.lax.scan(
            lambda learner, i: _step(learner, x[i], y[i], rate),
            learner,
            order.reshape(batches, -1),
        )

    keys = jax.random.split(key, len(rows))
    learner, losses = jax.lax.scan(epoch, learner, (rows, keys))
    return learner, losses.mean()


def _step(
    learner: ValueLearner,
    inputs: Float[Array, "b i"],
    returns: Float[Array, " b"],
    rate: Float[Array, ""] | float,
) -> tuple[ValueLearner, Float[Array, ""]]:
    """One step of Adam down L_v."""
    loss, gradient = jax.value_and_grad(
        lambda value: jnp.mean((predict_value(value, inputs) - returns) ** 2)
    )(learner.value)
    update, state = optax.scale_by_adam().update(gradient, learner.state)
    value = jax.tree.map(lambda w, u: w - rate * u, learner.value, update)
    return ValueLearner(value, state), loss


def stack(values: Sequence[MLP]) -> MLP:
    """Several value functions as one pytree with a leading axis."""
    stacked: MLP = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
    return stacked
