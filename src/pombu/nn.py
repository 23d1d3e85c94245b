"""Networks: multilayer perceptrons, policies, value functions, and gradient steps."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.errors import UsageError

Initializer = Callable[[PRNGKeyArray, tuple[int, int], float], Float[Array, "i o"]]


_BENDS = {"tanh": jnp.tanh, "silu": jax.nn.silu, "relu": jax.nn.relu}


class MLP(eqx.Module):
    """Fully connected layers with a nonlinearity between them and a linear output."""

    weights: tuple[Float[Array, "_ _"], ...]
    biases: tuple[Float[Array, " _"], ...]
    activation: Literal["tanh", "silu", "relu"] = eqx.field(static=True, default="tanh")

    def __call__(self, x: Float[Array, "*batch i"]) -> Float[Array, "*batch o"]:
        """Apply the network to the last axis of `x`."""
        bend = _BENDS[self.activation]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = bend(x @ weight + bias)
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


_LOG_2PI = math.log(2.0 * math.pi)


@runtime_checkable
class StochasticPolicy(Protocol):
    """A distribution over actions given a normalised observation; any pytree."""

    def sample(
        self, observation: Float[Array, "*b o"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
        """Draw an action in policy space, and its log-probability."""

    def log_prob(
        self, observation: Float[Array, "*b o"], action: Float[Array, "*b a"]
    ) -> Float[Array, "*b"]:
        """log pi(a|s)."""


class GaussianPolicy(eqx.Module):
    """Diagonal Gaussian over actions given a normalised observation."""

    mean: MLP
    log_std: Float[Array, " a"]

    def sample(
        self, observation: Float[Array, "*b o"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
        """Draw an action in policy space, and its log-probability."""
        mean = self.mean(observation)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        action = mean + jnp.exp(self.log_std) * noise
        log_prob = -0.5 * jnp.sum(noise**2 + _LOG_2PI, -1) - jnp.sum(self.log_std)
        return action, log_prob

    def log_prob(
        self, observation: Float[Array, "*b o"], action: Float[Array, "*b a"]
    ) -> Float[Array, "*b"]:
        """log pi(a|s)."""
        noise = (action - self.mean(observation)) * jnp.exp(-self.log_std)
        return -0.5 * jnp.sum(noise**2 + _LOG_2PI, -1) - jnp.sum(self.log_std)


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


LEAST_STD = 1e-5
_LARGEST_ACTION = 1.0 - 1e-6


class SquashedPolicy(eqx.Module):
    """A Gaussian whose draws go through tanh, so that actions lie within (-1, 1).

    The network gives the mean and, by softplus, the standard deviation before tanh for
    a normalised observation.
    """

    network: MLP

    def parameters(
        self, observation: Float[Array, "*b o"]
    ) -> tuple[Float[Array, "*b a"], Float[Array, "*b a"]]:
        """Mean and standard deviation before tanh."""
        mean, free = jnp.split(self.network(observation), 2, -1)
        return mean, jax.nn.softplus(free) + LEAST_STD

    def mode(self, observation: Float[Array, "*b o"]) -> Float[Array, "*b a"]:
        """The action without noise: tanh of the mean."""
        return jnp.tanh(self.parameters(observation)[0])

    def sample(
        self, observation: Float[Array, "*b o"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
        """Draw an action and return it with its log-probability."""
        mean, std = self.parameters(observation)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        free = mean + std * noise
        return jnp.tanh(free), _squashed_log_prob(free, noise, std)

    def log_prob(
        self, observation: Float[Array, "*b o"], action: Float[Array, "*b a"]
    ) -> Float[Array, "*b"]:
        """log pi(a|s); an action at the bounds counts as one just within them."""
        mean, std = self.parameters(observation)
        free = jnp.arctanh(jnp.clip(action, -_LARGEST_ACTION, _LARGEST_ACTION))
        return _squashed_log_prob(free, (free - mean) / std, std)


def _squashed_log_prob(
    free: Float[Array, "*b a"], noise: Float[Array, "*b a"], std: Float[Array, "*b a"]
) -> Float[Array, "*b"]:
    """Of tanh(free), which is noise standard deviations from the mean.

    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) stays exact where tanh is 1.
    """
    density = -0.5 * (noise**2 + _LOG_2PI) - jnp.log(std)
    squashing = 2.0 * (math.log(2.0) - free - jax.nn.softplus(-2.0 * free))
    return jnp.sum(density - squashing, -1)


def init_squashed(
    key: PRNGKeyArray, observation_dim: int, action_dim: int, hidden: Sequence[int]
) -> SquashedPolicy:
    """Orthogonal SiLU layers with a tiny output layer: first actions are about 0."""
    sizes = (observation_dim, *hidden, 2 * action_dim)
    net = init_mlp(key, sizes, orthogonal, math.sqrt(2.0), 0.01)
    return SquashedPolicy(MLP(net.weights, net.biases, "silu"))


class PlainPolicy(NamedTuple):
    """What a policy needs to act where JAX is not."""

    mean: MLP
    observation_mean: Any
    observation_std: Any
    """Units of what the network sees."""
    log_std: Any = None
    """Noise that is the same in every state, where it is."""
    squash: bool = False
    """Whether tanh comes after the mean."""


_RIDGE = 1e-5

_LARGEST = 10.0


def init_value(key: PRNGKeyArray, observation_dim: int, hidden: Sequence[int]) -> MLP:
    """A tanh network from a normalised observation to one number."""
    return init_mlp(key, (observation_dim, *hidden, 1), xavier)


class TimedValue(eqx.Module):
    """A network of a state and of the steps that its episode has left.

    With a finite horizon the value of a state falls with the steps that remain, and
    when none are left there is nothing to come.
    """

    network: MLP
    horizon: int = eqx.field(static=True)
    """Steps of a whole episode."""


Value = MLP | TimedValue
StepsLeft = Int[Array, "..."] | int
"""Steps that an episode has left, the one from this state included; broadcast."""


def init_timed_value(
    key: PRNGKeyArray, observation_dim: int, hidden: Sequence[int], horizon: int
) -> TimedValue:
    """An untrained network with one more input, the clock."""
    return TimedValue(init_value(key, observation_dim + 1, hidden), horizon)


def clock(left: StepsLeft, horizon: int) -> Float[Array, "..."]:
    """1..H steps that are left as a number of mean 0 and about unit size."""
    return (1.0 - 2.0 * jnp.asarray(left) / horizon) * 3**0.5


def _output(
    network: Value, observation: Float[Array, "*b o"], left: StepsLeft | None
) -> Float[Array, "*b"]:
    """What a network says, which sees the clock if it is one that does."""
    if isinstance(network, MLP):
        return network(observation)[..., 0]
    if left is None:
        raise UsageError(
            "This value function knows the step: say how many steps are left."
        )
    time = jnp.broadcast_to(clock(left, network.horizon), observation.shape[:-1])
    return network.network(jnp.concatenate([observation, time[..., None]], -1))[..., 0]


def _to_come(
    network: Value, expected: Float[Array, "*b"], left: StepsLeft | None
) -> Float[Array, "*b"]:
    """Nothing where no step is left, to a network that knows it."""
    if isinstance(network, MLP):
        return expected
    return jnp.where(jnp.asarray(left) > 0, expected, 0.0)


def predict_value(
    value: Value, observation: Float[Array, "*b o"], left: StepsLeft | None = None
) -> Float[Array, "*b"]:
    """V_phi(s), in units of scaled reward.

    Args:
        value: V_phi.
        observation: normalised states.
        left: steps left in each; only a V that knows the step reads it.
    """
    return _to_come(value, _output(value, observation, left), left)


class VarianceValue(eqx.Module):
    """U_psi(s): the variance of Q that is to be expected from a state on."""

    network: Value
    scale: Float[Array, ""]
    """The unit of the network's output: a running mean of the variances it learned."""


