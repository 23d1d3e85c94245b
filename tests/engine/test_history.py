"""Learning in states that hold several observations, newest first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import Mimic, hand_made_task, same

from pombu.agent.agents import POMBU
from pombu.agent.numpy_policy import load_policy
from pombu.algorithms.registry import ALGORITHMS, make, preset
from pombu.cli import main
from pombu.data import Normaliser, learn_from, moved, no_experience
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import ModelConfig, ReturnConfig
from pombu.dynamics.ensemble import init_ensemble, materialise
from pombu.dynamics.fit import fit_dynamics, fresh_ensemble
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, load
from pombu.envs.wrappers import StackedContract, stack_episode
from pombu.nn import init_policy
from pombu.parallel import Workers
from pombu.rollout.imagine import ImaginationRules, imagine
from pombu.training.algorithm import StageTimer
from pombu.training.metrics import deterministic, read_rows

HISTORY, FRAME, HORIZON, NUMBER = 3, 2, 6, 4


def oscillator(history: int, noise: float, episodes: int = 12) -> list[Episode]:
    """p'' = -p + a in discrete time, of which only p is observed, with noise."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(episodes):
        actions = rng.normal(size=(60, 1)) / 4
        place = list(rng.normal(size=2))
        for action in actions[:, 0]:
            place.append(2 * np.cos(0.6) * place[-1] - place[-2] + 0.2 * action)
        seen = np.array(place[1:]) + noise * rng.normal(size=61)
        frames = seen[:, None].astype(np.float32)
        stacks = stack_episode(frames, history)
        boxed = actions.astype(np.float32)
        found.append(Episode(stacks, boxed, np.zeros(60, np.float32), False))
    return found


def one_step_loss(history: int, noise: float) -> float:
    """Held-out error of a linear model, in standard deviations of the change."""
    single = hand_made_task(None, 60, history)
    task = replace(single, config=replace(single.config, history=history))
    config = ModelConfig(
        members=2,
        hidden=(),
        reward="learned",
        learning_rate=2e-2,
        batch_size=64,
        max_epochs=60,
        patience=60,
    )
    episodes = oscillator(history, noise)
    nothing = no_experience(task.observation_dim, 1, task.frame_dim)
    experience = learn_from(nothing, episodes, 0.99)
    start = fresh_ensemble(jax.random.key(0), task, config)
    _, report = fit_dynamics(
        start, episodes, experience, config, 800, (0,), 0, Workers(1)
    )
    return float(report.validation_loss.mean())


def test_two_positions_make_a_second_order_system_markov() -> None:
    """The loss is a mean over change and reward, and the reward is always 0."""
    blind, seeing = one_step_loss(1, 0.01), one_step_loss(2, 0.01)
    assert blind > 0.2
    assert seeing < blind / 20


def test_older_frames_shift() -> None:
    state, change = jnp.arange(6.0), jnp.array([[10.0, 20.0], [30.0, 40.0]])
    expected = [[10, 21, 0, 1, 2, 3], [30, 41, 0, 1, 2, 3]]
    np.testing.assert_array_equal(moved(state, change), expected)
    np.testing.assert_array_equal(moved(state[:2], change), [[10, 21], [30, 41]])


def scale(rng: np.random.Generator, dim: int) -> Normaliser:
    mean, std = rng.normal(size=dim) / 4, 0.5 + rng.random(dim)
    return Normaliser(jnp.float32(mean), jnp.float32(std))


def test_imagined_trajectories_equal_a_plain_loop() -> None:
    rng = np.random.default_rng(3)
    dim = HISTORY * FRAME
    layers = materialise(init_ensemble(jax.random.key(5), 1, dim + 1, FRAME, (6,)))
    units = scale(rng, dim), scale(rng, 1), scale(rng, FRAME)
    own = Mimic(lambda obs, action, after: after[..., 0] - obs[..., 1] + action[..., 0])
    contract = StackedContract(own, FRAME, HISTORY)
    dynamics = Dynamics(layers, *units, None, jnp.float32(1.0), contract=contract)
    box = hand_made_task(own, HORIZON).action_box
    returns = ReturnConfig(reward_clip=None)
    rules = ImaginationRules(box, returns, HORIZON, 100.0)
    policy = init_policy(jax.random.key(0), dim, 1, (5,), log_std=-0.5)
    starts = jnp.asarray(np.tile(rng.normal(size=(NUMBER, FRAME)), HISTORY))
    imagined = imagine(
        policy, None, dynamics, rules, starts, jnp.ones(1), jax.random.key(1)
    )
    hidden, last = layers.weights
    bend, shift = layers.biases
    for n in range(NUMBER):
        frames = [np.asarray(starts[n, :FRAME])] * HISTORY
        for h in range(HORIZON):
            normal = (np.concatenate(frames[:HISTORY]) - units[0].mean) / units[0].std
            np.testing.assert_allclose(imagined.observations[h, n], normal, atol=2e-5)
            action = box.to_box(imagined.actions[h, n])
            x = np.concatenate([normal, (action - units[1].mean) / units[1].std])
            output = np.maximum(x @ hidden[0] + bend[0], 0) @ last[0] + shift[0]
            newest = frames[0] + output * units[2].std + units[2].mean
            reward = newest[0] - frames[0][1] + action[0]
            np.testing.assert_allclose(imagined.raw_rewards[h, n], reward, atol=2e-5)
            frames = [newest, *frames]


def tiny(name: str, history: int) -> Any:
    config = preset(name, "smoke", "Point2D", 10)
    if hasattr(config, "minibatch"):
        config = replace(config, minibatch=10)
    if hasattr(config, "learning_starts"):
        config = replace(config, learning_starts=10, updates_per_step=0.5)
    env = replace(config.env, history=history, observation_noise=0.1)
    return replace(config, env=env)


OF_EACH_KIND = ("pets", "sac")
"""A planner, and one without a model; POMBU learns from a history in `run` below."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(ALGORITHMS)
    ],
)
def test_every_algorithm_learns_from_a_history(name: str) -> None:
    config = tiny(name, 2)
    learner = make(name, load(config.env), config)
    state, episodes = learner.init(1), EpisodeStore()
    for _ in range(2):
        state, metrics = learner.iterate(state, episodes, StageTimer())
        assert np.isfinite([*metrics.values()]).all()
    assert next(iter(episodes)).observations.shape[1] == 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "point"
    flags = "train --env Point2D --preset smoke --history 3 --observation-noise 0.1"
    more = "--noise-kind uniform --total-steps 180 --out"
    assert main([*flags.split(), *more.split(), str(folder)]) == 0
    return folder


def test_a_resumed_run_equals_an_uninterrupted_one(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parted"
    flags = "train --env Point2D --preset smoke --history 3 --observation-noise 0.1"
    more = "--noise-kind uniform --total-steps 90 --out"
    assert main([*flags.split(), *more.split(), str(folder)]) == 0
    assert main(["resume", str(folder), "--total-steps", "180"]) == 0
    whole, parted = (read_rows(f / "metrics.csv")[1] for f in (run, folder))
    assert [*map(deterministic, whole)] == [*map(deterministic, parted)]
    one, two = (POMBU.load(f).state for f in (run, folder))
    assert same(one, two)


def test_an_exported_policy_takes_the_stack(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    assert main(["export", str(run), str(file)]) == 0
    stacks = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    actions, _ = POMBU.load(run).predict(stacks, deterministic=True)
    np.testing.assert_allclose(load_policy(str(file))(stacks), actions, atol=1e-6)
