"""Members of every form: activation and normalisation against a plain loop, what they
learn, and that the published form is what it was."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import CONFIG, change, run, same

from pombu.algorithms.pombu.learner import Learner
from pombu.dynamics.config import ModelConfig
from pombu.dynamics.ensemble import (
    Ensemble,
    Form,
    Linear,
    WeightNorm,
    init_ensemble,
    materialise,
    predict,
)
from pombu.dynamics.fit import fit
from pombu.envs import load
from pombu.parallel import Workers
from pombu.training.checkpoint import state_from_bytes, state_to_bytes

FORMS = [Form(*names) for names in product(("relu", "silu"), ("weight", "layer"))]
every_form = pytest.mark.parametrize(
    "form", FORMS, ids=lambda form: f"{form.activation}-{form.normalisation}"
)


def start(form: Form, hidden: tuple[int, ...] = (7, 6)) -> Ensemble:
    return init_ensemble(jax.random.key(3), 3, 4, 2, hidden, form)


def biased(ensemble: Ensemble) -> Ensemble:
    """The same with biases that are not 0."""
    draw = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jnp.float32(draw.normal(size=x.shape)) if x.ndim == 2 else x, ensemble
    )


def loop(ensemble: Ensemble, x: Any) -> Any:
    """Member by member and row by row, in float64."""
    answer = np.zeros((len(x), x.shape[1], ensemble.layers[-1].bias.shape[-1]))
    for k in range(len(x)):
        for number, row in enumerate(np.asarray(x[k], np.float64)):
            for layer in ensemble.layers:
                if isinstance(layer, WeightNorm):
                    direction = np.asarray(layer.direction[k], np.float64)
                    length = np.sqrt((direction**2).sum(0))
                    weight = direction / length * np.asarray(layer.gain[k])
                else:
                    weight = np.asarray(layer.weight[k], np.float64)
                row = row @ weight + np.asarray(layer.bias[k])
                if layer is ensemble.layers[-1]:
                    continue
                if ensemble.form.normalisation == "layer":
                    mean = sum(row) / len(row)
                    variance = sum((value - mean) ** 2 for value in row) / len(row)
                    row = (row - mean) / np.sqrt(variance + 1e-5)
                if ensemble.form.activation == "relu":
                    row = np.where(row > 0, row, 0.0)
                else:
                    row = row / (1 + np.exp(-row))
            answer[k, number] = row
    return answer


@every_form
def test_prediction_equals_a_loop(form: Form) -> None:
    ensemble = biased(start(form))
    x = jax.random.normal(jax.random.key(1), (3, 5, 4))
    np.testing.assert_allclose(
        predict(materialise(ensemble), x), loop(ensemble, x), atol=2e-5
    )


@every_form
def test_bfloat16_stays_close(form: Form) -> None:
    layers = materialise(start(form, (256, 256)))
    x = jax.random.normal(jax.random.key(1), (3, 100, 4))
    exact = np.asarray(predict(layers, x))
    rounded = np.asarray(predict(layers, x, "bfloat16"))
    assert rounded.dtype == np.float32
    error = np.abs(rounded - exact) / exact.std()
    assert 0 < error.max() < 0.05


def test_plain_layers_start_with_unit_gain() -> None:
    """Weights of standard deviation 1 / sqrt(inputs), cut off, and biases 0."""
    ensemble = init_ensemble(jax.random.key(0), 5, 20, 17, (64,), Form("silu", "layer"))
    assert ensemble.members == 5
    for layer, inputs in zip(ensemble.layers, (20, 64), strict=True):
        assert isinstance(layer, Linear)
        scaled = np.asarray(layer.weight) * np.sqrt(inputs)
        assert scaled.std() == pytest.approx(1.0, rel=0.05)
        assert np.abs(scaled).max() < 2.3
        assert not layer.bias.any()
        assert not np.array_equal(layer.weight[0], layer.weight[1])


def test_layer_normalisation_bounds_what_is_said_of_far_states() -> None:
    """The first hidden layer's values have root mean square 1, wherever the state is:
    a thousand times as far away the answer is nearly the same."""
    layers = materialise(start(Form("relu", "layer")))
    x = jax.random.normal(jax.random.key(1), (3, 5, 4))
    np.testing.assert_allclose(
        predict(layers, 1e6 * x), predict(layers, 1e3 * x), atol=1e-3
    )


@every_form
def test_learns_a_known_function(form: Form) -> None:
    """sin(a) and b / 2, on rows that were not learned from."""
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(1000, 4)).astype(np.float32)

    def known(x: Any) -> Any:
        return np.stack([np.sin(x[:, 0]), 0.5 * x[:, 1]], 1).astype(np.float32)

    config = ModelConfig(
        hidden=(64, 64),
        learning_rate=5e-3,
        final_learning_rate=0.0,
        batch_size=100,
        max_epochs=100,
        max_steps=600,
        patience=100,
    )
    held_out = draw.random((3, 1000)) < 0.2
    ensemble, _ = fit(
        start(form, config.hidden),
        inputs,
        known(inputs),
        held_out,
        config,
        1000,
        (4,),
        Workers(1),
    )
    assert ensemble.form == form
    fresh = draw.normal(size=(300, 4)).astype(np.float32)
    predicted = predict(materialise(ensemble), jnp.asarray([fresh] * 3))
    error = np.sqrt(((predicted - known(fresh)) ** 2).mean((1, 2)))
    assert (error < 0.1).all(), error


@every_form
def test_a_run_and_its_checkpoint_know_the_form(form: Form) -> None:
    config = change(
        CONFIG,
        model__activation=form.activation,
        model__normalisation=form.normalisation,
    )
    learner = Learner(load(config.env), config)
    state, rows = run(learner, 0, 1)
    assert np.isfinite(rows[0]["validation_loss"])
    restored = state_from_bytes(state_to_bytes(state), learner.init(0))
    assert restored.ensemble.form == form
    assert same(state, restored)
    dynamics = learner.dynamics(state)
    assert dynamics.members.form == form
    assert dynamics.members.unstack()[0].form == form
    assert dynamics.only(jnp.asarray(1)).members.form == form


def test_a_checkpoint_holds_the_arrays_that_it_always_held() -> None:
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(start(Form()))
    ]
    assert names == [
        f"layers/{n}/{name}" for n in range(3) for name in ("direction", "gain", "bias")
    ]
