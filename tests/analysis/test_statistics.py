"""Statistics by closed forms, by enumeration, and by rliable's own answers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pombu.analysis.statistics import (
    align,
    interval,
    iqm,
    mean_std,
    performance_profile,
    probability_of_improvement,
    resample,
)

# Two methods, five and four runs, three tasks; and what rliable 1.2.0 (with arch 7.2.0,
# NumPy 2.4.6, pandas 2.3.3) says about them.
A = np.array(
    [
        [1.001, 1.149, 0.863],
        [0.555, 0.773, 0.504],
        [1.03, 1.67, 0.754],
        [0.69, 1.245, 1.178],
        [1.053, 0.535, 0.985],
    ]
)
B = np.array(
    [
        [1.048, 0.028, 0.471],
        [-0.251, 0.055, -0.221],
        [0.582, 0.066, 0.836],
        [0.778, 0.607, -0.558],
    ]
)


def test_mean_and_std_are_the_paper_s():
    assert mean_std([1.0, 2.0, 3.0, 6.0]) == (3.0, np.sqrt(14 / 4))


@pytest.mark.parametrize(
    ("values", "middle"),
    [([7.0], 7.0), ([1, 2, 3], 2.0), ([0, 1, 3, 100], 2.0), (range(8), 3.5)],
)
def test_iqm_by_hand(values, middle):
    assert iqm(np.array(values, float)) == middle


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_iqm_ignores_order_and_outer_quarters(values):
    scores = np.array(values)
    assert iqm(scores) == pytest.approx(iqm(scores[::-1]))
    assert scores.min() - 1e-9 <= iqm(scores) <= scores.max() + 1e-9
    if len(values) >= 4:
        wild = scores.copy()
        wild[np.argmax(wild)] = 1e9
        assert iqm(wild) == pytest.approx(iqm(scores))


def test_probability_of_improvement_by_enumeration():
    first, second = np.array([[1.0], [2.0], [3.0]]), np.array([[2.0], [0.0]])
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, b in itertools.product((1, 2, 3), (2, 0))
    ]
    assert probability_of_improvement(first, second) == np.mean(wins)
    assert probability_of_improvement(first, first) == 0.5


def test_a_profile_counts_runs():
    scores = np.array([[0.0, 1.0], [2.0, 3.0]])
    found = performance_profile(scores, np.array([-1.0, 0.0, 1.5, 3.0]))
    np.testing.assert_array_equal(found, [1.0, 0.75, 0.5, 0.0])


def test_resampling_stays_within_a_task():
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = resample(scores, rng)
        assert set(drawn[:, 0]) <= {1.0, 2.0, 3.0}
        assert set(drawn[:, 1]) <= {10.0, 20.0, 30.0}


def test_the_bootstrap_is_the_distribution_over_all_samples():
    """Three runs of one task: all 27 samples can be listed."""
    scores = np.array([[0.0], [1.0], [5.0]])
    every = [np.mean(s) for s in itertools.product([0.0, 1.0, 5.0], repeat=3)]
    rng = np.random.default_rng(1)
    drawn = [float(np.mean(resample(scores, rng))) for _ in range(20_000)]
    for value in set(every):
        share = np.mean(np.isclose(every, value))
        assert np.mean(np.isclose(drawn, value)) == pytest.approx(share, abs=0.012)
    found = interval(lambda x: float(np.mean(x)), scores)
    assert found.value == 2.0
    assert (found.low, found.high) == (0.0, 5.0)


def test_one_run_has_no_interval():
    found = interval(iqm, np.array([[3.0, 5.0]]))
    assert (found.value, found.low, found.high) == (4.0, None, None)
    for scores in ((A[:1], B), (A, B[:1])):
        better = interval(probability_of_improvement, *scores)
        assert better.value == probability_of_improvement(*scores)
        assert (better.low, better.high) == (None, None)


def test_rliable_says_the_same():
    assert iqm(A) == pytest.approx(0.922)
    assert iqm(B) == pytest.approx(0.3015)
    assert probability_of_improvement(A, B) == pytest.approx(0.8333333333)
    found = performance_profile(A, np.linspace(0, 2, 5))
    np.testing.assert_allclose(found, [1, 1, 7 / 15, 1 / 15, 0])


def test_rliable_s_intervals():
    """Its 50,000 (IQM) and 20,000 draws; ours differ by their own randomness."""
    middle = interval(iqm, A, draws=5000)
    assert middle.low == pytest.approx(0.74355556, abs=0.012)
    assert middle.high == pytest.approx(1.06633333, abs=0.012)
    better = interval(probability_of_improvement, A, B, draws=5000)
    assert better.low == pytest.approx(0.66666667, abs=0.018)
    assert better.high == pytest.approx(0.96666667, abs=0.018)


def test_curves_meet_on_real_steps():
    one = (np.array([10.0, 20.0, 40.0]), np.array([0.0, 10.0, 30.0]))
    other = (np.array([15.0, 30.0, 60.0]), np.array([1.0, np.nan, 7.0]))
    both = align([one, other])
    assert both is not None
    np.testing.assert_array_equal(both.steps, [15, 20, 40])
    np.testing.assert_allclose(both.values[0], [5, 10, 30])
    np.testing.assert_allclose(both.values[1], [1, 1 + 6 * 5 / 45, 1 + 6 * 25 / 45])
    np.testing.assert_allclose(both.mean, both.values.mean(0))
    np.testing.assert_allclose(both.std, both.values.std(0))


def test_curves_with_nothing_in_common():
    one = (np.array([1.0, 2.0]), np.array([0.0, 0.0]))
    assert align([one, (np.array([3.0]), np.array([1.0]))]) is None
    assert align([one, (np.array([1.0]), np.array([np.nan]))]) is None
    assert align([]) is None
