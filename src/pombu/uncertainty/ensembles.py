"""Algorithm 1 on anybody's ensemble: plain callables of NumPy, JAX or PyTorch arrays.

A *member* is a function ``member(states, actions)``. It gives

- ``next_states``, when the reward is a known function of state, action, next state, or
- ``(next_states, rewards)``.

A stochastic member gives next states with one more leading axis, a sample per entry;
`gaussian_member` makes one from a network that predicts mean and standard deviation.

A single network gives members as well, by Laplace's approximation of its last layer.
Trained by squared error, that layer is a linear regression on the features below it.
Given those features its posterior is Gaussian in closed form, and K samples of its
weights are K members. They are samples of the posterior, so pass ``ddof=1``.

`diagnose` asks whether independence across steps holds for an ensemble. Algorithm 1
treats the errors of different steps as independent. A learned model repeats its error
from step to step, and then the truth can be more uncertain than U says. The check is to
roll every member alone: the variance of the members' own returns makes no assumption
about steps, only that the members represent the posterior.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.algorithm1 import Correlation, like, q_uncertainty, to_numpy

Member = Callable[[Any, Any], Any]
"""(states, actions) -> next_states, or (next_states, rewards)."""
Value = Callable[[Any], Any]
"""states -> values."""
Reward = Callable[[Any, Any, Any], Any]
"""(states, actions, next_states) -> rewards."""


def estimate(
    members: Sequence[Member],
    value: Value,
    states: Any,
    actions: Any,
    gamma: float | int = 1.0,
    ddof: int = 0,
    reward: Reward | None = None,
    correlation: Correlation = 0,
) -> Any:
    """Uncertainty in Q at every step of trajectories, from an ensemble and a value.

    Args:
        members: the ensemble, K functions as described above.
        value: the value function of the policy that made the trajectory; it is called
            on predicted next states, ``[H, ..., state]``.
        states: the trajectory's states, ``[H, ..., state]``, time first.
        actions: the trajectory's actions, ``[H, ..., action]``.
        gamma: discount factor in (0, 1].
        ddof: 0 if the members are the posterior, 1 if they are samples of it.
        reward: the known reward function; leave it out if members predict rewards.
        correlation: how errors of different steps depend, as in `q_uncertainty`: 0 is
            Algorithm 1, ``"full"`` follows every member along the trajectory.

    Returns:
        Standard deviations of Q, ``[H, ...]``, in the kind of array that the states
        are; ``sqrt(D^h)`` for correlation 0.
    """
    if not members:
        raise UsageError("members is empty; give at least one function.")
    predictions = [
        _predict(member, value, reward, states, actions, f"members[{k}]")
        for k, member in enumerate(members)
    ]
    rewards, next_values = zip(*predictions, strict=True)
    sigma: ndarray = q_uncertainty(
        np.stack(rewards), np.stack(next_values), gamma, ddof, correlation
    )
    return _as_given(sigma, states)


def gaussian_member(
    model: Callable[[Any, Any], tuple[Any, Any]], samples: int = 16, seed: int = 0
) -> Member:
    """A member from a network that predicts a Gaussian over next states.

    ``model(states, actions)`` gives the mean and the standard deviation of the next
    state. The uncertainty is about the mean of ``r + gamma V(s')`` under each member,
    not about the noise itself, so that mean is taken over ``samples`` draws. Members
    made with the same seed share their noise: where they agree, their uncertainty is 0,
    and the noise left in it falls with the number of samples.
    """
    if samples < 1:
        raise UsageError(f"samples is {samples}; it must be 1 or more.")

    def member(states: Any, actions: Any) -> Any:
        mean, std = model(states, actions)
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(samples, *to_numpy(mean).shape))
        return mean + std * like(noise, mean)

    return member


def _one_step(
    member: Member, reward: Reward | None, states: Any, actions: Any, name: str
) -> tuple[Any, Float[ndarray, "*batch"]]:
    """A member's next states, as it gave them, and rewards (means over its samples)."""
    next_states, given = _outputs(member(states, actions), reward, name)
    sampled = next_states.ndim == states.ndim + 1
    if not sampled and tuple(next_states.shape) != tuple(states.shape):
        raise UsageError(
            f"{name} gave next states of shape {tuple(next_states.shape)} for states "
            f"of shape {tuple(states.shape)}; they must be equal, or have one leading "
            "axis more for samples."
        )
    batch = tuple(states.shape[:-1])
    if reward is None:
        return next_states, _scalars(given, batch, f"the reward of {name}")
    draws = next_states if sampled else [next_states]
    rewards = [_scalars(reward(states, actions, s), batch, "reward") for s in draws]
    return next_states, np.mean(rewards, axis=0)


def _predict(
    member: Member,
    value: Value,
    reward: Reward | None,
    states: Any,
    actions: Any,
    name: str,
) -> tuple[Float[ndarray, "*batch"], Float[ndarray, "*batch"]]:
    """A member's rewards and the values of its next states, means over its samples."""
    next_states, rewards = _one_step(member, reward, states, actions, name)
    values = _scalars(value(next_states), next_states.shape[:-1], f"value({name})")
    sampled = values.ndim > rewards.ndim
    return rewards, values.mean(axis=0) if sampled else values


def _as_given(sigma: ndarray, given: Any) -> Any:
    """Standard deviations as the kind of array that the states are."""
    if isinstance(given, ndarray):
        return sigma
    if hasattr(given, "new_tensor"):
        return (given if given.is_floating_point() else given.float()).new_tensor(sigma)
    import jax.numpy as jnp

    return jnp.asarray(sigma)


def _outputs(output: Any, reward: Reward | None, name: str) -> tuple[Any, Any]:
    pair = isinstance(output, tuple | list)
    if reward is None and not pair:
        raise UsageError(
            f"{name} predicts no reward; return (next_states, rewards), or pass the "
            "known reward function as reward=."
        )
    return (output[0], output[1]) if pair else (output, None)


def _scalars(x: Any, shape: Sequence[int], name: str) -> Float[ndarray, "..."]:
    """One number per entry; a trailing axis of size 1, as networks leave it, is cut."""
    array = to_numpy(x)
    if array.shape == (*shape, 1):
        array = array[..., 0]
    if array.shape != tuple(shape):
        raise UsageError(
            f"{name} has shape {array.shape}; it must be one number per state, "
            f"{tuple(shape)}."
        )
    return array


@dataclass(frozen=True, eq=False)
class LastLayerLaplace:
    """Gaussian posterior of the last layer's weights, independent per output.

    The weights of output i have mean ``mean[:, i]`` and covariance
    ``noise_std[i]**2 * factor @ factor.T``.
    """

    mean: Float64[ndarray, "F O"]
    factor: Float64[ndarray, "F F"]
    noise_std: Float64[ndarray, " O"]

    def sample(self, count: int, seed: int = 0) -> Float64[ndarray, "count F O"]:
        """Draw weights of the last layer."""
        if count < 1:
            raise UsageError(f"count is {count}; it must be 1 or more.")
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(count, *self.mean.shape))
        return np.asarray(self.mean + (self.factor @ noise) * self.noise_std)

    def members(
        self, features: Callable[[Any, Any], Any], count: int, seed: int = 0
    ) -> list[Member]:
        """Members that predict ``state + features(state, action) @ weights``."""
        return [_member(features, weights) for weights in self.sample(count, seed)]


