"""SLBO: Stochastic Lower Bound Optimization (Luo et al., 2019).

One iteration (a stage) collects real trajectories with the policy and
Ornstein-Uhlenbeck noise, and then alternates, round by round, between training the
model on its multi-step loss and improving the policy by TRPO in the model as it is.
Model and policy thus change together, so that the policy cannot settle on what one
model got wrong.

The model is one plain network. From a real state it follows the real actions through
its own predictions. At each step the error of the predicted state change is measured by
its root mean square over entries (its L2 norm divided by the root of their number),
which, unlike the square, does not let a few large errors decide; where an episode ends,
the prediction goes on from the next episode's real start.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.algorithms.base import (
    Imagining,
    Metrics,
    ModelLearner,
    after_iteration,
    as_noisy,
    keys_of,
    share_done,
)
from pombu.algorithms.slbo.config import NoiseConfig, SLBOConfig
from pombu.data import Experience, Normaliser, Transitions, moved, transitions
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import MultiStepModelConfig
from pombu.dynamics.ensemble import Layers, Members
from pombu.dynamics.model import Dynamics, TerminationModel, dynamics_of, network_sizes
from pombu.envs import Episode, Task, collect_rounds
from pombu.errors import UsageError
from pombu.nn import (
    MLP,
    Descent,
    GaussianPolicy,
    adam,
    gradient_steps,
    init_value,
    xavier,
)
from pombu.optim.metrics import (
    policy_metrics,
    trust_region_metrics,
    trust_region_summary,
)
from pombu.optim.objectives import weighted_mean
from pombu.optim.ppo import Batch, improve_value, prepare, value_adam
from pombu.optim.trpo import improve_policy
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.plan import RolloutPlan
from pombu.rollout.real import Act, act_alone, round_keys
from pombu.training.algorithm import StageTimer

_OUTPUT_GAIN = 0.01
_TINY = 1e-12
"""Keeps the gradient of the norm finite where the error is 0."""


def init_network(key: PRNGKeyArray, task: Task, config: MultiStepModelConfig) -> Layers:
    """An untrained network, as an ensemble of one.

    Its output layer is tiny, so that at first it predicts the mean change everywhere
    and no trajectory runs away.
    """
    first, last = network_sizes(task, config.reward)
    sizes = (first, *config.hidden, last)
    keys = jax.random.split(key, len(sizes) - 1)
    gains = [1.0] * len(config.hidden) + [_OUTPUT_GAIN]
    shapes = zip(keys, pairwise(sizes), gains, strict=True)
    return Layers(
        tuple(xavier(k, shape, gain)[None] for k, shape, gain in shapes),
        tuple(jnp.zeros((1, size)) for size in sizes[1:]),
    )


def network_dynamics(
    layers: Layers,
    experience: Experience,
    task: Task,
    config: MultiStepModelConfig,
    termination: TerminationModel | None = None,
) -> Dynamics:
    """Join the network with its units: actions are seen in policy space."""
    box = task.action_box
    dynamics = dynamics_of(layers, experience, task, config, termination)
    units = Normaliser(jnp.asarray(box.middle), jnp.asarray(box.unit))
    own: Dynamics = eqx.tree_at(lambda d: d.action, dynamics, units)
    return own


def multistep_loss(dynamics: Dynamics, sequence: Transitions) -> Float[Array, ""]:
    """Mean over steps and sequences of the normalised error's root mean square.

    Args:
        dynamics: the network and its units.
        sequence: consecutive rows of the data, each field with the leading axes
            [steps, batch].
    """
    frame = dynamics.delta.mean.shape[-1]
    upcoming = jnp.roll(sequence.states, -1, 0)

    def step(
        state: Float[Array, "b o"], row: tuple[Transitions, Float[Array, "b o"]]
    ) -> tuple[Float[Array, "b o"], Float[Array, " b"]]:
        real, next_start = row
        predicted = dynamics.outputs(state, real.actions)[0]
        target = dynamics.delta.normalise((real.following - real.states)[:, :frame])
        if dynamics.reward is not None:
            reward = dynamics.reward.normalise(real.rewards[:, None])
            target = jnp.concatenate([target, reward], -1)
        norm = jnp.sqrt(jnp.mean((predicted - target) ** 2, -1) + _TINY)
        own = moved(state, dynamics.delta.restore(predicted[:, :frame]))
        following = jnp.where(real.goes_on[:, None] > 0, own, next_start)
        return following, norm

    _, norms = jax.lax.scan(step, sequence.states[0], (sequence, upcoming))
    return jnp.mean(norms)


def network_adam(config: MultiStepModelConfig) -> optax.GradientTransformation:
    """The model's optimiser."""
    return adam(config.gradient_clip)


