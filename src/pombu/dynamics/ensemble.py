"""Members of learned dynamics, and the deterministic ensemble {f_w1 ... f_wK}.

Each member maps a normalised state and action to the normalised state change (and, when
the reward is learned, to the normalised reward as one more output). Members are stacked
along a leading axis K, so one batched matmul serves them all. Deterministic members
have weight normalisation and ReLU (paper), or layer normalisation, or SiLU. They are
trained by the squared error of one step, or of several over a window of real steps.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.data import Normaliser, moved
from pombu.dynamics.config import Activation, ModelConfig, Normalisation, Precision

_DIRECTION_STD = 0.05
NORM_EPS = 1e-5


class Form(eqx.Module):
    """What happens between a member's layers; no arrays, hence static under jit."""

    activation: Activation = eqx.field(static=True, default="relu")
    normalisation: Normalisation = eqx.field(static=True, default="weight")


PUBLISHED = Form()
"""The form of the published code."""


class WeightNorm(eqx.Module):
    """One layer, W = g v / |v| per output unit; members stacked on the first axis."""

    direction: Float[Array, "*k i o"]
    gain: Float[Array, "*k o"]
    bias: Float[Array, "*k o"]


class Linear(eqx.Module):
    """One layer without weight normalisation; members stacked on the first axis."""

    weight: Float[Array, "*k i o"]
    bias: Float[Array, "*k o"]


class Ensemble(eqx.Module):
    """Parameters of all members."""

    layers: tuple[WeightNorm | Linear, ...]
    form: Form = PUBLISHED

    @property
    def members(self) -> int:
        """K."""
        return self.layers[0].bias.shape[0]


class Members(eqx.Module):
    """Networks that predict a step in normalised units: a stack of K, or a single one.

    A single one has no member axis. Every kind says what it gives for rows of inputs,
    and whether that is the mean of a Gaussian.
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """K, of a stack."""

    @abstractmethod
    def outputs(
        self, x: Float[Array, "*k n i"], precision: Precision
    ) -> tuple[Float[Array, "*k n y"], Float[Array, "*k #n y"] | None]:
        """Each member's mean for its own rows, and its log standard deviation.

        The latter is None where members are deterministic.
        """

    @abstractmethod
    def unstack(self) -> tuple["Members", ...]:
        """Each member of a stack in arrays of its own."""


class Unstacked(Members):
    """Members in arrays of their own.

    A loop that predicts at every step makes them once, before it begins: a stack would
    be sliced, that is copied, at every step.
    """

    each: tuple[Members, ...]

    @property
    def count(self) -> int:
        """K."""
        return len(self.each)

    def outputs(
        self, x: Float[Array, "k n i"], precision: Precision
    ) -> tuple[Float[Array, "k n y"], Float[Array, "k #n y"] | None]:
        """Each member's mean for its own rows, and its log standard deviation."""
        pairs = zip(self.each, x, strict=True)
        means, log_stds = zip(
            *(one.outputs(own, precision) for one, own in pairs), strict=True
        )
        spread = None if log_stds[0] is None else jnp.stack(log_stds)
        return jnp.stack(means), spread

    def unstack(self) -> tuple[Members, ...]:
        """The members themselves."""
        return self.each


class Layers(Members):
    """Deterministic members: effective weights and biases, ready to multiply."""

    weights: tuple[Float[Array, "... _ _"], ...]
    biases: tuple[Float[Array, "... _"], ...]
    form: Form = PUBLISHED

    @property
    def count(self) -> int:
        """K, of a stack."""
        return self.biases[0].shape[0]

    def outputs(
        self, x: Float[Array, "*k n i"], precision: Precision
    ) -> tuple[Float[Array, "*k n y"], None]:
        """Each member's prediction for its own rows."""
        return predict(self, x, precision), None

    def unstack(self) -> tuple["Layers", ...]:
        """Each member of a stack in arrays of its own."""
        return tuple(
            jax.tree.map(lambda leaf, k=k: leaf[k], self) for k in range(self.count)
        )


