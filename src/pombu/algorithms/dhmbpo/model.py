"""Gaussian members with one noise scale per output: their step, and their fit.

A member gives the mean of the normalised state change (and reward, where it is
learned); its noise is the same everywhere, one scale per output. In a fit the scale
that makes a batch most likely is the root mean square of its errors. Put into the
Gaussian's likelihood it leaves the sum over outputs of log(RMS error), which needs no
parameter for the scale and weighs outputs as the likelihood does. After the fit the
scale is taken from rows that the member held out.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.algorithms.dhmbpo.config import NoiseModelConfig
from pombu.data import Experience, Normaliser, moved
from pombu.dynamics.config import Precision
from pombu.dynamics.ensemble import Form, Layers, init_ensemble, materialise, predict
from pombu.dynamics.model import check_shape
from pombu.dynamics.termination import TerminationModel, network_of, says_ended
from pombu.envs import Contract
from pombu.nn import MLP
from pombu.parallel import Workers, jit

SMOOTH = Form("silu", "layer")
_LEAST_ERROR = 1e-3
"""Noise scales are at least this, in standard deviations of the output."""


class NoiseMembers(eqx.Module):
    """Parameters of all members, stacked on the first axis."""

    layers: Layers
    std: Float[Array, "*k y"]
    """Noise scale of each output, in normalised units."""

    @property
    def members(self) -> int:
        """K."""
        return self.std.shape[0]


def init_members(
    key: PRNGKeyArray, config: NoiseModelConfig, inputs: int, outputs: int
) -> NoiseMembers:
    """Untrained members, with noise as large as the outputs' spread."""
    layers = materialise(
        init_ensemble(key, config.members, inputs, outputs, config.hidden, SMOOTH)
    )
    return NoiseMembers(layers, jnp.ones((config.members, outputs)))


class Step(NamedTuple):
    """What members say of a step."""

    states: Float[Array, "K n o"]
    rewards: Float[Array, "K n"]
    ends: Bool[Array, "K n"]


class MemberDynamics(eqx.Module):
    """Learned dynamics in the data's own units; actions in the task's."""

    members: NoiseMembers
    observation: Normaliser
    action: Normaliser
    delta: Normaliser
    reward: Normaliser | None
    ending: MLP | None
    contract: Contract | None = eqx.field(static=True)
    precision: Precision = eqx.field(static=True, default="float32")

    def step(self, states: Float[Array, "n o"], actions: Float[Array, "n a"]) -> Step:
        """What every member expects of the same steps, without noise."""
        shape = (self.members.members, *states.shape)
        spread = jnp.broadcast_to(states, shape)
        taken = jnp.broadcast_to(actions, (shape[0], *actions.shape))
        return self._result(spread, taken, self._means(spread, taken))

    def sample(
        self,
        states: Float[Array, "K m o"],
        actions: Float[Array, "K m a"],
        key: PRNGKeyArray,
    ) -> Step:
        """Every member moves its own rows, with its noise; rewards have none."""
        mean = self._means(states, actions)
        frame = self.delta.mean.shape[-1]
        noise = jax.random.normal(key, (*mean.shape[:-1], frame))
        drawn = mean[..., :frame] + self.members.std[:, None, :frame] * noise
        return self._result(
            states, actions, jnp.concatenate([drawn, mean[..., frame:]], -1)
        )

    def _means(self, states: Array, actions: Array) -> Float[Array, "K m y"]:
        x = jnp.concatenate(
            [self.observation.normalise(states), self.action.normalise(actions)], -1
        )
        return predict(self.members.layers, x, self.precision)

    def _result(self, states: Array, actions: Array, output: Array) -> Step:
        frame = self.delta.mean.shape[-1]
        following = moved(states, self.delta.restore(output[..., :frame]))
        if self.reward is not None:
            rewards = self.reward.restore(output[..., frame:])[..., 0]
        else:
            assert self.contract is not None, "a known reward has a contract"
            rewards = check_shape(
                "reward", self.contract.reward(states, actions, following), following
            )
        return Step(following, rewards, self._ends(states, actions, following))

    def _ends(self, states: Array, actions: Array, following: Array) -> Array:
        if self.ending is not None:
            return says_ended(self.ending, self.observation, following)
        if self.contract is None:
            return jnp.zeros(following.shape[:-1], bool)
        ended = self.contract.terminal(states, actions, following)
        return check_shape("terminal", ended, following).astype(bool)


def member_dynamics(
    members: NoiseMembers,
    experience: Experience,
    config: NoiseModelConfig,
    contract: Contract | None,
    ending: TerminationModel | None,
) -> MemberDynamics:
    """Join members with the units of the data they were trained on."""
    learned = config.reward == "learned"
    return MemberDynamics(
        members,
        Normaliser.of(experience.observation),
        Normaliser.of(experience.action),
        Normaliser.of(experience.delta),
        Normaliser.of(experience.reward) if learned else None,
        network_of(ending),
        contract,
        config.precision,
    )


