"""Recalibration against simulations whose right correction is known."""

import numpy as np
import pytest
from scipy import optimize

from pombu.errors import UsageError
from pombu.uncertainty import Recalibration
from pombu.uncertainty.recalibration import LEAST_GROUPS, pool_adjacent_violators

KINDS = ["scale", "isotonic", "conformal"]


def draw(rng, episodes, steps, factor=2.0):
    """Errors that are `factor` times as large as sigma says, sharing a part by episode.

    Every error is N(0, (factor sigma)^2); those of an episode have correlation 0.5.
    """
    sigma = rng.gamma(3.0, size=(episodes, steps))
    shared = rng.normal(size=(episodes, 1)) * np.sqrt(0.5)
    own = rng.normal(size=(episodes, steps)) * np.sqrt(0.5)
    groups = np.repeat(np.arange(episodes), steps)
    return (factor * sigma * (shared + own)).reshape(-1), sigma.reshape(-1), groups


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_the_scale_is_the_root_of_mean_z_squared(rng):
    error, sigma, groups = draw(rng, 40, 10)
    found = Recalibration.fit(error, sigma, groups)
    assert found.scale == pytest.approx(np.sqrt(np.mean((error / sigma) ** 2)))
    assert found.scale_low < found.scale < found.scale_high
    np.testing.assert_allclose(found.apply(sigma), found.scale * sigma)
    again = found.apply(sigma)
    assert np.mean((error / again) ** 2) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_new_episodes_lie_inside(rng, kind):
    """Held-out coverage is what was asked for, on episodes the fit has not seen."""
    found = Recalibration.fit(*draw(rng, 400, 10), kind=kind)
    error, sigma, _ = draw(rng, 2000, 10)
    for level in (0.5, 0.9):
        low, high = found.interval(np.zeros_like(sigma), sigma, level)
        assert np.mean((low < error) & (error < high)) == pytest.approx(level, abs=0.03)
    z = error / found.apply(sigma)
    assert np.mean(z**2) == pytest.approx(1.0, abs=0.15)


def test_the_bootstrap_resamples_whole_episodes(rng):
    """With all of an episode's errors alike, its many steps are one piece of evidence.

    The interval is that of as many errors as there are episodes, and holds the truth in
    about 90 % of repetitions.
    """
    inside = []
    groups = np.repeat(np.arange(50), 20)
    for i in range(60):
        z = np.repeat(np.random.default_rng(i).normal(size=50), 20)
        found = Recalibration.fit(z, np.ones(1000), groups)
        inside.append(found.scale_low < 1.0 < found.scale_high)
    assert 0.75 < np.mean(inside) < 0.98
    narrow = Recalibration.fit(z, np.ones(1000))
    width = found.scale_high - found.scale_low
    assert narrow.scale_high - narrow.scale_low < 0.5 * width


def test_pooling_is_the_nearest_rising_sequence(rng):
    for _ in range(20):
        y, weights = rng.normal(size=15), rng.uniform(0.5, 2, 15)
        want = optimize.isotonic_regression(y, weights=weights).x
        np.testing.assert_allclose(pool_adjacent_violators(y, weights), want)


def test_the_isotonic_map_rises_and_mends_what_one_scale_cannot(rng):
    """True standard deviation 1 + sigma^2 / 4: too small at both ends for any scale."""
    sigma = rng.uniform(0.2, 6, 40_000)
    error = (1 + sigma**2 / 4) * rng.normal(size=sigma.shape)
    found = Recalibration.fit(error, sigma, kind="isotonic")
    grid = np.linspace(0.5, 5.5, 20)
    corrected = found.apply(grid)
    assert np.all(np.diff(corrected) >= 0)
    np.testing.assert_allclose(corrected, 1 + grid**2 / 4, rtol=0.2)
    beyond = found.apply([0.01, 60.0])
    assert beyond[0] > 0
    assert beyond[1] == pytest.approx(10 * found.apply([6.0])[0], rel=0.01)


def test_the_conformal_quantile_is_the_order_statistic():
    """Episodes of one error: the ceil((n+1) level)-th smallest score."""
    scores = np.arange(1.0, 20.0)  # 19 of them
    found = Recalibration.fit(scores, np.ones(19), kind="conformal")
    assert found.quantile(0.9) == 18.0
    assert found.quantile(0.95) == 19.0
    assert found.quantile(0.5) == 10.0
    low, high = found.interval([1.0], [2.0], 0.9)
    assert (low[0], high[0]) == (1.0 - 36.0, 1.0 + 36.0)
    with pytest.raises(UsageError, match=r"19 episodes support levels up to 0\.95"):
        found.quantile(0.96)


