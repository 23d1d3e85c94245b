"""Settings of the point experiment, and its learned model: policy, real data, ensemble.

The numbers are those of Appendix D.1 of the paper where it gives them.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.config import ModelConfig, ReturnConfig
from pombu.data import learn_from, no_experience
from pombu.envs import Episode, Task, collect
from pombu.fitting import fit_world, fresh_ensemble
from pombu.models import FitReport, Layers
from pombu.networks import MLP, init_mlp, xavier
from pombu.workers import Workers
from pombu.worlds import Rules, World, predict_step, world_of

GAMMA = 1.0


@dataclass(frozen=True)
class PointSettings:
    """One run of the calibration experiment."""

    environments: tuple[str, ...] = ("Point2D", "Point3D")
    """Tasks."""
    datasets: int = 5
    """Independent repetitions: policy, data, models, value function and starts."""
    seed: int = 0
    """What everything random is drawn from."""
    start_states: int = 5000
    """States whose Q-value is judged, with the policy's action."""
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
    """After how many value epochs the literal setting is judged."""
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
    "fast": PointSettings(datasets=2, start_states=1000, real_trajectories=500),
    "paper": PointSettings(),
}


class PointModel(eqx.Module):
    """The learned world with the policy that acts in it."""

    world: World
    policy: MLP
    rules: Rules = eqx.field(static=True)

    def alone(self, member: int) -> "PointModel":
        """The same with one member only."""
        weights, biases = self.world.layers
        layers = Layers(
            tuple(w[member : member + 1] for w in weights),
            tuple(b[member : member + 1] for b in biases),
        )
        world = dataclasses.replace(self.world, layers=layers)
        return dataclasses.replace(self, world=world)


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
    return init_mlp(key, sizes, xavier, output_gain=1 / task.action_box.high[0])


def collect_data(
    settings: PointSettings, task: Task, policy: MLP, seed: tuple[int, ...]
) -> RealData:
    """Real trajectories: noisy ones to learn from, and one from every judged state."""
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
    ensemble, report = fit_world(
        fresh_ensemble(key, task, config),
        data.training,
        experience,
        config,
        rows,
        seed,
        0,
        workers,
    )
    rules = Rules(
        contract=task.contract,
        box=task.action_box,
        returns=ReturnConfig(gamma=GAMMA, reward_clip=None, variance_clip=None),
        horizon=task.horizon,
        runaway=np.inf,
        precision=config.precision,
    )
    return PointModel(world_of(ensemble, experience, config), policy, rules), report


def roll(model: PointModel, starts: Float[Array, "N o"], key: PRNGKeyArray) -> Rolled:
    """Trajectories whose every step is made by a member drawn anew."""
    rows = jnp.arange(len(starts))

    def step(
        state: Float[Array, "N o"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "N o"], tuple[Array, Array, Array]]:
        action = model.rules.box.to_box(model.policy(state))
        following, rewards = predict_step(model.world, model.rules, state, action)
        chosen = jax.random.randint(key, rows.shape, 0, model.world.members)
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
