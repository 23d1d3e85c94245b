"""Plain multilayer perceptrons and the ways the paper's networks start.

Layers act on the last axis and broadcast over every other one. A stack of networks that
share an architecture is the same pytree with one more leading axis.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Initializer = Callable[[PRNGKeyArray, tuple[int, int], float], Float[Array, "i o"]]


class MLP(eqx.Module):
    """Fully connected layers with tanh between them and a linear output."""

    weights: tuple[Float[Array, "_ _"], ...]
    biases: tuple[Float[Array, " _"], ...]

    def __call__(self, x: Float[Array, "*batch i"]) -> Float[Array, "*batch o"]:
        """Apply the network to the last axis of `x`."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jnp.tanh(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]


def orthogonal(
    key: PRNGKeyArray, shape: tuple[int, int], gain: float
) -> Float[Array, "i o"]:
    """Orthogonal rows or columns times `gain`."""
    return jax.nn.initializers.orthogonal(gain)(key, shape, jnp.float32)


def xavier(
    key: PRNGKeyArray, shape: tuple[int, int], gain: float
) -> Float[Array, "i o"]:
    """Glorot's uniform initialisation times `gain`."""
    return gain * jax.nn.initializers.glorot_uniform()(key, shape, jnp.float32)


def init_mlp(
    key: PRNGKeyArray,
    sizes: Sequence[int],
    initializer: Initializer,
    hidden_gain: float = 1.0,
    output_gain: float = 1.0,
) -> MLP:
    """Build an MLP with layer `sizes`, zero biases and the given initialiser."""
    keys = jax.random.split(key, len(sizes) - 1)
    gains = [hidden_gain] * (len(sizes) - 2) + [output_gain]
    weights = tuple(
        initializer(k, shape, gain)
        for k, shape, gain in zip(keys, pairwise(sizes), gains, strict=True)
    )
    return MLP(weights, tuple(jnp.zeros(size, jnp.float32) for size in sizes[1:]))
