"""Model error by horizon, by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import Mimic

from pombu.data import Normaliser
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.error import prediction_error
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode


def zero(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 0] * 0.0


CONTRACT = Mimic(zero)


def still_world(drift: float, growth: float = 0.0) -> Dynamics:
    """Three members that add 0, `drift` and 2 `drift`, and grow the state."""
    weight = jnp.zeros((3, 3, 2)).at[:, 0, 0].set(growth).at[:, 1, 1].set(growth)
    biases = drift * jnp.arange(3.0)[:, None] * jnp.ones(2)
    units = [Normaliser(jnp.zeros(d), s * jnp.ones(d)) for d, s in ((2, 2.0), (1, 1.0))]
    delta = Normaliser(jnp.zeros(2), jnp.ones(2))
    layers, one = Layers((weight,), (biases,)), jnp.float32(1.0)
    return Dynamics(layers, *units, delta, None, one, contract=CONTRACT)


def still(length: int) -> Episode:
    return Episode(
        np.ones((length + 1, 2), np.float32),
        np.zeros((length, 1), np.float32),
        np.zeros(length, np.float32),
        length < 30,
    )


def test_errors_grow_with_the_horizon() -> None:
    """The middle member is off by h x drift, in units of a standard deviation of 2."""
    errors = prediction_error(still_world(0.1), [still(30), still(30)], 30)
    expected = {1: 0.05, 5: 0.25, 20: 1.0}
    for horizon, error in expected.items():
        assert errors[f"model_error_{horizon}"] == pytest.approx(error, rel=1e-4)
    assert "model_error_50" not in errors, "no episode is that long"


def test_short_episodes_count_as_far_as_they_go() -> None:
    errors = prediction_error(still_world(0.1), [still(3), still(12)], 30)
    expected = {1: 0.05, 5: 0.25}
    for horizon, error in expected.items():
        assert errors[f"model_error_{horizon}"] == pytest.approx(error, rel=1e-4)
    assert set(errors) == {"model_error_1", "model_error_5"}


def test_diverging_predictions_are_large_but_finite() -> None:
    errors = prediction_error(still_world(0.0, growth=1e3), [still(30)], 30)
    assert errors["model_error_20"] == 1e6


def test_a_whole_episode_counts_where_imagined_ones_are_shorter() -> None:
    """It moves only in its second and third fifty steps."""
    moving = Episode(
        np.concatenate([np.ones(50), np.arange(1.0, 102.0)])[:, None]
        * np.ones((1, 2), np.float32),
        np.zeros((150, 1), np.float32),
        np.zeros(150, np.float32),
        False,
    )
    errors = prediction_error(still_world(0.0), [moving], 150)
    assert errors["model_error_1"] == pytest.approx(0.5, rel=1e-4)
    assert errors["model_error_50"] == pytest.approx(25.0, rel=1e-4)