def init_ensemble(
    key: PRNGKeyArray,
    members: int,
    inputs: int,
    outputs: int,
    hidden: Sequence[int],
    form: Form = PUBLISHED,
) -> Ensemble:
    """Untrained members with biases 0.

    With weight normalisation: directions ~ N(0, .05^2) and gain 1, as the published
    code starts. With layer normalisation: weights ~ N(0, 1 / inputs of the layer), cut
    off at two standard deviations.
    """
    layers: list[WeightNorm | Linear] = []
    for number, (i, o) in enumerate(pairwise((inputs, *hidden, outputs))):
        layer_key = jax.random.fold_in(key, number)
        shape, bias = (members, i, o), jnp.zeros((members, o))
        if form.normalisation == "layer":
            draw = jax.nn.initializers.lecun_normal(batch_axis=0)
            layers.append(Linear(draw(layer_key, shape, jnp.float32), bias))
        else:
            direction = _DIRECTION_STD * jax.random.normal(layer_key, shape)
            layers.append(WeightNorm(direction, jnp.ones((members, o)), bias))
    return Ensemble(tuple(layers), form)


def materialise(ensemble: Ensemble) -> Layers:
    """Normalise the directions once, so that a rollout only multiplies."""
    weights = tuple(map(_effective, ensemble.layers))
    return Layers(weights, tuple(one.bias for one in ensemble.layers), ensemble.form)


def _effective(layer: WeightNorm | Linear) -> Float[Array, "*k i o"]:
    if isinstance(layer, Linear):
        return layer.weight
    norm = jnp.sqrt(jnp.sum(layer.direction**2, -2))
    return layer.direction * (layer.gain / norm)[..., None, :]


def matmul(
    x: Float[Array, "*k n i"], weight: Float[Array, "*k i o"], precision: Precision
) -> Float[Array, "*k n o"]:
    """Products in the number format asked for, summed in float32."""
    if precision == "bfloat16":
        x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    return jnp.matmul(x, weight, preferred_element_type=jnp.float32)


def predict(
    layers: Layers, x: Float[Array, "*k n i"], precision: Precision = "float32"
) -> Float[Array, "*k n o"]:
    """Outputs of every member for its own rows `x`, in normalised units."""
    last = len(layers.weights) - 1
    bend = jax.nn.silu if layers.form.activation == "silu" else jax.nn.relu
    pairs = zip(layers.weights, layers.biases, strict=True)
    for number, (weight, bias) in enumerate(pairs):
        x = matmul(x, weight, precision) + bias[..., None, :]
        if number < last:
            if layers.form.normalisation == "layer":
                x = _layer_norm(x)
            x = bend(x)
    return x


def _layer_norm(x: Float[Array, "*k n i"]) -> Float[Array, "*k n i"]:
    """Every row with mean 0 and variance 1, without a learned scale or shift."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(centred**2, -1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + NORM_EPS)


class Samples(NamedTuple):
    """Rows of the data that a loss is taken of."""

    inputs: Float[Array, "n i"]
    """All normalised states and actions, in the order of the steps."""
    targets: Float[Array, "n y"]
    """What is to be predicted."""
    rows: Int[Array, " b"]
    """Which of them count."""


class MemberLoss(eqx.Module):
    """What a single member is trained on and judged by; its arrays are data."""

    @abstractmethod
    def of_rows(self, member: Any, samples: Samples) -> Float[Array, " b"]:
        """The loss of each row, whose mean judges a member."""

    @abstractmethod
    def objective(
        self, member: Any, samples: Samples
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """What a gradient step on these rows lowers, and what is reported of it."""


class SquaredError(MemberLoss):
    """Mean squared error of one step, in normalised units."""

    precision: Precision = eqx.field(static=True)

    def of_rows(self, member: Ensemble, samples: Samples) -> Float[Array, " b"]:
        """The loss of each row."""
        inputs, targets, rows = samples
        predicted = predict(materialise(member), inputs[rows], self.precision)
        return jnp.mean((predicted - targets[rows]) ** 2, -1)

    def objective(
        self, member: Ensemble, samples: Samples
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The mean over rows."""
        mean = jnp.mean(self.of_rows(member, samples))
        return mean, mean


