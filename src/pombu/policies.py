"""The Gaussian policy pi_theta: a network gives the mean, a vector the log-std.

A policy acts in policy space, where [-1, 1] spans the task's action box; its samples
are not clipped here, so that log-probabilities are those of a plain Gaussian.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pombu.networks import MLP, init_mlp, orthogonal

_LOG_2PI = math.log(2.0 * math.pi)


class GaussianPolicy(eqx.Module):
    """Diagonal Gaussian over actions given a normalised observation."""

    mean: MLP
    log_std: Float[Array, " a"]


def init_policy(
    key: PRNGKeyArray,
    observation_dim: int,
    action_dim: int,
    hidden: Sequence[int],
    log_std: float = 0.0,
) -> GaussianPolicy:
    """Orthogonal layers with a tiny output layer, so that the first mean is about 0."""
    sizes = (observation_dim, *hidden, action_dim)
    net = init_mlp(key, sizes, orthogonal, math.sqrt(2.0), 0.01)
    return GaussianPolicy(net, jnp.full(action_dim, log_std, jnp.float32))


def sample(
    policy: GaussianPolicy, observation: Float[Array, "*b o"], key: PRNGKeyArray
) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
    """Draw an action and return it with its log-probability."""
    mean = policy.mean(observation)
    noise = jax.random.normal(key, mean.shape, mean.dtype)
    action = mean + jnp.exp(policy.log_std) * noise
    log_prob = -0.5 * jnp.sum(noise**2 + _LOG_2PI, -1) - jnp.sum(policy.log_std)
    return action, log_prob


def log_prob(
    policy: GaussianPolicy,
    observation: Float[Array, "*b o"],
    action: Float[Array, "*b a"],
) -> Float[Array, "*b"]:
    """log pi(a|s)."""
    noise = (action - policy.mean(observation)) * jnp.exp(-policy.log_std)
    return -0.5 * jnp.sum(noise**2 + _LOG_2PI, -1) - jnp.sum(policy.log_std)


def entropy(policy: GaussianPolicy) -> Float[Array, ""]:
    """Differential entropy, the same in every state."""
    return jnp.sum(policy.log_std + 0.5 * (1.0 + _LOG_2PI))


def kl(
    old: GaussianPolicy, new: GaussianPolicy, observation: Float[Array, "*b o"]
) -> Float[Array, "*b"]:
    """KL(old || new) in every state."""
    gap = old.mean(observation) - new.mean(observation)
    variance_ratio = jnp.exp(2.0 * (old.log_std - new.log_std))
    scaled_gap = gap * jnp.exp(-new.log_std)
    return jnp.sum(
        new.log_std - old.log_std + 0.5 * (variance_ratio + scaled_gap**2 - 1.0), -1
    )