def likelihood_loss(
    layers: Layers,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    precision: Precision = "float32",
) -> Float[Array, ""]:
    """Sum over outputs of log(RMS error): -log-likelihood per row at its best scale."""
    error = predict(layers, inputs, precision) - targets
    square = jnp.mean(error**2, 0) + _LEAST_ERROR**2
    return 0.5 * jnp.sum(jnp.log(square))


@partial(jit, static_argnames="config")
def _train(
    layers: Layers,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, " n"],
    count: Int[Array, ""],
    key: PRNGKeyArray,
    steps: Int[Array, ""],
    config: NoiseModelConfig,
) -> tuple[Layers, Float[Array, ""]]:
    """Gradient steps of one member on its training rows, by a falling rate."""
    transform = optax.scale_by_adam()
    weights = (layers.weights, layers.biases)

    def loss_of(weights: Any, batch: Array) -> Array:
        own = Layers(*weights, layers.form)
        return likelihood_loss(own, inputs[batch], targets[batch], config.precision)

    def step(number: Array, carry: Any) -> Any:
        weights, optimiser, total = carry
        own = jax.random.fold_in(key, number)
        batch = rows[jax.random.randint(own, (config.batch_size,), 0, count)]
        loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
        direction, optimiser = transform.update(gradient, optimiser)
        start, end = config.learning_rate, config.final_learning_rate
        rate = start + (end - start) * number / steps
        kept = 1.0 - rate * config.weight_decay
        weights = jax.tree.map(lambda w, d: kept * w - rate * d, weights, direction)
        return weights, optimiser, total + loss

    weights, _, total = jax.lax.fori_loop(
        0, steps, step, (weights, transform.init(weights), jnp.zeros(()))
    )
    return Layers(*weights, layers.form), total / jnp.maximum(steps, 1)


@partial(jit, static_argnames="precision")
def _residual(
    layers: Layers,
    inputs: Float[Array, "n i"],
    targets: Float[Array, "n y"],
    rows: Int[Array, " v"],
    count: Int[Array, ""],
    precision: Precision,
) -> Float[Array, " y"]:
    """Root mean squared error of every output over the first `count` of the rows."""
    error = predict(layers, inputs[rows], precision) - targets[rows]
    counts = (jnp.arange(len(rows)) < count)[:, None]
    return jnp.sqrt(jnp.sum(jnp.where(counts, error**2, 0.0), 0) / count)


def fit_members(
    members: NoiseMembers,
    inputs: np.ndarray,
    targets: np.ndarray,
    validation: np.ndarray,
    new_rows: int,
    config: NoiseModelConfig,
    capacity: int,
    seed: tuple[int, ...],
    key: PRNGKeyArray,
    workers: Workers,
) -> tuple[NoiseMembers, dict[str, float]]:
    """Train every member on its rows, then measure its noise on those held out.

    Args:
        members: where to start from.
        inputs: [n, i] normalised states and actions.
        targets: [n, y] normalised state changes (and rewards).
        validation: [K, n] rows that each member holds out.
        new_rows: rows that are new since the last fit, which bound its length.
        config: rates and how long to train.
        capacity: rows to pad the arrays to, so that shapes stay the same.
        seed: which held-out rows are looked at.
        key: which rows a gradient step learns from.
        workers: threads to share the members between.
    """
    while capacity < len(inputs):
        capacity *= 2
    padding = ((0, capacity - len(inputs)), (0, 0))
    rows_in = jnp.asarray(np.pad(inputs, padding), jnp.float32)
    rows_out = jnp.asarray(np.pad(targets, padding), jnp.float32)
    steps = math.ceil(config.steps_per_new_row * new_rows)
    steps = min(max(steps, config.min_steps), config.max_steps)

    def train(number: int) -> tuple[Layers, Array, Array]:
        learned = np.flatnonzero(~validation[number])
        judges = np.flatnonzero(validation[number])
        # Where episodes are too short to split, a member is judged by what it learns.
        judges = judges if len(judges) else learned
        rng = np.random.default_rng([*seed, number])
        judges = rng.permutation(judges)[: config.validation_rows]
        layers = jax.tree.map(lambda leaf: leaf[number], members.layers)
        layers, loss = _train(
            layers,
            rows_in,
            rows_out,
            _padded(learned, capacity),
            len(learned),
            jax.random.fold_in(key, number),
            steps,
            config,
        )
        std = _residual(
            layers,
            rows_in,
            rows_out,
            _padded(judges, config.validation_rows),
            len(judges),
            config.precision,
        )
        return layers, jnp.maximum(std, _LEAST_ERROR), loss

    trained = workers.map(train, range(members.members))
    layers, std, loss = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trained)
    return NoiseMembers(layers, std), {
        "model_loss": float(jnp.mean(loss)),
        "model_noise": float(jnp.mean(std)),
        "validation_loss": float(jnp.mean(std**2)),
        "fit_steps": float(steps),
    }


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    return np.pad(rows.astype(np.int32), (0, size - len(rows)))