def last_layer_laplace(
    features: Any,
    targets: Any,
    prior_precision: float | int = 1.0,
    noise_std: Any = None,
) -> LastLayerLaplace:
    """The last layer's posterior from its inputs and the state changes to predict.

    Args:
        features: outputs of the layer below on the training data, ``[n, F]``; append a
            column of ones for a bias.
        targets: state changes, ``[n, O]``.
        prior_precision: precision of the zero-mean prior on the weights, in units of
            the noise's precision.
        noise_std: standard deviation of the noise per output; by default that of the
            residuals at the posterior mean.
    """
    X, Y = to_numpy(features).astype(np.float64), to_numpy(targets).astype(np.float64)
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or len(X) == 0:
        raise UsageError(
            f"features has shape {X.shape} and targets {Y.shape}; they must be [n,F] "
            "and [n,O] with the same n."
        )
    for name, array in (("features", X), ("targets", Y)):
        if not np.isfinite(array).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise UsageError(f"{name}{list(index)} is not finite.")
    if not prior_precision > 0:
        raise UsageError(f"prior_precision is {prior_precision}; it must be positive.")
    precision = X.T @ X + prior_precision * np.eye(X.shape[1])
    mean = np.linalg.solve(precision, X.T @ Y)
    if noise_std is None:
        noise_std = np.sqrt(np.mean((Y - X @ mean) ** 2, axis=0))
    noise = np.broadcast_to(np.asarray(noise_std, np.float64), Y.shape[1:]).copy()
    # precision = L L^T, so L^-T L^-1 is its inverse.
    factor = np.linalg.inv(np.linalg.cholesky(precision)).T
    return LastLayerLaplace(mean, factor, noise)


