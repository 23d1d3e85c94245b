"""All real transitions as arrays, and the units in which they are learned.

`Dataset` has training and validation rows per member; `Transitions` has a fixed size. A
dataset is a view of the episodes: it is rebuilt from them, never stored. A split is
drawn per member within each trajectory from the run's seed, the split's generation and
the episode's number alone; an episode therefore keeps its split for as long as the
generation lasts, also across a restart.

`Experience` holds running means and standard deviations of every quantity that a
learned model needs in fixed units. Moments are kept in float64 on the host and merged
batch by batch (Chan's formula), so the order of magnitude of the data never hurts the
variance. What jitted code sees is the float32 `Normaliser` made from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pombu.envs import Episode
from pombu.errors import UsageError

_FLOOR = 1e-8


@dataclass(frozen=True)
class Dataset:
    """Transitions of `n` real steps in the order in which they were collected."""

    observations: np.ndarray
    """[n, o] states before the step."""
    actions: np.ndarray
    """[n, a] actions in the environment's own units."""
    deltas: np.ndarray
    """[n, o] state changes."""
    rewards: np.ndarray
    """[n] observed rewards."""
    validation: np.ndarray
    """[K, n] True where the member holds the row out."""

    def __len__(self) -> int:
        return len(self.rewards)


def split_rows(
    lengths: Sequence[int], members: int, fraction: float, seed: int, generation: int
) -> np.ndarray:
    """Mark `fraction` of each trajectory's rows for validation, per member.

    Returns:
        [K, n] booleans. A prefix of the episodes gives a prefix of the answer.
    """
    masks = []
    for episode, length in enumerate(lengths):
        rng = np.random.Generator(
            np.random.Philox(key=seed, counter=[0, generation, episode, 0])
        )
        order = rng.permuted(np.tile(np.arange(length), (members, 1)), axis=1)
        masks.append(order < round(fraction * length))
    return np.concatenate(masks, axis=1)


def build_dataset(
    episodes: Sequence[Episode],
    members: int,
    validation_fraction: float,
    seed: int,
    generation: int,
) -> Dataset:
    """Stack the episodes and split them."""
    if not episodes:
        raise UsageError(
            "The dataset is empty: collect at least one episode before fitting a model."
        )
    observations = np.concatenate([e.observations[:-1] for e in episodes])
    following = np.concatenate([e.observations[1:] for e in episodes])
    return Dataset(
        observations,
        np.concatenate([e.actions for e in episodes]),
        following - observations,
        np.concatenate([e.rewards for e in episodes]),
        split_rows(
            [len(e.rewards) for e in episodes],
            members,
            validation_fraction,
            seed,
            generation,
        ),
    )