def init_variance(
    key: PRNGKeyArray,
    observation_dim: int,
    hidden: Sequence[int],
    horizon: int | None = None,
) -> VarianceValue:
    """An untrained U_psi, which is 0 everywhere because its unit is.

    Args:
        key: the first weights.
        observation_dim: entries of a state.
        hidden: layer sizes.
        horizon: steps of a whole episode, if it is to know the step.
    """
    network: Value = (
        init_value(key, observation_dim, hidden)
        if horizon is None
        else init_timed_value(key, observation_dim, hidden, horizon)
    )
    return VarianceValue(network, jnp.zeros(()))


def unscaled_variance(
    network: Value, observation: Float[Array, "*b o"], left: StepsLeft | None = None
) -> Float[Array, "*b"]:
    """U_psi in its own unit; the arguments are those of `predict_value`."""
    expected = jax.nn.softplus(_output(network, observation, left))
    return _to_come(network, expected, left)


def predict_variance(
    value: VarianceValue,
    observation: Float[Array, "*b o"],
    left: StepsLeft | None = None,
) -> Float[Array, "*b"]:
    """U_psi(s), never negative, in squared units of scaled reward."""
    return value.scale * unscaled_variance(value.network, observation, left)


def episode_horizon(*values: Value | VarianceValue | None) -> int | None:
    """Steps of a whole episode, to those that know the step; None if none does."""
    for value in values:
        network = value.network if isinstance(value, VarianceValue) else value
        if isinstance(network, TimedValue):
            return network.horizon
    return None