def _member(features: Callable[[Any, Any], Any], weights: ndarray) -> Member:
    def member(states: Any, actions: Any) -> Any:
        changes = to_numpy(features(states, actions)) @ weights
        return states + like(changes, states)

    return member


@dataclass(frozen=True)
class Diagnosis:
    """Two variances of Q at the start states, under different assumptions.

    Attributes:
        u: Algorithm 1, the mean of D^1 over imagined trajectories.
        member_variance: variance over members of the return of each rolled alone.
    """

    u: Float[ndarray, " N"]
    member_variance: Float[ndarray, " N"]

    @property
    def ratio(self) -> float:
        """Mean member variance over mean U.

        About 1 or below: independence across steps is harmless. Far above 1: errors
        persist along a trajectory and U is too small by that factor.
        """
        total = float(self.u.mean())
        return float(self.member_variance.mean()) / total if total > 0 else np.nan


def diagnose(
    members: Sequence[Member],
    value: Value,
    policy: Callable[[Any], Any],
    starts: Any,
    horizon: int,
    gamma: float | int = 1.0,
    ddof: int = 0,
    reward: Reward | None = None,
    trajectories: int = 20,
    seed: int = 0,
) -> Diagnosis:
    """Compare U with the member-consistent variance at start states.

    Args:
        members: deterministic members, as in `estimate`.
        value: value function of the policy.
        policy: states -> actions. A random policy adds its own noise to the members'
            returns; use its mean.
        starts: start states, ``[N, state]``.
        horizon: steps to roll.
        gamma: discount factor in (0, 1].
        ddof: as in `estimate`, for both variances.
        reward: the known reward function, if members do not predict rewards.
        trajectories: imagined trajectories per start state, each step by a member drawn
            anew; their D is averaged before it is compared.
        seed: what the members are drawn from.
    """
    if not members:
        raise UsageError("members is empty; give at least one function.")
    if horizon < 1 or trajectories < 1:
        raise UsageError(
            f"horizon is {horizon} and trajectories {trajectories}; both must be 1 or "
            "more."
        )
    count = len(starts)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(members), size=(horizon, trajectories * count))
    mixed = _roll(members, policy, reward, _repeat(starts, trajectories), drawn)
    sigma = estimate(members, value, mixed.states, mixed.actions, gamma, ddof, reward)
    u = (to_numpy(sigma)[0] ** 2).reshape(trajectories, count).mean(axis=0)

    one_each = np.repeat(np.arange(len(members)), count)
    alone = _roll(
        members,
        policy,
        reward,
        _repeat(starts, len(members)),
        np.broadcast_to(one_each, (horizon, len(one_each))),
    )
    discounts = float(gamma) ** np.arange(horizon)
    returns = (discounts @ alone.rewards).reshape(len(members), count)
    freedom = max(len(members) - ddof, 1)
    spread = ((returns - returns.mean(axis=0)) ** 2).sum(axis=0) / freedom
    return Diagnosis(u, spread)


class _Rolled(NamedTuple):
    states: Any
    actions: Any
    rewards: Float[ndarray, "H M"]


def _roll(
    members: Sequence[Member],
    policy: Callable[[Any], Any],
    reward: Reward | None,
    states: Any,
    choice: Int[ndarray, "H M"],
) -> _Rolled:
    """Trajectories whose step h is made by member ``choice[h, m]``."""
    rows = np.arange(choice.shape[1])
    visited, taken, earned = [], [], []
    for chosen in choice:
        actions = policy(states)
        steps = [
            _one_step(member, reward, states, actions, f"members[{k}]")
            for k, member in enumerate(members)
        ]
        visited.append(to_numpy(states))
        taken.append(to_numpy(actions))
        earned.append(np.stack([rewards for _, rewards in steps])[chosen, rows])
        following = np.stack([to_numpy(next_states) for next_states, _ in steps])
        if following.ndim != states.ndim + 1:
            raise UsageError(
                "diagnose needs members that predict one next state, but one gave "
                f"samples of shape {following.shape[1:]}; use the members' means."
            )
        states = like(following[chosen, rows], states)
    return _Rolled(
        like(np.stack(visited), states),
        like(np.stack(taken), actions),
        np.stack(earned),
    )


def _repeat(starts: Any, times: int) -> Any:
    array = to_numpy(starts)
    return like(np.tile(array, (times,) + (1,) * (array.ndim - 1)), starts)
