"""The actor, the critics and the temperature of DHMBPO."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.algorithms.dhmbpo.config import SoftActorCriticConfig
from pombu.dynamics.ensemble import Form, Layers, init_ensemble, materialise, predict
from pombu.nn import SquashedPolicy


class Critics(eqx.Module):
    """An ensemble of Q-functions whose outputs are in units of a range.

    Q = centre + half * network, where the range of Q follows that of rewards. Inputs
    are normalised observations and actions in policy space.
    """

    layers: Layers

    @property
    def members(self) -> int:
        """How many there are."""
        return self.layers.biases[0].shape[0]

    def values(
        self,
        observation: Float[Array, "*n o"],
        action: Float[Array, "*n a"],
        bounds: Float[Array, "2"],
    ) -> Float[Array, "c *n"]:
        """Q of every critic."""
        x = jnp.concatenate([observation, action], -1)
        rows = x.reshape(-1, x.shape[-1])
        spread = jnp.broadcast_to(rows, (self.members, *rows.shape))
        output = predict(self.layers, spread)[..., 0]
        centre, half = (bounds[1] + bounds[0]) / 2, (bounds[1] - bounds[0]) / 2
        return (centre + half * output).reshape(self.members, *x.shape[:-1])

    def some(self, which: Int[Array, " s"]) -> "Critics":
        """Only these critics."""
        chosen: Critics = jax.tree.map(lambda leaf: leaf[which], self)
        return chosen


class Networks(eqx.Module):
    """All that an update changes."""

    policy: SquashedPolicy
    critics: Critics
    targets: Critics
    """Slow copies of the critics."""
    log_temperature: Float[Array, ""]
    bounds: Float[Array, "2"]
    """Range of Q."""


def init_critics(
    key: PRNGKeyArray, observations: int, actions: int, config: SoftActorCriticConfig
) -> Critics:
    """Untrained critics, which all give the middle of the range."""
    sizes = (observations + actions, 1, config.hidden)
    form = Form("silu", "layer")
    layers = materialise(init_ensemble(key, config.critics, *sizes, form))
    last = jnp.zeros_like(layers.weights[-1])
    return Critics(Layers((*layers.weights[:-1], last), layers.biases, form))


def follow(targets: Critics, critics: Critics, tau: float) -> Critics:
    """Targets a share of the way closer to the critics (Polyak averaging)."""
    closer: Critics = jax.tree.map(lambda t, c: t + tau * (c - t), targets, critics)
    return closer
