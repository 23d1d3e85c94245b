"""Models of the point experiment: its settings, learned dynamics and value functions.

The numbers are those of Appendix D.1 of the paper where it gives them. The paper's V is
a function of the state alone, though the value of a state falls with the steps that
remain; beside it stands a V that is also told the step. Both are trained on imagined
trajectories, for a few epochs and until their loss is flat.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.data import learn_from, no_experience
from pombu.dynamics.config import ModelConfig, ReturnConfig
from pombu.dynamics.fit import FitReport, fit_dynamics, fresh_ensemble
from pombu.dynamics.model import Dynamics, dynamics_of
from pombu.envs import Episode, Task, collect
from pombu.nn import MLP, init_mlp, init_value, predict_value, xavier
from pombu.parallel import Workers
from pombu.rollout.imagine import ImaginationRules

GAMMA = 1.0


@dataclass(frozen=True)
class PointSettings:
    """One run of the calibration experiment."""

    environments: tuple[str, ...] = ("Point2D", "Point3D")
    """Tasks."""
    datasets: int = 10
    """Independent repetitions: policy, data, models, value function and starts."""
    seed: int = 0
    """What everything random is drawn from."""
    start_states: int = 5000
    """States whose Q-value is evaluated, with the policy's action."""
    policy_hidden: tuple[int, ...] = (64, 64)
    """Layers of the random deterministic policy (the paper does not give them)."""
    real_trajectories: int = 3000
    """Real trajectories that the models learn from."""
    exploration_std: float = 1.0
    """Noise on the policy's action while data is collected, in units of the action
    bound, as in an untrained Gaussian policy (the paper does not say)."""
    members: int = 5
    """K."""
    model_hidden: tuple[int, ...] = (64, 64)
    """Layers of each model."""
    model_batch: int = 500
    """Rows per gradient step of a model."""
    model_learning_rate: float = 2e-4
    """Adam's step size for the models."""
    model_epochs: int = 10_000
    """Most epochs of a model; it stops earlier, 25 epochs after its best validation."""
    value_hidden: tuple[int, ...] = (32, 32)
    """Layers of the value function."""
    virtual_trajectories: int = 100
    """Fresh imagined trajectories per value epoch."""
    value_batch: int = 200
    """Samples per gradient step of the value function."""
    value_learning_rate: float = 5e-5
    """Adam's step size for the value function."""
    value_epochs: tuple[int, ...] = (0, 5, 10, 15)
    """After how many value epochs the literal setting is evaluated."""
    flat_pool: int = 10_000
    """Imagined trajectories from which training until flat draws its epochs."""
    flat_learning_rate: float = 1.6e-3
    """Adam's step size when training until flat begins; it is halved whenever the loss
    is flat, down to the step size of the literal setting."""
    flat_window: int = 200
    """Epochs per window of training until flat."""
    flat_gain: float = 0.03
    """The loss is flat when a window lowers it by less than this share."""
    flat_limit: int = 20_000
    """Most epochs of training until flat."""
    rollouts: int = 20
    """Imagined trajectories per start state (published code): their mean return is the
    Q-value, and their mean D the squared uncertainty."""
    policy_scale: float = 1.0
    """Factor of the random policy's last layer; 0.01 in the published code, whose point
    nearly stands still."""
    value_pool: int = 0
    """Imagined trajectories that are made once, and of which every value epoch passes
    over all (published code: 5000); 0 imagines fresh ones for every epoch (text)."""


POINT_PROFILES = {
    "smoke": PointSettings(
        datasets=2,
        start_states=60,
        real_trajectories=40,
        model_epochs=5,
        flat_pool=500,
        flat_window=5,
        flat_limit=10,
        rollouts=2,
    ),
    "fast": PointSettings(start_states=1000, real_trajectories=500),
    "paper": PointSettings(),
}

PUBLISHED_POLICY_SCALE = 0.01
PUBLISHED_POOL = 5000


def as_published(settings: PointSettings) -> PointSettings:
    """The same as the published code reads: what it does otherwise than the text says.

    In the smoke profile the pool is as small as everything else.
    """
    pool = min(PUBLISHED_POOL, settings.flat_pool)
    return dataclasses.replace(
        settings, policy_scale=PUBLISHED_POLICY_SCALE, value_pool=pool
    )


class PointModel(eqx.Module):
    """The learned dynamics with the policy that acts in it."""

    dynamics: Dynamics
    policy: MLP
    rules: ImaginationRules = eqx.field(static=True)

    def alone(self, member: int) -> "PointModel":
        """The same with one member only."""
        single = self.dynamics.only(jnp.asarray(member))
        return dataclasses.replace(self, dynamics=single)


