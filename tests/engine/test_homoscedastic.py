"""Members with one noise scale per output: their loss, and a noise that is known."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.dynamics.config import HomoscedasticModelConfig
from pombu.dynamics.ensemble import Layers, Samples, init_ensemble, materialise
from pombu.dynamics.gaussian import (
    SMOOTH,
    HomoscedasticMembers,
    ProfileLikelihood,
    fit_homoscedastic,
)
from pombu.errors import UsageError
from pombu.parallel import Workers

CONFIG = HomoscedasticModelConfig(
    members=2,
    hidden=(16,),
    learning_rate=1e-2,
    batch_size=64,
    min_steps=1000,
    max_steps=1000,
    validation_fraction=0.2,
    validation_rows=500,
)
NOISE = np.array([0.05, 0.4])


def untrained(config: HomoscedasticModelConfig = CONFIG) -> HomoscedasticMembers:
    key = jax.random.key(0)
    layers = materialise(
        init_ensemble(key, config.members, 3, 2, config.hidden, SMOOTH)
    )
    return HomoscedasticMembers(layers, jnp.zeros((config.members, 2)))


def data(rows: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(rows, 3)).astype(np.float32)
    means = np.stack([np.tanh(inputs[:, 0]), 0.5 * inputs[:, 1]], 1)
    targets = (means + NOISE * rng.normal(size=means.shape)).astype(np.float32)
    return inputs, targets, rng.random((CONFIG.members, rows)) < 0.2


def test_the_loss_is_the_likelihood_at_its_best_noise_scale() -> None:
    """-log N(y; mean, s^2) per row, without its constant, least over s."""
    inputs, targets, _ = data(50)
    layers: Layers = untrained().unstack()[0].layers
    rows = Samples(jnp.asarray(inputs), jnp.asarray(targets), jnp.arange(50))
    found, square = ProfileLikelihood("float32").objective(layers, rows)
    errors = np.asarray(layers.outputs(jnp.asarray(inputs), "float32")[0]) - targets
    best = 0.0
    for output in range(2):
        scales = np.exp(np.linspace(-4, 3, 20_001))
        mean_square = (errors[:, output] ** 2).mean()
        best += (0.5 * mean_square / scales**2 + np.log(scales)).min() - 0.5
    assert float(found) == pytest.approx(best, abs=1e-3)
    assert float(square) == pytest.approx(float((errors**2).mean()), rel=1e-4)


def test_a_fit_finds_the_noise_of_every_output() -> None:
    inputs, targets, held = data()
    fitted, report = fit_homoscedastic(
        untrained(),
        inputs,
        targets,
        held,
        2000,
        CONFIG,
        2000,
        (0,),
        Workers(1),
    )
    for member in np.exp(np.asarray(fitted.log_std)):
        np.testing.assert_allclose(member, NOISE, rtol=0.25)
    assert report["model_noise"] == pytest.approx(
        float(np.exp(fitted.log_std).mean()), rel=1e-5
    )
    assert report["fit_steps"] == 1000


def test_neither_room_nor_workers_change_a_fit() -> None:
    inputs, targets, held = data(300)
    config = replace(CONFIG, min_steps=20, max_steps=20)
    fits = [
        fit_homoscedastic(
            untrained(),
            inputs,
            targets,
            held[:, :300],
            300,
            config,
            capacity,
            (0,),
            Workers(workers),
        )[0]
        for capacity, workers in ((300, 1), (1000, 1), (100, 2))
    ]
    assert eqx.tree_equal(fits[0], fits[2])
    for one, other in zip(*map(jax.tree.leaves, fits[:2]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_sample_has_the_members_noise() -> None:
    log_std = jnp.log(jnp.array([[0.1, 0.2], [0.3, 0.4]]))
    members = HomoscedasticMembers(untrained().layers, log_std)
    mean, found = members.outputs(jnp.zeros((2, 7, 3)), "float32")
    assert mean.shape == (2, 7, 2)
    np.testing.assert_allclose(found[:, 0], log_std)
    alone = members.unstack()[1].outputs(jnp.zeros((7, 3)), "float32")
    np.testing.assert_allclose(alone[0], mean[1], rtol=1e-5)
    np.testing.assert_allclose(alone[1][0], log_std[1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("members", 0),
        ("max_steps", 10),
        ("validation_fraction", 1.0),
    ],
)
def test_bad_values_are_named(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=rf"model\.{field} is {value}"):
        replace(CONFIG, **{field: value})