class SeveralSteps(MemberLoss):
    """The error several steps ahead, over windows of consecutive real steps.

    From a real state the member follows the real actions through its own predictions.
    At each step the predicted state is compared with the real one, in the units in
    which changes are learned; the loss is the mean over steps of the squared error.
    Noise on observations is in the targets of one step as much as in its input, which
    pulls a fit of one step towards the mean; looked at from further away, it is a
    smaller part. A learned reward counts with the error of each step alone.
    """

    counts: Bool[Array, "n h"]
    """Which steps of the window that begins in each row are looked at."""
    observation: Normaliser
    delta: Normaliser
    """Units of the change, by which a prediction is fed back."""
    precision: Precision = eqx.field(static=True)

    def of_rows(self, member: Ensemble, samples: Samples) -> Float[Array, " b"]:
        """The loss of the windows that begin in these rows."""
        inputs, targets, rows = samples
        layers = materialise(member)
        dim, frame = self.observation.mean.shape[-1], self.delta.mean.shape[-1]
        ahead = jnp.arange(self.counts.shape[1])[:, None]
        index = jnp.minimum(rows + ahead, len(inputs) - 1)

        def step(
            carry: tuple[Float[Array, "b o"], Float[Array, "b f"]],
            now: tuple[Float[Array, "b a"], Float[Array, "b y"]],
        ) -> tuple[tuple[Array, Array], Float[Array, " b"]]:
            (state, gap), (action, target) = carry, now
            x = jnp.concatenate([self.observation.normalise(state), action], -1)
            output = predict(layers, x, self.precision)
            error = output - target
            # Changes add up, and so do their errors: this is the predicted state's.
            gap = gap + error[:, :frame]
            square = jnp.mean(jnp.concatenate([gap, error[:, frame:]], -1) ** 2, -1)
            change = self.delta.restore(output[:, :frame])
            return (moved(state, change), gap), square

        first = self.observation.restore(inputs[rows, :dim])
        begin = (first, jnp.zeros((len(rows), frame)))
        _, squares = jax.lax.scan(step, begin, (inputs[index, dim:], targets[index]))
        counts = self.counts[rows].T
        return jnp.sum(jnp.where(counts, squares, 0.0), 0) / jnp.sum(counts, 0)

    def objective(
        self, member: Ensemble, samples: Samples
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The mean over rows."""
        mean = jnp.mean(self.of_rows(member, samples))
        return mean, mean


class Unroll(NamedTuple):
    """What windows of several steps are made of."""

    left: np.ndarray
    """[n] steps that the row's episode has from it on, its own included."""
    observation: Normaliser
    delta: Normaliser

    def loss(
        self, config: ModelConfig, capacity: int, held_out: np.ndarray | None = None
    ) -> SeveralSteps:
        """The loss over `config.fit_horizon` steps, or over as many as there are.

        Args:
            config: horizon and precision.
            capacity: rows to pad to, so that shapes stay the same.
            held_out: [n] rows whose steps are not to be learned. A window goes through
                such a step, but the state that it leads to is not looked at.
        """
        number, ahead = len(self.left), np.arange(config.fit_horizon)
        counts = ahead < self.left[:, None]
        if held_out is not None:
            row = np.minimum(np.arange(number)[:, None] + ahead, number - 1)
            counts &= ~held_out[row]
        counts = np.pad(counts, ((0, max(capacity - number, 0)), (0, 0)))
        units = (self.observation, self.delta)
        return SeveralSteps(jnp.asarray(counts), *units, config.precision)
