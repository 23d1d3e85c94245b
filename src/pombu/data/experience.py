"""Running moments of all real data, in the quantities that a learned world needs."""

from collections.abc import Sequence

import equinox as eqx
import numpy as np

from pombu.data.dataset import Dataset, discounted_returns
from pombu.data.normaliser import Moments, empty_moments, merge
from pombu.envs import Episode


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