def test_few_conformal_episodes_still_cover(rng):
    """Nine episodes of unequal length: 90 % on average over repetitions, not less."""
    covered = []
    for _ in range(400):
        lengths = rng.integers(1, 8, size=10)
        groups = np.repeat(np.arange(10), lengths)
        z = rng.standard_t(3, size=10)[groups] + 0.3 * rng.normal(size=len(groups))
        seen = groups < 9
        found = Recalibration.fit(
            z[seen], np.ones(seen.sum()), groups[seen], "conformal"
        )
        covered.append(np.mean(np.abs(z[~seen]) <= found.quantile(0.9)))
    assert np.mean(covered) > 0.87


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_plain_arrays(rng, kind):
    found = Recalibration.fit(*draw(rng, 20, 10), kind=kind)
    arrays = found.to_arrays()
    assert all(x.dtype.kind in "fi" for x in arrays.values())
    again = Recalibration.from_arrays(arrays)
    sigma = rng.gamma(2.0, size=(3, 4))
    np.testing.assert_array_equal(again.apply(sigma), found.apply(sigma))
    assert again.to_arrays().keys() == arrays.keys()
    assert (again.scale_low, again.groups) == (found.scale_low, found.groups)


def test_tensors_and_jax_arrays_are_accepted(rng):
    torch = pytest.importorskip("torch")
    import jax.numpy as jnp

    error, sigma, groups = draw(rng, 20, 5)
    want = Recalibration.fit(error, sigma, groups).scale
    for convert in (torch.as_tensor, jnp.asarray):
        got = Recalibration.fit(convert(error), convert(sigma), groups).scale
        assert got == pytest.approx(want, rel=1e-5)


ONES = np.ones(100)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Recalibration.fit(ONES, 0 * ONES), r"sigma\[0\] is 0.0"),
        (lambda: Recalibration.fit(ONES, np.inf * ONES), r"sigma\[0\] is inf"),
        (lambda: Recalibration.fit(np.nan * ONES, ONES), r"error\[0\] is nan"),
        (lambda: Recalibration.fit(ONES, ONES[:3]), r"\(100,\) and sigma \(3,\)"),
        (lambda: Recalibration.fit(ONES, ONES, [1, 2]), "groups has 2 entries"),
        (lambda: Recalibration.fit(0 * ONES, ONES), "Every error is 0"),
        (lambda: Recalibration.fit(ONES, ONES, kind="platt"), "kind is 'platt'"),
        (lambda: Recalibration.fit(ONES[:4], ONES[:4]), "of 4 episodes.*at least 5"),
        (lambda: Recalibration.fit(ONES, ONES, 0 * ONES), "errors of 1 episodes"),
        (
            lambda: Recalibration.fit(ONES[:59], ONES[:59], kind="isotonic"),
            "59 errors.*at least 60",
        ),
        (
            lambda: Recalibration.fit(ONES[:8], ONES[:8], kind="conformal"),
            "of 8 episodes.*at least 9",
        ),
        (lambda: Recalibration.fit(ONES, ONES).apply([1, 0]), r"sigmas\[1\] is 0.0"),
        (lambda: Recalibration.fit(ONES, ONES).apply(np.nan), "sigmas is nan"),
        (
            lambda: Recalibration.fit(ONES, ONES).interval([1.0, 2.0], [1.0]),
            r"q has shape \(2,\)",
        ),
        (lambda: Recalibration.fit(ONES, ONES).quantile(0.9), "kind 'scale'"),
        *(
            (
                lambda n=n: Recalibration.fit(ONES, ONES).interval(1.0, 1.0, n),
                "level is",
            )
            for n in (0.0, 1.0, -1.0, 90, float("nan"))
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_the_least_numbers_are_enough():
    rng = np.random.default_rng(0)
    for kind, least in LEAST_GROUPS.items():
        error, sigma, groups = draw(rng, least, 20)
        low, high = Recalibration.fit(error, sigma, groups, kind).interval(0.0, 1.0)
        assert low < high