class Rolled(NamedTuple):
    """N imagined trajectories, rewards in the task's own units."""

    states: Float[Array, "H N o"]
    member_rewards: Float[Array, "K H N"]
    member_next_states: Float[Array, "K H N o"]

    @property
    def rewards(self) -> Float[Array, "H N"]:
        """What the trajectory is paid: the mean over members."""
        return self.member_rewards.mean(axis=0)


@dataclasses.dataclass(frozen=True)
class RealData:
    """What one dataset of the experiment is made of."""

    training: list[Episode]
    tests: list[Episode]


def random_policy(settings: PointSettings, task: Task, key: PRNGKeyArray) -> MLP:
    """A randomly initialised network whose output is clipped to the action box.

    The network speaks the task's own units. The box is narrow in them, so the policy
    walks at nearly full speed; in policy space its last layer is divided by the bound.
    """
    sizes = (task.observation_dim, *settings.policy_hidden, task.action_dim)
    gain = settings.policy_scale / task.action_box.high[0]
    return init_mlp(key, sizes, xavier, output_gain=gain)


def collect_data(
    settings: PointSettings, task: Task, policy: MLP, seed: tuple[int, ...]
) -> RealData:
    """Real trajectories: noisy ones to learn from, one from each evaluated state."""
    act = jax.jit(lambda states: policy(states))
    rng = np.random.default_rng([*seed, 0])

    def explore(observations: np.ndarray, step: int) -> np.ndarray:
        noise = rng.normal(size=(len(observations), task.action_dim))
        return np.asarray(act(observations)) + settings.exploration_std * noise

    def exploit(observations: np.ndarray, step: int) -> np.ndarray:
        return np.asarray(act(observations))

    def episodes(
        act: Callable[[np.ndarray, int], np.ndarray], count: int, stream: int
    ) -> list[Episode]:
        seeds = np.random.SeedSequence([*seed, stream]).generate_state(count)
        return collect(task, act, [int(s) for s in seeds])

    return RealData(
        training=episodes(explore, settings.real_trajectories, 1),
        tests=episodes(exploit, settings.start_states, 2),
    )


def fit_model(
    settings: PointSettings,
    task: Task,
    policy: MLP,
    data: RealData,
    key: PRNGKeyArray,
    seed: tuple[int, ...],
    workers: Workers,
) -> tuple[PointModel, FitReport]:
    """Fit the ensemble until validation stops it."""
    config = ModelConfig(
        members=settings.members,
        hidden=settings.model_hidden,
        learning_rate=settings.model_learning_rate,
        batch_size=settings.model_batch,
        max_epochs=settings.model_epochs,
    )
    nothing = no_experience(task.observation_dim, task.action_dim)
    experience = learn_from(nothing, data.training, GAMMA)
    rows = sum(len(episode) for episode in data.training)
    ensemble, report = fit_dynamics(
        fresh_ensemble(key, task, config),
        data.training,
        experience,
        config,
        rows,
        seed,
        0,
        workers,
    )
    rules = ImaginationRules(
        box=task.action_box,
        returns=ReturnConfig(gamma=GAMMA, reward_clip=None, variance_clip=None),
        horizon=task.horizon,
        runaway=np.inf,
    )
    dynamics = dynamics_of(ensemble, experience, task, config)
    return PointModel(dynamics, policy, rules), report


def roll(model: PointModel, starts: Float[Array, "N o"], key: PRNGKeyArray) -> Rolled:
    """Trajectories whose every step is made by a member drawn anew."""
    rows = jnp.arange(len(starts))

    def step(
        state: Float[Array, "N o"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "N o"], tuple[Array, Array, Array]]:
        action = model.rules.box.to_box(model.policy(state))
        following, rewards, _ = model.dynamics.step(state, action)
        chosen = jax.random.randint(key, rows.shape, 0, model.dynamics.members.count)
        return following[chosen, rows], (state, rewards, following)

    keys = jax.random.split(key, model.rules.horizon)
    _, (states, rewards, following) = jax.lax.scan(step, starts, keys)
    return Rolled(states, rewards.swapaxes(0, 1), following.swapaxes(0, 1))


@jax.jit
def imagined_returns(
    model: PointModel, starts: Float[Array, "N o"], key: PRNGKeyArray
) -> Float[Array, " N"]:
    """Undiscounted return of one imagined trajectory per start."""
    return roll(model, starts, key).rewards.sum(axis=0)


class ValueSamples(NamedTuple):
    """States with their steps, as V sees them, and returns to go in scaled units."""

    states: Float[Array, "*b o"]
    clock: Float[Array, "*b 1"]
    returns: Float[Array, "*b"]


class TrainedValue(NamedTuple):
    """A value function after so many epochs."""

    epochs: int
    value: MLP