class LinearValue(eqx.Module):
    """V as a linear function of the state, its squares and powers of time."""

    weights: Float[Array, " f"]


def init_linear(observation_dim: int) -> LinearValue:
    """V = 0."""
    return LinearValue(jnp.zeros(2 * observation_dim + 4))


def _linear_features(
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
    return _linear_features(observations) @ value.weights


def fit_linear(
    observations: Float[Array, "H N o"],
    returns: Float[Array, "H N"],
    weight: Float[Array, "H N"],
) -> LinearValue:
    """Ridge regression of the returns on the features, over the steps that count."""
    features = _linear_features(observations)
    weighted = features * weight[..., None]
    count = jnp.maximum(jnp.sum(weight), 1.0)
    squares = jnp.einsum("hnf,hng->fg", weighted, features) / count
    products = jnp.einsum("hnf,hn->f", weighted, returns) / count
    ridge = _RIDGE * jnp.eye(len(products))
    return LinearValue(jnp.linalg.solve(squares + ridge, products))


def adam(
    gradient_clip: float | None = None, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam's direction, perhaps of clipped gradients; `gradient_step` gives its length.

    Args:
        gradient_clip: largest global norm of a gradient; None does not clip.
        eps: added to the root of the second moment.
    """
    direction = optax.scale_by_adam(eps=eps)
    if gradient_clip is None:
        return direction
    return optax.chain(optax.clip_by_global_norm(gradient_clip), direction)


class Descent(NamedTuple):
    """How far a gradient descent has come."""

    parameters: Any
    optimiser: Any
    """Adam's memory."""


Loss = Callable[..., tuple[Float[Array, ""], Any]]
"""From parameters and samples to what is minimised, and what is reported of it."""


def gradient_step(
    loss: Loss,
    transform: optax.GradientTransformation,
    descent: Descent,
    rate: float | Float[Array, ""],
    *samples: Any,
) -> tuple[Descent, Any, Float[Array, ""]]:
    """One step down the loss; what it reports, and the gradient's norm.

    Args:
        loss: what to minimise.
        transform: from gradients to a direction.
        descent: where it starts.
        rate: length of the step, in units of the direction.
        samples: what the loss is taken of.
    """
    gradient, reported = jax.grad(loss, has_aux=True)(descent.parameters, *samples)
    direction, optimiser = transform.update(gradient, descent.optimiser)
    parameters = jax.tree.map(lambda w, d: w - rate * d, descent.parameters, direction)
    return Descent(parameters, optimiser), reported, optax.tree.norm(gradient)


def gradient_steps(
    loss: Loss,
    transform: optax.GradientTransformation,
    descent: Descent,
    rate: float | Float[Array, ""],
    batches: Any,
) -> tuple[Descent, tuple[Any, Float[Array, " s"]]]:
    """A step on each of the batches, which are stacked on the first axis.

    Reports and norms of the gradients are stacked as well.
    """

    def step(now: Descent, batch: Any) -> tuple[Descent, tuple[Any, Array]]:
        later, reported, norm = gradient_step(loss, transform, now, rate, batch)
        return later, (reported, norm)

    return jax.lax.scan(step, descent, batches)
