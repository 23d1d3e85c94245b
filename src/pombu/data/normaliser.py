"""Running means and standard deviations over all real data.

`Experience` holds them for every quantity that a learned model needs in fixed units.
Moments are kept in float64 on the host and merged batch by batch (Chan's formula), so
the order of magnitude of the data never hurts the variance. What jitted code sees is
the float32 `Normaliser` made from them.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pombu.data.dataset import Dataset, discounted_returns
from pombu.envs import Episode

_FLOOR = 1e-8


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
