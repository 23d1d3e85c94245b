"""Value functions: V_phi as a network or a linear baseline, and U_psi for variances."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.networks import MLP, init_mlp, xavier

_RIDGE = 1e-5
_LARGEST = 10.0


def init_value(key: PRNGKeyArray, observation_dim: int, hidden: Sequence[int]) -> MLP:
    """A tanh network from a normalised observation to one number."""
    return init_mlp(key, (observation_dim, *hidden, 1), xavier)


def predict(value: MLP, observation: Float[Array, "*b o"]) -> Float[Array, "*b"]:
    """V_phi(s), in units of scaled reward."""
    return value(observation)[..., 0]


class VarianceValue(eqx.Module):
    """U_psi(s): the variance of Q that is to be expected from a state on."""

    network: MLP
    scale: Float[Array, ""]
    """The unit of the network's output: a running mean of the variances it learned."""


def init_variance(
    key: PRNGKeyArray, observation_dim: int, hidden: Sequence[int]
) -> VarianceValue:
    """An untrained U_psi, which is 0 everywhere because its unit is."""
    return VarianceValue(init_value(key, observation_dim, hidden), jnp.zeros(()))


def predict_variance(
    value: VarianceValue, observation: Float[Array, "*b o"]
) -> Float[Array, "*b"]:
    """U_psi(s), never negative, in squared units of scaled reward."""
    return value.scale * jax.nn.softplus(value.network(observation)[..., 0])


class LinearValue(eqx.Module):
    """V as a linear function of the state, its squares and powers of time."""

    weights: Float[Array, " f"]


def init_linear(observation_dim: int) -> LinearValue:
    """V = 0."""
    return LinearValue(jnp.zeros(2 * observation_dim + 4))


def linear_features(
    observations: Float[Array, "H N o"],
) -> Float[Array, "H N f"]:
    """Clipped state, its square, three powers of the share of time gone by, and 1."""
    horizon, number, _ = observations.shape
    state = jnp.clip(observations, -_LARGEST, _LARGEST)
    time = (jnp.arange(horizon) / horizon)[:, None] ** jnp.arange(4)
    times = jnp.broadcast_to(time[:, None], (horizon, number, 4))
    return jnp.concatenate([state, state**2, times], -1)


def predict_linear(
    value: LinearValue, observations: Float[Array, "H N o"]
) -> Float[Array, "H N"]:
    """V of every step of trajectories, time first."""
    return linear_features(observations) @ value.weights


def fit_linear(
    observations: Float[Array, "H N o"],
    returns: Float[Array, "H N"],
    weight: Float[Array, "H N"],
) -> LinearValue:
    """Ridge regression of the returns on the features, over the steps that count."""
    features = linear_features(observations)
    weighted = features * weight[..., None]
    count = jnp.maximum(jnp.sum(weight), 1.0)
    squares = jnp.einsum("hnf,hng->fg", weighted, features) / count
    products = jnp.einsum("hnf,hn->f", weighted, returns) / count
    ridge = _RIDGE * jnp.eye(len(products))
    return LinearValue(jnp.linalg.solve(squares + ridge, products))
