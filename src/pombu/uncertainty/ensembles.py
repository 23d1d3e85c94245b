"""Algorithm 1 on anybody's ensemble: plain callables of NumPy, JAX or PyTorch arrays.

A *member* is a function ``member(states, actions)``. It gives

- ``next_states``, when the reward is a known function of state, action, next state, or
- ``(next_states, rewards)``.

A stochastic member gives next states with one more leading axis, a sample per entry;
`gaussian_member` makes one from a network that predicts mean and standard deviation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.algorithm1 import Correlation, q_uncertainty
from pombu.uncertainty.arrays import like, to_numpy

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
) -> Float[Array, "H *batch"]:
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
        Standard deviations of Q, ``[H, ...]``; ``sqrt(D^h)`` for correlation 0.
    """
    if not members:
        raise UsageError("members is empty; give at least one function.")
    predictions = [
        _predict(member, value, reward, states, actions, f"members[{k}]")
        for k, member in enumerate(members)
    ]
    rewards, next_values = zip(*predictions, strict=True)
    sigma: Array = q_uncertainty(
        np.stack(rewards), np.stack(next_values), gamma, ddof, correlation
    )
    return sigma


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


def one_step(
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
    next_states, rewards = one_step(member, reward, states, actions, name)
    values = _scalars(value(next_states), next_states.shape[:-1], f"value({name})")
    sampled = values.ndim > rewards.ndim
    return rewards, values.mean(axis=0) if sampled else values


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
