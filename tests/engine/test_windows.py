"""Fits that look several steps ahead."""

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import CONFIG, change, run

from pombu.algorithms.pombu.learner import Learner
from pombu.data import (
    Experience,
    Normaliser,
    build_dataset,
    learn_from,
    no_experience,
    regression,
)
from pombu.dynamics.config import ModelConfig
from pombu.dynamics.ensemble import (
    Samples,
    SquaredError,
    Unroll,
    init_ensemble,
    materialise,
    predict,
)
from pombu.dynamics.fit import fit_dynamics
from pombu.envs import Episode, load
from pombu.envs.wrappers import stack_episode
from pombu.errors import UsageError
from pombu.parallel import Workers

module = import_module("pombu.dynamics.fit")

LENGTHS = (3, 7, 1, 5)
HORIZON = 4


def some_episodes(history: int) -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        Episode(
            stack_episode(rng.normal(size=(n + 1, 2)).astype(np.float32), history),
            rng.normal(size=(n, 1)).astype(np.float32),
            rng.normal(size=n).astype(np.float32),
            False,
        )
        for n in LENGTHS
    ]


def unroll_of(episodes: list[Episode], experience: Experience) -> Unroll:
    left = [steps for e in episodes for steps in range(len(e), 0, -1)]
    units = (experience.observation, experience.delta)
    return Unroll(np.array(left), *map(Normaliser.of, units))


def slow_losses(
    layers: Any, episodes: list[Episode], experience: Experience, held_out: Any
) -> list[float]:
    """By the definition: predicted states against real ones, row after row."""
    losses, row = [], 0
    mean, std = experience.delta.mean, experience.delta.std
    frame = len(mean)
    for episode in episodes:
        for t in range(len(episode)):
            state, squares = episode.observations[t].astype(float), []
            for j in range(min(HORIZON, len(episode) - t)):
                seen = experience.observation
                normal = (state - seen.mean) / seen.std
                action = episode.actions[t + j] - experience.action.mean
                x = np.concatenate([normal, action / experience.action.std])
                output = np.asarray(predict(layers, jnp.float32(x)[None]))[0]
                newest = state[:frame] + output[:frame] * std + mean
                state = np.concatenate([newest, state[:-frame]])
                real = episode.observations[t + j + 1]
                reward = episode.rewards[t + j] - experience.reward.mean
                gap = (state[:frame] - real[:frame]) / std
                off = output[frame:] - reward / experience.reward.std
                if not held_out[row + j]:
                    squares.append(np.mean(np.concatenate([gap, off]) ** 2))
            losses.append(np.mean(squares) if squares else np.nan)
            row += 1
    return losses


@pytest.mark.parametrize("history", [1, 3])
def test_loss_equals_a_plain_loop(history: int) -> None:
    episodes = some_episodes(history)
    nothing = no_experience(2 * history, 1, 2)
    experience = learn_from(nothing, episodes, 0.99)
    dataset = build_dataset(episodes, 1, 0.2, 0, 0)
    inputs, targets = map(jnp.asarray, regression(dataset, experience, True))
    ensemble = init_ensemble(jax.random.key(0), 1, 2 * history + 1, 3, (5,))
    member = jax.tree.map(lambda leaf: leaf[0], ensemble)
    held_out = np.arange(len(dataset)) % 5 == 4
    unroll = unroll_of(episodes, experience)
    rows = jnp.arange(len(dataset))
    for held in (np.zeros_like(held_out), held_out):
        config = ModelConfig(fit_horizon=HORIZON)
        loss = unroll.loss(config, 40, held if held.any() else None)
        assert loss.counts.shape == (40, HORIZON)
        given = loss.of_rows(member, Samples(inputs, targets, rows))
        expected = slow_losses(materialise(member), episodes, experience, held)
        learned = ~held
        np.testing.assert_allclose(
            np.asarray(given)[learned], np.array(expected)[learned], rtol=2e-4
        )


