"""Calibration scores against uncertainty-toolbox, scipy and known answers."""

import numpy as np
import pytest
from scipy import stats

from pombu.errors import UsageError
from pombu.uncertainty.calibration import (
    calibration,
    coverage_curve,
    over_datasets,
    summarise,
    z_scores,
)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    sigma = rng.gamma(2.0, size=3000)
    return 1.3 * sigma * rng.standard_t(5, size=3000), sigma


def test_agrees_with_uncertainty_toolbox(data):
    toolbox = pytest.importorskip("uncertainty_toolbox")
    error, sigma = data
    zeros = np.zeros_like(error)
    scores = calibration(error, sigma)
    np.testing.assert_allclose(
        scores.gaussian_nll, toolbox.nll_gaussian(zeros, sigma, error)
    )
    np.testing.assert_allclose(scores.crps, toolbox.crps_gaussian(zeros, sigma, error))
    np.testing.assert_allclose(
        scores.miscalibration_area, toolbox.miscalibration_area(zeros, sigma, error)
    )
    nominal, covered = coverage_curve(error, sigma)
    want = toolbox.get_proportion_lists(zeros, sigma, error)
    np.testing.assert_allclose(nominal, want[0])
    np.testing.assert_allclose(covered, want[1])


def test_agrees_with_scipy(data):
    error, sigma = data
    scores = calibration(error, sigma)
    z = error / sigma
    np.testing.assert_allclose(scores.ks, stats.kstest(z, "norm").statistic)
    tied = np.round(np.abs(error), 1)
    np.testing.assert_allclose(
        calibration(tied, sigma).spearman, stats.spearmanr(tied, sigma).statistic
    )
    np.testing.assert_allclose(scores.mean_z_squared, np.mean(z**2))
    np.testing.assert_allclose(z_scores(error, sigma), z)


def test_truth_drawn_from_the_stated_distribution_is_calibrated():
    rng = np.random.default_rng(1)
    sigma = rng.gamma(2.0, size=100_000)
    scores = calibration(sigma * rng.normal(size=sigma.shape), sigma)
    assert abs(scores.mean_z_squared - 1) < 0.02
    assert scores.miscalibration_area < 0.005
    assert scores.ks < 0.01
    assert scores.spearman > 0.4


def test_a_crossing_coverage_curve_has_the_area_of_its_triangles():
    """All |z| equal: coverage jumps from 0 to 1 where the level reaches them."""
    level = 0.5
    z = stats.norm.ppf(0.5 + level / 2)
    scores = calibration(np.full(10, z), np.ones(10))
    assert abs(scores.miscalibration_area - 0.25) < 0.01


def test_constant_sigma_has_no_rank_correlation():
    assert np.isnan(calibration([1.0, 2.0], [1.0, 1.0]).spearman)


def test_intervals_are_over_datasets():
    tight = over_datasets([1.0, 1.0, 1.0])
    assert (tight.mean, tight.low, tight.high) == (1.0, 1.0, 1.0)
    wide = over_datasets([0.0, 2.0])
    assert (wide.mean, wide.low, wide.high) == (1.0, 0.0, 2.0)
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=50) * s, np.ones(50)) for s in (1.0, 2.0, 3.0)]
    summary = summarise(pairs)
    per_dataset = [calibration(*pair).mean_z_squared for pair in pairs]
    assert summary["mean_z_squared"].mean == pytest.approx(np.mean(per_dataset))
    assert min(per_dataset) <= summary["mean_z_squared"].low
    assert summary["mean_z_squared"].high <= max(per_dataset)


@pytest.mark.parametrize(
    ("error", "sigma", "message"),
    [
        ([1.0], [0.0], r"sigma\[0\] is 0.0; it must be positive"),
        ([1.0, np.nan], [1.0, 1.0], r"error\[1\] is nan"),
        ([1.0], [1.0, 2.0], r"error has shape \(1,\)"),
        ([], [], "not empty"),
    ],
)
def test_bad_input_is_named(error, sigma, message):
    with pytest.raises(UsageError, match=message):
        calibration(error, sigma)


def test_bad_intervals_are_named():
    with pytest.raises(UsageError, match="at least two datasets"):
        over_datasets([1.0])
    with pytest.raises(UsageError, match=r"level is 1\.5"):
        over_datasets([1.0, 2.0], level=1.5)
