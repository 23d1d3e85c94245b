"""A deterministic ensemble {f_w1 ... f_wK} with weight normalisation and ReLU.

Each member maps a normalised state and action to the normalised state change (and, when
the reward is learned, to the normalised reward as one more output). Members are stacked
along a leading axis K, so one batched matmul serves them all.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.config import Precision

_DIRECTION_STD = 0.05


class WeightNorm(eqx.Module):
    """One layer, W = g v / |v| per output unit; members stacked on the first axis."""

    direction: Float[Array, "*k i o"]
    gain: Float[Array, "*k o"]
    bias: Float[Array, "*k o"]


class Ensemble(eqx.Module):
    """Parameters of all members."""

    layers: tuple[WeightNorm, ...]

    @property
    def members(self) -> int:
        """K."""
        return self.layers[0].gain.shape[0]


class Layers(NamedTuple):
    """Effective weights and biases, ready to multiply."""

    weights: tuple[Float[Array, "... _ _"], ...]
    biases: tuple[Float[Array, "... _"], ...]


def init_ensemble(
    key: PRNGKeyArray, members: int, inputs: int, outputs: int, hidden: Sequence[int]
) -> Ensemble:
    """Directions ~ N(0, .05^2), gain 1 and bias 0, as the published code starts."""
    sizes = (inputs, *hidden, outputs)
    layers = []
    for number, (i, o) in enumerate(pairwise(sizes)):
        layer_key = jax.random.fold_in(key, number)
        direction = _DIRECTION_STD * jax.random.normal(layer_key, (members, i, o))
        layers.append(
            WeightNorm(direction, jnp.ones((members, o)), jnp.zeros((members, o)))
        )
    return Ensemble(tuple(layers))


def materialise(ensemble: Ensemble) -> Layers:
    """Normalise the directions once, so that a rollout only multiplies."""
    weights = []
    for layer in ensemble.layers:
        norm = jnp.sqrt(jnp.sum(layer.direction**2, -2))
        weights.append(layer.direction * (layer.gain / norm)[..., None, :])
    return Layers(tuple(weights), tuple(layer.bias for layer in ensemble.layers))


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
    for number, (weight, bias) in enumerate(zip(*layers, strict=True)):
        x = matmul(x, weight, precision) + bias[..., None, :]
        if number < last:
            x = jax.nn.relu(x)
    return x