def train_network(
    dynamics: Dynamics,
    optimiser: Any,
    data: Transitions,
    steps_taken: int,
    updates: int,
    config: MultiStepModelConfig,
    seed: Sequence[int],
) -> tuple[Dynamics, Any, Float[Array, ""]]:
    """Gradient steps on random sequences; returns their mean loss too.

    Args:
        dynamics: the network and its units.
        optimiser: Adam's memory.
        data: all real steps.
        steps_taken: how many of the rows are filled.
        updates: gradient steps.
        config: loss, sizes and rates.
        seed: what the sequences are drawn from.
    """
    last = steps_taken - config.steps
    if last < 0:
        raise UsageError(
            f"model.steps is {config.steps}, more than the {steps_taken} real steps "
            "there are: collect more trajectories or look fewer steps ahead."
        )
    rng = np.random.default_rng(list(seed))
    rows = rng.integers(0, last + 1, (updates, config.batch_size)).astype(np.int32)
    trained: tuple[Dynamics, Any, Array] = _train(
        dynamics, optimiser, data, rows, config
    )
    return trained


@partial(jit, static_argnames="config")
def _train(
    dynamics: Dynamics,
    optimiser: Any,
    data: Transitions,
    rows: Int[Array, "updates b"],
    config: MultiStepModelConfig,
) -> tuple[Dynamics, Any, Float[Array, ""]]:
    def put(layers: Members) -> Dynamics:
        placed: Dynamics = eqx.tree_at(lambda d: d.members, dynamics, layers)
        return placed

    def loss(layers: Members, first: Int[Array, " b"]) -> tuple[Array, Array]:
        index = first + jnp.arange(config.steps)[:, None]
        sequence = jax.tree.map(lambda x: x[index], data)
        error = multistep_loss(put(layers), sequence)
        size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(layers))
        return error + 0.5 * config.weight_decay * size, error

    begin, rate = Descent(dynamics.members, optimiser), config.learning_rate
    (layers, optimiser), (errors, _) = gradient_steps(
        loss, network_adam(config), begin, rate, rows
    )
    return put(layers), optimiser, jnp.mean(errors)


class State(Imagining):
    """Everything that a run is, beside its episodes."""

    value: MLP
    value_optimiser: Any
    network: Layers
    network_optimiser: Any


