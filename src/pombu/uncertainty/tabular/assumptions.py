"""Which of the paper's assumptions a posterior meets, and where it does not."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from pombu.uncertainty.tabular.posteriors import Posterior, TabularPosterior

WEIGHT_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Assumptions:
    """The three assumptions of the paper for one posterior.

    Attributes:
        acyclic: assumption 1, no MDP visits a state twice.
        cyclic_states: the states that some MDP can visit twice.
        independent_states: assumption 2; both posterior families are built that way.
        independent_rewards: assumption 3, ``R_s`` is independent of ``P_s``.
        reward_dependent_states: the states where it is not.
    """

    acyclic: bool
    cyclic_states: tuple[int, ...]
    independent_states: bool
    independent_rewards: bool
    reward_dependent_states: tuple[int, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                _line(1, "no state is visited twice", self.cyclic_states),
                _line(2, "states are independent of each other", ()),
                _line(
                    3,
                    "rewards are independent of transitions",
                    self.reward_dependent_states,
                ),
            ]
        )


def assumptions(posterior: TabularPosterior) -> Assumptions:
    """Check assumptions 1-3; a known absorbing state without reward is no cycle."""
    cyclic = states_where(np.diagonal(reachable(posterior)))
    dependent = _reward_dependent(posterior)
    return Assumptions(
        acyclic=not cyclic,
        cyclic_states=cyclic,
        independent_states=True,
        independent_rewards=not dependent,
        reward_dependent_states=dependent,
    )


def reachable(posterior: TabularPosterior) -> Bool[ndarray, "S S"]:
    """Whether state t can follow state s after one or more steps, ``[s, t]``.

    Because states are drawn independently, an edge of any member can follow an edge of
    any other: a cycle in the union of the members' graphs is a cycle in some MDP.
    """
    paths = np.asarray(posterior.possible.any(axis=1))
    paths[posterior.terminal, posterior.terminal] = False
    while True:
        counts = paths.astype(np.float32) @ paths.astype(np.float32)
        longer = paths | (counts > 0)
        if np.array_equal(longer, paths):
            return paths
        paths = longer


def _reward_dependent(posterior: TabularPosterior) -> tuple[int, ...]:
    if not isinstance(posterior, Posterior):
        return ()
    return tuple(
        state
        for state in range(posterior.P.shape[1])
        if not _factorises(
            posterior.P[:, state], posterior.R[:, state], posterior.weights
        )
    )


def _factorises(P: ndarray, R: ndarray, weights: ndarray) -> bool:
    """Whether the members' joint distribution of (P, R) is a product of marginals."""
    P_kind, R_kind = _kinds(P), _kinds(R)
    joint = np.zeros((P_kind.max() + 1, R_kind.max() + 1))
    np.add.at(joint, (P_kind, R_kind), weights)
    product = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    return bool(np.abs(joint - product).max() <= WEIGHT_TOLERANCE)


def _kinds(x: ndarray) -> ndarray:
    """For each member, which of the distinct values it has."""
    _, kind = np.unique(x.reshape(len(x), -1), axis=0, return_inverse=True)
    return kind.reshape(-1)


def states_where(mask: Bool[ndarray, " S"]) -> tuple[int, ...]:
    """The indices of the states marked in ``mask``."""
    return tuple(int(i) for i in np.flatnonzero(mask))


def _line(number: int, meaning: str, where: tuple[int, ...]) -> str:
    verdict = f"fails at states {', '.join(map(str, where))}" if where else "holds"
    return f"assumption {number} ({meaning}): {verdict}"
