"""The weight-normalised ensemble by closed forms and loops."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pombu.dynamics.ensemble import (
    Ensemble,
    Layers,
    WeightNorm,
    init_ensemble,
    materialise,
    predict,
)


def test_weight_norm_in_closed_form() -> None:
    """Columns (3, 4) and (0, 2) have norms 5 and 2; the gains are 10 and -1."""
    direction = jnp.array([[[3.0, 0.0], [4.0, 2.0]]])
    layer = WeightNorm(direction, jnp.array([[10.0, -1.0]]), jnp.array([[7.0, 8.0]]))
    layers = materialise(Ensemble((layer,)))
    np.testing.assert_allclose(layers.weights[0], [[[6.0, 0.0], [8.0, -1.0]]])
    np.testing.assert_allclose(layers.biases[0], [[7.0, 8.0]])


@settings(deadline=None, max_examples=10)
@given(st.floats(0.1, 10.0))
def test_weights_do_not_depend_on_the_length_of_a_direction(factor: float) -> None:
    ensemble = init_ensemble(jax.random.key(0), 2, 3, 2, (4,))
    longer = Ensemble(
        tuple(
            WeightNorm(layer.direction * factor, layer.gain, layer.bias)
            for layer in ensemble.layers
        )
    )
    pairs = zip(materialise(ensemble).weights, materialise(longer).weights, strict=True)
    for one, two in pairs:
        np.testing.assert_allclose(one, two, rtol=1e-5)


def test_start_is_that_of_the_published_code() -> None:
    ensemble = init_ensemble(jax.random.key(0), 5, 20, 17, (64, 64))
    assert ensemble.members == 5
    shapes = [layer.direction.shape for layer in ensemble.layers]
    assert shapes == [(5, 20, 64), (5, 64, 64), (5, 64, 17)]
    for layer in ensemble.layers:
        assert float(jnp.std(layer.direction)) == pytest.approx(0.05, rel=0.05)
        assert bool(jnp.all(layer.gain == 1.0))
        assert bool(jnp.all(layer.bias == 0.0))
    first = ensemble.layers[0].direction
    assert not np.array_equal(first[0], first[1])


def random_layers(members: int, sizes: tuple[int, ...]) -> Layers:
    draw = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    return Layers(
        tuple(array(members, i, o) / np.sqrt(i) for i, o in pairwise(sizes)),
        tuple(array(members, o) for o in sizes[1:]),
    )


def loop(layers: Layers, x: Any) -> Any:
    """Member by member and row by row."""
    rows = []
    for k in range(len(x)):
        for row in np.asarray(x[k], np.float64):
            for number in range(len(layers.weights)):
                row = row @ np.asarray(layers.weights[number][k], np.float64)
                row = row + np.asarray(layers.biases[number][k])
                if number < len(layers.weights) - 1:
                    row = np.where(row > 0, row, 0.0)
            rows.append(row)
    return np.stack(rows).reshape(len(x), -1, rows[0].shape[-1])


def test_prediction_equals_a_loop() -> None:
    layers = random_layers(3, (4, 7, 6, 2))
    x = jax.random.normal(jax.random.key(1), (3, 5, 4))
    np.testing.assert_allclose(predict(layers, x), loop(layers, x), atol=1e-5)


def test_bfloat16_stays_within_two_percent() -> None:
    """Each factor is rounded by at most 2^-9; sums are float32.

    Over three layers the errors of independent roundings mostly cancel: the error's
    size stays below 2 % of the output's, its mean below 0.5 %.
    """
    layers = random_layers(2, (20, 256, 256, 17))
    x = jax.random.normal(jax.random.key(1), (2, 100, 20))
    exact = np.asarray(predict(layers, x, "float32"))
    rounded = np.asarray(predict(layers, x, "bfloat16"))
    assert rounded.dtype == np.float32
    error = np.abs(rounded - exact) / exact.std()
    assert 0 < error.max() < 0.02
    assert error.mean() < 0.005