class Learner(ModelLearner[SLBOConfig, State]):
    """SLBO over one task: `init` a state, then `iterate` it."""

    algorithm = "slbo"

    def __init__(
        self,
        task: Task,
        config: SLBOConfig,
        name: str = "",
        workers: int | None = None,
    ) -> None:
        config.require_full_minibatches(task.horizon)
        super().__init__(task, config, name, workers)

    def init(self, seed: int) -> State:
        """Untrained networks and no experience."""
        config, task = self.config, self.task
        keys = Keys(seed, 0)
        value = init_value(keys.jax("value"), task.observation_dim, config.value.hidden)
        network = init_network(keys.jax("network"), task, config.model)
        return State(
            **self.fresh_fields(seed),
            value=value,
            value_optimiser=value_adam(config.value).init(value),
            network=network,
            network_optimiser=network_adam(config.model).init(network),
        )

    def dynamics(self, state: State) -> Dynamics:
        """The learned dynamics as the state has it."""
        return network_dynamics(
            state.network, state.experience, self.task, self.config.model, state.ending
        )

    def iterate(
        self, state: State, episodes: EpisodeStore, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """One stage: collect, alternate, evaluate."""
        config, task = self.config, self.task
        keys = keys_of(state)
        with stage("collect"):
            collected = collect_rounds(
                task, partial(self.round, state, keys), config.least_steps
            )
            episodes.append(collected)
        state, learned = self.update(state, episodes, collected, stage)
        with stage("evaluate"):
            evaluated = self.evaluate(state, keys, stage)
        return state, {**evaluated, **learned}

    def round(self, state: State, keys: Keys, index: int) -> tuple[Act, list[int]]:
        """How to act in a round of real episodes, and their seeds."""
        config = self.config
        number = config.trajectories
        part, seeds = round_keys(index, number, keys)
        normaliser = self.normaliser(state)
        act = act_alone(state.policy, normaliser, number, keys.jax("collect", *part))
        shape = (number, self.task.action_dim)
        noisy = with_noise(act, shape, config.noise, keys.numpy("noise", *part))
        return noisy, seeds

    def update(
        self,
        state: State,
        episodes: EpisodeStore,
        collected: list[Episode],
        stage: StageTimer,
    ) -> tuple[State, Metrics]:
        """Learn from newly collected episodes, which are among `episodes` already."""
        keys = keys_of(state)
        state = self.add_episodes(state, collected)
        state, found = self.fit_termination(state, episodes, keys)
        if self.config.policy.reset_std:
            noisy = as_noisy(state.policy, self.config.policy)
            state = eqx.tree_at(lambda s: s.policy, state, noisy)
        state, alternated = self.alternate(state, episodes, keys, stage)
        return after_iteration(state), {
            **alternated,
            **policy_metrics(state.policy, collected, state.experience),
            **found,
        }

    def alternate(
        self, state: State, episodes: EpisodeStore, keys: Keys, stage: StageTimer
    ) -> tuple[State, Metrics]:
        """Rounds of model updates and policy updates."""
        config = self.config
        learns = config.model.kind == "network" and config.model_updates > 0
        data = transitions(list(episodes), config.rows(self.task.horizon))
        dynamics, optimiser = self.dynamics(state), state.network_optimiser
        losses, summaries = [], []
        for number in range(config.rounds):
            if learns:
                with stage("fit"):
                    dynamics, optimiser, loss = train_network(
                        dynamics,
                        optimiser,
                        data,
                        episodes.steps,
                        config.model_updates,
                        config.model,
                        keys.numpy("fit", number),
                    )
                    losses.append(float(loss))
            state, done = self.improve(state, dynamics, episodes, keys, number, stage)
            summaries += done
        state = eqx.tree_at(
            lambda s: (s.network, s.network_optimiser),
            state,
            (dynamics.members, optimiser),
        )
        metrics = trust_region_metrics(summaries)
        return state, metrics | ({"model_loss": losses[-1]} if losses else {})

    def improve(
        self,
        state: State,
        dynamics: Dynamics,
        episodes: EpisodeStore,
        keys: Keys,
        number: int,
        stage: StageTimer,
    ) -> tuple[State, list[dict[str, Array]]]:
        """The policy updates of one round."""
        config, imagination = self.config, self.config.imagination
        imagine_batch = self.imaginer(state, episodes, keys, dynamics)
        plan = RolloutPlan(
            "imagine", 0, imagination.trajectories, imagination.shards, jnp.ones(1)
        )
        bonus = config.entropy_weight * (
            int(state.iteration) < config.entropy_iterations
        )
        done = share_done(state, config.iterations)
        policy, value, optimiser = state.policy, state.value, state.value_optimiser
        summaries = []
        for i in range(config.policy_updates):
            part = number * config.policy_updates + i
            with stage("imagine"):
                imagined = imagine_batch(policy, value, plan._replace(number=part))
                batch, goals = prepare(imagined, config.returns)
            with stage("improve"):
                new_value, new_policy = self.workers.both(
                    partial(
                        improve_value,
                        value,
                        optimiser,
                        batch,
                        keys.numpy("value", part),
                        config.value.rate(done),
                        config.value,
                    ),
                    partial(
                        improve_policy,
                        policy,
                        batch,
                        config.trust_region,
                        limited_entropy,
                        bonus,
                    ),
                )
                value, optimiser, loss = new_value
                policy, report = new_policy
            summaries.append(trust_region_summary(report, loss, imagined, goals))
        steps = config.policy_updates * plan.trajectories * self.rules.horizon
        improved: State = eqx.tree_at(
            lambda s: (s.policy, s.value, s.value_optimiser, s.imagined_steps),
            state,
            (policy, value, optimiser, state.imagined_steps + steps),
        )
        return improved, summaries


def with_noise(
    act: Act, shape: tuple[int, int], config: NoiseConfig, seed: Sequence[int]
) -> Act:
    """Add Ornstein-Uhlenbeck noise that starts at 0 to every episode's actions."""
    rng = np.random.default_rng(list(seed))
    level = np.zeros(shape, np.float32)

    def noisy(observations: np.ndarray, step: int) -> np.ndarray:
        nonlocal level
        fresh = rng.standard_normal(shape, np.float32)
        level = (1.0 - config.theta) * level + config.sigma * fresh
        actions: np.ndarray = np.asarray(act(observations, step)) + level
        return actions

    return noisy


def limited_entropy(
    policy: GaussianPolicy, batch: Batch, limit: float = 2.0
) -> Float[Array, ""]:
    """Mean over states of -∫ pi log pi over actions within plus or minus `limit`.

    Beyond the limit more noise is not worth more, because actions are clipped anyway.
    """
    mean, std = policy.mean(batch.observations), jnp.exp(policy.log_std)
    low, high = (-limit - mean) / std, (limit - mean) / std
    inside = norm.cdf(high) - norm.cdf(low)
    edges = high * norm.pdf(high) - low * norm.pdf(low)
    log_scale = policy.log_std + 0.5 * math.log(2.0 * math.pi)
    within = log_scale * inside + 0.5 * (inside - edges)
    return weighted_mean(jnp.sum(within, -1), batch.weight)
