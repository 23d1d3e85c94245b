"""Where episodes end for good, learned from real ones that did.

A small network looks at the state that a step leads to, in which the rules of nearly
all environments are written, and says whether the episode ends there. Applied to every
member's next state it takes part in the uncertainty: where the members do not agree
that a step is the last one, their Q-values differ by all that would have followed.
"""

from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from pombu.data import Experience, Normaliser
from pombu.envs import Episode, Task
from pombu.nn import MLP, Descent, adam, gradient_steps, init_mlp, xavier
from pombu.parallel import jit
from pombu.rng import Keys

_HIDDEN = (64, 64)
_LEARNING_RATE = 1e-3
_STEPS = 1000
_BATCH = 256
_ENDS_PER_BATCH = 64
"""Ends are rare, so that each batch has some, and more weight than their number: in
doubt an end is seen. An invented end costs the policy a little, a missed one lets it
earn where nothing is to be earned."""
_PIECE = 4096
"""States that are classified at once."""


class TerminationModel(eqx.Module):
    """The classifier, and how many ends it has learned from."""

    network: MLP
    terminations: np.ndarray


def init_termination(
    key: PRNGKeyArray, task: Task, termination: Literal["known", "learned"]
) -> TerminationModel | None:
    """An untrained classifier, where termination is to be learned."""
    if termination == "known":
        return None
    sizes = (task.observation_dim, *_HIDDEN, 1)
    return TerminationModel(init_mlp(key, sizes, xavier), np.asarray(0))


def network_of(termination: TerminationModel | None) -> MLP | None:
    """The classifier to imagine with; None until a real episode has terminated."""
    return (
        termination.network
        if termination is not None and termination.terminations
        else None
    )


def says_ended(
    network: MLP, observation: Normaliser, states: Float[Array, "*b o"]
) -> Bool[Array, "*b"]:
    """Whether an episode that has come to these states is over."""
    return network(observation.normalise(states))[..., 0] > 0


def fit_termination(
    termination: TerminationModel | None,
    episodes: Sequence[Episode],
    experience: Experience,
    keys: Keys,
) -> tuple[TerminationModel | None, dict[str, float]]:
    """Train the classifier on all real states, if any episode has terminated.

    Returns:
        The classifier, and the shares of real ends that it misses and of other real
        states that it takes for ends.
    """
    terminations = sum(episode.terminated for episode in episodes)
    if termination is None or not terminations:
        return termination, {}
    states = np.concatenate([episode.observations[1:] for episode in episodes])
    ended = np.zeros(len(states), bool)
    last = np.cumsum([len(episode) for episode in episodes]) - 1
    ended[last] = [episode.terminated for episode in episodes]
    moments = experience.observation
    # On the host, for arrays that grow would be compiled again in every iteration.
    normal = ((states - moments.mean) / moments.std).astype(np.float32)
    ends, others = normal[ended], normal[~ended]
    rng = np.random.default_rng(keys.numpy("ending"))
    batches = _batches(rng, ends, others)
    network = _train(termination.network, *batches)
    found = {
        "termination_missed": 1.0 - _share_of_ends(network, ends),
        "termination_invented": _share_of_ends(network, others),
    }
    return TerminationModel(network, np.asarray(terminations)), found


def _share_of_ends(network: MLP, normal: np.ndarray) -> float:
    """The share of states that the classifier takes for ends, in pieces of one size."""
    said = 0
    for begin in range(0, len(normal), _PIECE):
        piece = normal[begin : begin + _PIECE]
        padded = np.zeros((_PIECE, normal.shape[1]), np.float32)
        padded[: len(piece)] = piece
        logits = np.asarray(_logits(network, jnp.asarray(padded)))
        said += int((logits[: len(piece)] > 0).sum())
    return said / max(len(normal), 1)


@jit
def _logits(network: MLP, normal: Float[Array, "n o"]) -> Float[Array, " n"]:
    return network(normal)[:, 0]


def _batches(
    rng: np.random.Generator, ends: np.ndarray, others: np.ndarray
) -> tuple[Float[Array, "s b o"], Float[Array, "s b"]]:
    """Rows and labels of every gradient step; only ends where there is nothing else."""
    share = _ENDS_PER_BATCH if len(others) else _BATCH
    rows = ends[rng.integers(len(ends), size=(_STEPS, share))]
    if len(others):
        chosen = rng.integers(len(others), size=(_STEPS, _BATCH - share))
        rows = np.concatenate([rows, others[chosen]], 1)
    labels = np.broadcast_to(np.arange(_BATCH) < share, (_STEPS, _BATCH))
    return jnp.asarray(rows), jnp.asarray(labels, jnp.float32)


@jit
def _train(
    network: MLP, rows: Float[Array, "s b o"], labels: Float[Array, "s b"]
) -> MLP:
    def loss(network: MLP, batch: tuple[Array, Array]) -> tuple[Array, None]:
        states, ended = batch
        logits = network(states)[:, 0]
        errors = optax.sigmoid_binary_cross_entropy(logits, ended)
        return jnp.mean(errors), None

    begin = Descent(network, adam().init(network))
    trained, _ = gradient_steps(loss, adam(), begin, _LEARNING_RATE, (rows, labels))
    found: MLP = trained.parameters
    return found
