"""Does independence across steps hold for this ensemble?

Algorithm 1 treats the errors of different steps as independent. A learned model repeats
its error from step to step, and then the truth can be more uncertain than U says. The
check is to roll every member alone: the variance of the members' own returns makes no
assumption about steps, only that the members represent the posterior.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from pombu.errors import UsageError
from pombu.uncertainty.arrays import like, to_numpy
from pombu.uncertainty.ensembles import (
    Member,
    Reward,
    Value,
    estimate,
    one_step,
)


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
            one_step(member, reward, states, actions, f"members[{k}]")
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