class ValueTraining(NamedTuple):
    """What came of training V; losses are (epochs, mean loss of the window)."""

    literal: tuple[TrainedValue, ...]
    """V(s) after each of the paper's numbers of epochs."""
    flat: TrainedValue
    """V(s) when its loss was flat."""
    timed: TrainedValue
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
    return model.dynamics.return_std * predict_value(
        value, model.dynamics.observation.normalise(states)
    )


def timed_next_values(
    model: PointModel, value: MLP, states: Float[Array, "K H N o"]
) -> Float[Array, "K H N"]:
    """V(s', h+1); after the last step there is nothing to come."""
    horizon = model.rules.horizon
    following = jnp.arange(1, horizon + 1)[:, None]
    time = jnp.broadcast_to(clock(horizon, following), states.shape[:-1])
    inputs = jnp.concatenate(
        [model.dynamics.observation.normalise(states), time[..., None]], axis=-1
    )
    values = model.dynamics.return_std * predict_value(value, inputs)
    return jnp.where(following < horizon, values, 0.0)


class ValueLearner(NamedTuple):
    """A value function and its optimiser's state."""

    value: MLP
    state: Any


def train_values(
    settings: PointSettings, model: PointModel, key: PRNGKeyArray
) -> ValueTraining:
    """The literal stages, then on until flat; a V with a clock until flat."""
    dim = model.dynamics.observation.mean.shape[0]
    plain_key, timed_key, literal_key, pool_key, flat_key = jax.random.split(key, 5)
    learner = _start(init_value(plain_key, dim, settings.value_hidden))
    timed = _start(init_value(timed_key, dim + 1, settings.value_hidden))

    published = None
    if settings.value_pool:
        made_once = jax.random.fold_in(pool_key, 1)
        published = _imagine_samples(model, settings.value_pool, made_once)
    literal: list[TrainedValue] = []
    done = 0
    for target in settings.value_epochs:
        if target > done:
            learner = _literal(
                settings, model, learner, target - done, literal_key, published
            )
            literal_key, _ = jax.random.split(literal_key)
            done = target
        literal.append(TrainedValue(done, learner.value))

    pool = _imagine_samples(model, settings.flat_pool, pool_key)
    with_clock = jnp.concatenate([pool.states, pool.clock], axis=-1)
    flat, losses = _until_flat(settings, learner, pool, flat_key)
    timed_flat, timed_losses = _until_flat(
        settings, timed, pool._replace(states=with_clock), flat_key
    )
    return ValueTraining(tuple(literal), flat, timed_flat, losses, timed_losses)


def _start(value: MLP) -> ValueLearner:
    return ValueLearner(value, optax.scale_by_adam().init(value))


def _literal(
    settings: PointSettings,
    model: PointModel,
    learner: ValueLearner,
    epochs: int,
    key: PRNGKeyArray,
    pool: ValueSamples | None = None,
) -> ValueLearner:
    """Appendix D: every epoch has its own fresh trajectories, or passes over a pool."""
    data_key, order_key = jax.random.split(key)
    if pool is None:
        count = epochs * settings.virtual_trajectories
        rows = jnp.arange(count).reshape(epochs, -1)
        data = _imagine_samples(model, count, data_key)
    else:
        rows = jnp.broadcast_to(
            jnp.arange(settings.value_pool), (epochs, settings.value_pool)
        )
        data = pool
    rate = settings.value_learning_rate
    trained: ValueLearner = _epochs(
        learner, data, rows, rate, order_key, settings.value_batch
    )[0]
    return trained


def _until_flat(
    settings: PointSettings,
    learner: ValueLearner,
    pool: ValueSamples,
    key: PRNGKeyArray,
) -> tuple[TrainedValue, tuple[tuple[int, float], ...]]:
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
    return TrainedValue(done, learner.value), tuple(losses)


@partial(jax.jit, static_argnames="count")
def _imagine_samples(model: PointModel, count: int, key: PRNGKeyArray) -> ValueSamples:
    """``count`` fresh imagined trajectories, trajectory first."""
    start_key, roll_key = jax.random.split(key)
    contract = model.dynamics.contract
    assert contract is not None
    rolled = roll(model, contract.initial(start_key, count), roll_key)
    returns = jnp.cumsum(rolled.rewards[::-1], axis=0)[::-1] / model.dynamics.return_std
    horizon = model.rules.horizon
    time = jnp.broadcast_to(
        clock(horizon, jnp.arange(horizon))[:, None, None], (*returns.shape, 1)
    )
    states = model.dynamics.observation.normalise(rolled.states)
    return ValueSamples(*(x.swapaxes(0, 1) for x in (states, time, returns)))


@partial(jax.jit, static_argnames="batch")
def _epochs(
    learner: ValueLearner,
    data: ValueSamples,
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


def stack_values(values: Sequence[MLP]) -> MLP:
    """Several value functions as one pytree with a leading axis."""
    stacked: MLP = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
    return stacked
