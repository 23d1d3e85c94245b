"""Every MDP of a small finite posterior, in batches."""

from collections.abc import Iterator
from math import prod

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from pombu.uncertainty.tabular.posteriors import Posterior

MDPS_AT_MOST = 2**18
# Entries of P per batch: 2**21 float64 are 16 MiB.
BATCH_ENTRIES = 2**21


def mdp_count(posterior: Posterior) -> int:
    """How many different MDPs the posterior can draw."""
    return prod(len(member) for member, _ in _choices(posterior))


def every_mdp(
    posterior: Posterior,
) -> Iterator[
    tuple[
        Float64[ndarray, "M S A S"], Float64[ndarray, "M S A"], Float64[ndarray, " M"]
    ]
]:
    """Batches of transitions, rewards and probabilities that cover every MDP once."""
    choices = _choices(posterior)
    counts = tuple(len(member) for member, _ in choices)
    states = range(len(choices))
    total = prod(counts)
    batch = max(1, BATCH_ENTRIES // posterior.P[0].size)
    for start in range(0, total, batch):
        picks = np.unravel_index(np.arange(start, min(start + batch, total)), counts)
        members = [choices[s][0][picks[s]] for s in states]
        yield (
            np.stack([posterior.P[members[s], s] for s in states], axis=1),
            np.stack([posterior.R[members[s], s] for s in states], axis=1),
            np.prod([choices[s][1][picks[s]] for s in states], axis=0),
        )


def _choices(posterior: Posterior) -> list[tuple[ndarray, Float64[ndarray, " N"]]]:
    """Per state: one member for each distinct row block, and its probability."""
    drawn = np.flatnonzero(posterior.weights > 0)
    choices = []
    for state in range(posterior.P.shape[1]):
        blocks = np.column_stack(
            [
                posterior.P[drawn, state].reshape(len(drawn), -1),
                posterior.R[drawn, state],
            ]
        )
        _, first, kind = np.unique(
            blocks, axis=0, return_index=True, return_inverse=True
        )
        probability = np.bincount(kind.reshape(-1), weights=posterior.weights[drawn])
        choices.append((drawn[first], probability))
    return choices