def test_one_step_ahead_is_the_plain_loss() -> None:
    episodes = some_episodes(2)
    experience = learn_from(no_experience(4, 1, 2), episodes, 0.99)
    dataset = build_dataset(episodes, 1, 0.2, 0, 0)
    inputs, targets = map(jnp.asarray, regression(dataset, experience, False))
    ensemble = init_ensemble(jax.random.key(0), 1, 5, 2, (5,))
    member = jax.tree.map(lambda leaf: leaf[0], ensemble)
    loss = unroll_of(episodes, experience).loss(ModelConfig(), len(dataset))
    rows = jnp.arange(len(dataset))
    np.testing.assert_allclose(
        loss.of_rows(member, Samples(inputs, targets, rows)),
        SquaredError("float32").of_rows(member, Samples(inputs, targets, rows)),
        rtol=1e-4,
    )


def noisy_decay(episodes: int, steps: int) -> list[Episode]:
    """x' = 0.9 x + noise of its own, observed with noise of x's own variance."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(episodes):
        x = [rng.normal()]
        for kick in rng.normal(size=steps):
            x.append(0.9 * x[-1] + np.sqrt(1 - 0.81) * kick)
        seen = np.array(x) + rng.normal(size=steps + 1)
        actions = np.zeros((steps, 1), np.float32)
        rewards = np.zeros(steps, np.float32)
        frames = seen[:, None].astype(np.float32)
        found.append(Episode(frames, actions, rewards, False))
    return found


def slope(horizon: int, episodes: list[Episode]) -> float:
    """The factor by which a fitted linear model lets x decay."""
    config = ModelConfig(
        members=2,
        hidden=(),
        learning_rate=2e-2,
        final_learning_rate=1e-4,
        batch_size=512,
        max_epochs=30,
        patience=30,
        fit_horizon=horizon,
    )
    experience = learn_from(no_experience(1, 1), episodes, 0.99)
    ensemble, _ = fit_dynamics(
        init_ensemble(jax.random.key(0), 2, 2, 1, ()),
        episodes,
        experience,
        config,
        16_000,
        (0,),
        0,
        Workers(1),
    )
    weight = np.asarray(materialise(ensemble).weights[0])[:, 0, 0].mean()
    unit = experience.delta.std[0] / experience.observation.std[0]
    return float(1 + weight * unit)


def best_slope(horizon: int) -> float:
    """What minimises the mean over steps of (slope^j - 0.9^j / 2)^2.

    The regression of the state j steps later on a noisy one is 0.9^j / 2, because half
    of the variance of what is observed is noise.
    """
    slopes = np.linspace(0.2, 1.0, 8001)
    steps = range(1, horizon + 1)
    return float(slopes[np.argmin(sum((slopes**j - 0.9**j / 2) ** 2 for j in steps))])


def test_noise_attenuates_a_fit_several_steps_ahead_less() -> None:
    episodes = noisy_decay(150, 100)
    assert best_slope(1) == pytest.approx(0.45)
    assert best_slope(4) == pytest.approx(0.662, abs=1e-3)
    assert slope(1, episodes) == pytest.approx(best_slope(1), abs=0.04)
    assert slope(4, episodes) == pytest.approx(best_slope(4), abs=0.04)


def test_nothing_recompiles_as_the_data_grows() -> None:
    episodes = some_episodes(2) * 2
    config = ModelConfig(
        members=2, hidden=(4,), batch_size=4, max_epochs=2, fit_horizon=HORIZON
    )
    compiled = []
    for number in (4, 6, 8):
        chosen = episodes[:number]
        experience = learn_from(no_experience(4, 1, 2), chosen, 0.99)
        fit_dynamics(
            init_ensemble(jax.random.key(0), 2, 5, 2, (4,)),
            chosen,
            experience,
            config,
            40,
            (0,),
            0,
            Workers(1),
        )
        sizes = module._train._cache_size(), module._validate._cache_size()
        compiled.append(sizes)
    assert compiled[0] == compiled[1] == compiled[2]


def test_a_run_fits_several_steps_ahead_with_history() -> None:
    config = change(CONFIG, env__history=2, model__fit_horizon=3)
    _, rows = run(Learner(load(config.env), config), 0, 2)
    assert all(np.isfinite([*row.values()]).all() for row in rows)


def test_a_fit_looks_at_least_one_step_ahead() -> None:
    with pytest.raises(UsageError, match=r"model.fit_horizon is 0; it must be"):
        ModelConfig(fit_horizon=0)
