"""SLBO's model: one plain network, trained to predict several steps ahead.

From a real state the network follows the real actions through its own predictions. At
each step the error of the predicted state change is measured by its root mean square
over entries (its L2 norm divided by the root of their number), which, unlike the
square, does not let a few large errors decide; where an episode ends, the
prediction goes on from the next episode's real start.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.data import Experience, Normaliser, Transitions, moved
from pombu.dynamics.config import MultiStepModelConfig
from pombu.dynamics.ensemble import Layers, Members
from pombu.dynamics.model import Dynamics, dynamics_of, network_sizes
from pombu.dynamics.termination import TerminationModel
from pombu.envs import Task
from pombu.errors import UsageError
from pombu.nn import Descent, adam, gradient_steps, xavier
from pombu.parallel import jit

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
    ending: TerminationModel | None = None,
) -> Dynamics:
    """Join the network with its units: actions are seen in policy space."""
    box = task.action_box
    dynamics = dynamics_of(layers, experience, task, config, ending)
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