def discounted_returns(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Sum of discounted rewards to go, G_h = r_h + gamma G_{h+1}, for one episode."""
    returns = np.zeros(len(rewards), np.float64)
    running = 0.0
    for h in range(len(rewards) - 1, -1, -1):
        running = float(rewards[h]) + gamma * running
        returns[h] = running
    return returns


def returns_within(horizon: int, rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Discounted sums of the next `horizon` rewards, or of as many as there are."""
    padded = np.concatenate([rewards, np.zeros(horizon - 1)])
    ahead = np.lib.stride_tricks.sliding_window_view(padded, horizon)
    sums: np.ndarray = ahead @ gamma ** np.arange(horizon)
    return sums


class Transitions(NamedTuple):
    """Real steps in the order in which they were taken, padded to a fixed size."""

    states: Float[Array, "*n o"]
    actions: Float[Array, "*n a"]
    following: Float[Array, "*n o"]
    rewards: Float[Array, "*n"]
    goes_on: Float[Array, "*n"]
    """0 where the next row belongs to another episode."""
    ended: Float[Array, "*n"]
    """1 where the episode was over for good; a time limit does not count."""


def transitions(episodes: Sequence[Episode], capacity: int) -> Transitions:
    """All real steps end to end, padded to `capacity` or its next fitting double."""
    steps = sum(map(len, episodes))
    while capacity < steps:
        capacity *= 2

    def stack(rows: Sequence[np.ndarray]) -> Array:
        joined = np.concatenate(rows)
        padding = [(0, capacity - steps), *((0, 0) for _ in joined.shape[1:])]
        return jnp.asarray(np.pad(joined, padding), jnp.float32)

    return Transitions(
        stack([e.observations[:-1] for e in episodes]),
        stack([e.actions for e in episodes]),
        stack([e.observations[1:] for e in episodes]),
        stack([e.rewards for e in episodes]),
        stack([np.arange(len(e)) < len(e) - 1 for e in episodes]),
        stack([np.arange(1, len(e) + 1) == len(e) * e.terminated for e in episodes]),
    )


def most_recent(episodes: Sequence[Episode], steps: int) -> list[Episode]:
    """The last episodes that have at most so many steps together; at least one."""
    lengths = np.cumsum([len(episode) for episode in reversed(episodes)])
    number = max(int(np.searchsorted(lengths, steps, side="right")), 1)
    return list(episodes[-number:])


class Moments(eqx.Module):
    """Count, mean and sum of squared deviations per dimension."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviation; 1 where nothing was seen or nothing varied."""
        std = np.sqrt(self.squares / np.maximum(self.count, 1.0))
        return np.where(std > _FLOOR, std, 1.0)


def empty_moments(dim: int) -> Moments:
    """Moments of no data: mean 0, std 1."""
    return Moments(np.zeros(()), np.zeros(dim), np.zeros(dim))


def merge(moments: Moments, rows: np.ndarray) -> Moments:
    """Add the rows of `rows [n, dim]`."""
    rows = np.asarray(rows, np.float64)
    count = float(len(rows))
    if count == 0:
        return moments
    total = moments.count + count
    mean = rows.mean(0)
    gap = mean - moments.mean
    return Moments(
        np.asarray(total),
        moments.mean + gap * (count / total),
        moments.squares
        + ((rows - mean) ** 2).sum(0)
        + gap**2 * (moments.count * count / total),
    )


class Normaliser(eqx.Module):
    """Affine map to zero mean and unit standard deviation."""

    mean: Float[Array, " d"]
    std: Float[Array, " d"]

    @staticmethod
    def of(moments: Moments) -> "Normaliser":
        """The float32 map that jitted code uses."""
        return Normaliser(
            jnp.asarray(moments.mean, jnp.float32),
            jnp.asarray(moments.std, jnp.float32),
        )

    def normalise(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """To zero mean and unit standard deviation."""
        return (x - self.mean) / self.std

    def restore(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """Back to the data's own units."""
        return x * self.std + self.mean


class Experience(eqx.Module):
    """Moments of states, actions, state changes, rewards and discounted returns.

    Where states are stacks of frames, only the change of the newest one is counted.
    """

    observation: Moments
    action: Moments
    delta: Moments
    reward: Moments
    returns: Moments


def no_experience(
    observation_dim: int, action_dim: int, frame_dim: int | None = None
) -> Experience:
    """Before the first episode: nothing is shifted or scaled.

    Args:
        observation_dim: entries of a state.
        action_dim: entries of an action.
        frame_dim: entries that change; None where all do, otherwise the newest frame
            of states that are stacks of frames.
    """
    return Experience(
        empty_moments(observation_dim),
        empty_moments(action_dim),
        empty_moments(observation_dim if frame_dim is None else frame_dim),
        empty_moments(1),
        empty_moments(1),
    )


def learn_from(
    experience: Experience,
    episodes: Sequence[Episode],
    gamma: float,
    reward_clip: float | None = None,
) -> Experience:
    """Merge new episodes; returns are of clipped rewards, as the policy sees them."""
    frame = len(experience.delta.mean)
    for episode in episodes:
        rewards = episode.rewards
        seen = rewards
        if reward_clip is not None:
            seen = np.clip(rewards, -reward_clip, reward_clip)
        before, after = episode.observations[:-1], episode.observations[1:]
        experience = Experience(
            merge(experience.observation, before),
            merge(experience.action, episode.actions),
            merge(experience.delta, (after - before)[:, :frame]),
            merge(experience.reward, rewards[:, None]),
            merge(experience.returns, discounted_returns(seen, gamma)[:, None]),
        )
    return experience


def regression(
    dataset: Dataset, experience: Experience, learned_reward: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Normalised inputs [n, o+a] and targets [n, f(+1)] of the ensemble.

    The first targets are changes of the newest frame, that is, of the f entries that
    `experience.delta` has.
    """
    frame = len(experience.delta.mean)
    inputs = [
        _normalise(experience.observation, dataset.observations),
        _normalise(experience.action, dataset.actions),
    ]
    targets = [_normalise(experience.delta, dataset.deltas[:, :frame])]
    if learned_reward:
        targets.append(_normalise(experience.reward, dataset.rewards[:, None]))
    return np.concatenate(inputs, 1), np.concatenate(targets, 1)


def _normalise(moments: Moments, rows: np.ndarray) -> np.ndarray:
    return np.asarray((rows - moments.mean) / moments.std, np.float32)


def moved(
    state: Float[Array, "*b o"], change: Float[Array, "*c f"]
) -> Float[Array, "*c o"]:
    """Next states: the newest frame changes, and the older ones shift by one.

    States are stacks of frames, newest first, as `EnvConfig.history` makes them. One
    that is a single frame just changes.
    """
    frame, dim = change.shape[-1], state.shape[-1]
    if frame == dim:
        return state + change
    newest = state[..., :frame] + change
    older = jnp.broadcast_to(state[..., :-frame], (*newest.shape[:-1], dim - frame))
    return jnp.concatenate([newest, older], -1)
