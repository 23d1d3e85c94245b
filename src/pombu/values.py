"""The value function V_phi, one network for every time step as in the paper."""

from collections.abc import Sequence

from jaxtyping import Array, Float, PRNGKeyArray

from pombu.networks import MLP, init_mlp, xavier


def init_value(key: PRNGKeyArray, observation_dim: int, hidden: Sequence[int]) -> MLP:
    """A tanh network from a normalised observation to one number."""
    return init_mlp(key, (observation_dim, *hidden, 1), xavier)


def predict(value: MLP, observation: Float[Array, "*b o"]) -> Float[Array, "*b"]:
    """V_phi(s), in units of scaled reward."""
    return value(observation)[..., 0]
