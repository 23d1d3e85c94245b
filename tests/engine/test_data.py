"""Running moments, per-member splits and returns of real data."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pombu.data import (
    Normaliser,
    build_dataset,
    discounted_returns,
    empty_moments,
    learn_from,
    merge,
    no_experience,
    regression,
    split_rows,
)
from pombu.envs import Episode
from pombu.errors import UsageError

numbers = st.floats(-1e3, 1e3, width=32)
batches = st.lists(
    hnp.arrays(np.float32, st.tuples(st.integers(0, 6), st.just(2)), elements=numbers),
    min_size=1,
    max_size=5,
)


def make_episode(length: int, seed: int = 0) -> Episode:
    draw = np.random.default_rng([seed, length])
    return Episode(
        draw.normal(size=(length + 1, 3)).astype(np.float32),
        draw.normal(size=(length, 2)).astype(np.float32),
        draw.normal(size=length).astype(np.float32) * 4,
        False,
    )


@settings(deadline=None)
@given(batches)
def test_merged_moments_are_those_of_all_rows(parts: list[Any]) -> None:
    moments = empty_moments(2)
    for part in parts:
        moments = merge(moments, part)
    rows = np.concatenate(parts).astype(np.float64)
    assert moments.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(moments.mean, rows.mean(0), atol=1e-9)
        variance = moments.squares / len(rows)
        np.testing.assert_allclose(variance, rows.var(0), atol=1e-6)


def test_large_offsets_do_not_hurt_the_variance() -> None:
    rows = 1e6 + np.random.default_rng(0).normal(size=(1000, 1))
    moments = empty_moments(1)
    for part in np.split(rows, 10):
        moments = merge(moments, part)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-9)


def test_what_does_not_vary_is_not_scaled() -> None:
    moments = merge(empty_moments(2), np.array([[3.0, 1.0], [3.0, 2.0]]))
    assert moments.std.tolist() == [1.0, 0.5]
    assert empty_moments(2).std.tolist() == [1.0, 1.0]


def test_normaliser_maps_and_restores() -> None:
    rows = jax.random.normal(jax.random.key(0), (50, 3)) * 5.0 + 2.0
    normaliser = Normaliser.of(merge(empty_moments(3), np.asarray(rows)))
    normal = normaliser.normalise(rows)
    np.testing.assert_allclose(normal.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(normal.std(0), 1.0, rtol=1e-5)
    np.testing.assert_allclose(normaliser.restore(normal), rows, rtol=1e-5, atol=1e-5)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 2**31),
    st.integers(0, 5),
)
def test_each_member_holds_a_fifth_of_each_trajectory_out(
    lengths: list[int], members: int, seed: int, generation: int
) -> None:
    split = split_rows(lengths, members, 0.2, seed, generation)
    assert split.shape == (members, sum(lengths))
    ends = np.cumsum(lengths)[:-1]
    for length, part in zip(lengths, np.split(split, ends, axis=1), strict=True):
        assert part.sum(1).tolist() == [round(0.2 * length)] * members


def test_split_is_kept_as_data_grows_and_dealt_anew_by_generation() -> None:
    lengths = [50, 30, 50, 20]
    split = split_rows(lengths, 5, 0.2, seed=7, generation=0)
    earlier = split_rows(lengths[:2], 5, 0.2, seed=7, generation=0)
    assert np.array_equal(split[:, :80], earlier)
    for other in (
        split_rows(lengths, 5, 0.2, seed=7, generation=1),
        split_rows(lengths, 5, 0.2, seed=8, generation=0),
    ):
        assert not np.array_equal(split, other)
    assert len({tuple(member) for member in split.tolist()}) == 5
    assert not np.array_equal(split[:, :50], split[:, 80:130])


def test_dataset_lists_every_transition_in_order() -> None:
    episodes = [make_episode(3), make_episode(5, 1)]
    dataset = build_dataset(episodes, 4, 0.2, 0, 0)
    assert len(dataset) == 8
    row = 0
    for episode in episodes:
        for h in range(len(episode)):
            before, after = episode.observations[h], episode.observations[h + 1]
            assert np.array_equal(dataset.observations[row], before)
            assert np.array_equal(dataset.deltas[row], after - before)
            assert np.array_equal(dataset.actions[row], episode.actions[h])
            assert dataset.rewards[row] == episode.rewards[h]
            row += 1


def test_no_data_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one episode"):
        build_dataset([], 5, 0.2, 0, 0)


@given(hnp.arrays(np.float32, st.integers(0, 12), elements=numbers), st.floats(0.1, 1))
def test_discounted_returns_are_sums_over_what_follows(
    rewards: Any, gamma: float
) -> None:
    expected = [
        sum(gamma ** (t - h) * float(rewards[t]) for t in range(h, len(rewards)))
        for h in range(len(rewards))
    ]
    np.testing.assert_allclose(
        discounted_returns(rewards, gamma), expected, rtol=1e-6, atol=1e-3
    )


def test_experience_is_the_moments_of_all_episodes() -> None:
    episodes = [make_episode(n, n) for n in (4, 9, 6)]
    experience = no_experience(3, 2)
    for episode in episodes:
        experience = learn_from(experience, [episode], 0.9, reward_clip=2.0)
    before = np.concatenate([e.observations[:-1] for e in episodes])
    after = np.concatenate([e.observations[1:] for e in episodes])
    returns = [discounted_returns(np.clip(e.rewards, -2, 2), 0.9) for e in episodes]
    for moments, rows in (
        (experience.observation, before),
        (experience.action, np.concatenate([e.actions for e in episodes])),
        (experience.delta, after - before),
        (experience.reward, np.concatenate([e.rewards for e in episodes])[:, None]),
        (experience.returns, np.concatenate(returns)[:, None]),
    ):
        np.testing.assert_allclose(moments.mean, rows.mean(0), atol=1e-6)
        np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-5)


def test_regression_is_in_normal_units() -> None:
    episodes = [make_episode(40)]
    experience = learn_from(no_experience(3, 2), episodes, 0.99)
    dataset = build_dataset(episodes, 2, 0.2, 0, 0)
    inputs, targets = regression(dataset, experience, learned_reward=True)
    assert inputs.shape == (40, 5)
    assert targets.shape == (40, 4)
    for rows in (inputs, targets):
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows.mean(0), 0.0, atol=1e-5)
        np.testing.assert_allclose(rows.std(0), 1.0, rtol=1e-4)
    assert regression(dataset, experience, learned_reward=False)[1].shape == (40, 3)
