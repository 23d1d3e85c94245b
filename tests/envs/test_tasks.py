"""The tasks are the paper's and its benchmark's."""

from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import pombu
from pombu.envs import CATALOGUE
from pombu.envs.catalogue import LOCOMOTION, Entry
from pombu.envs.locomotion import ASSETS, load_model
from pombu.errors import UsageError

each_task = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
each_body = pytest.mark.parametrize("name", LOCOMOTION)


def rollout(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    start, _ = env.reset(seed=seed)
    size = (steps, *env.action_space.shape)
    actions = env.action_space.high * rng.uniform(-1, 1, size).astype(np.float32)
    return np.stack([start, *(env.step(action)[0] for action in actions)])


@each_task
def test_sizes_and_limit(entry: Entry) -> None:
    env = gymnasium.make(entry.id)
    assert env.observation_space.shape == (entry.observation_dim,)
    assert env.observation_space.dtype == np.float32
    assert env.action_space.shape == (entry.action_dim,)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(entry.horizon)]
    assert ends[:-1] == [(False, False)] * (entry.horizon - 1)
    assert ends[-1] == (False, True)
    env.close()


def test_sizes() -> None:
    sizes = {
        entry.name: (entry.observation_dim, entry.action_dim, entry.horizon)
        for entry in CATALOGUE
    }
    assert sizes == {
        "Point2D": (2, 2, 30),
        "Point3D": (3, 3, 30),
        "Swimmer": (8, 2, 200),
        "HalfCheetah": (17, 6, 200),
        "Ant": (28, 8, 200),
        "Walker2d": (17, 6, 200),
        "Hopper": (11, 3, 200),
    }


@each_task
@pytest.mark.filterwarnings("ignore:.*Box observation space (min|max)imum value")
def test_gymnasium_checker(entry: Entry) -> None:
    check_env(gymnasium.make(entry.id).unwrapped)


@each_task
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_seeding(entry: Entry, noise: float) -> None:
    one, two = (gymnasium.make(entry.id, observation_noise=noise) for _ in range(2))
    first = rollout(one, seed=3, steps=20)
    np.testing.assert_array_equal(first, rollout(two, seed=3, steps=20))
    np.testing.assert_array_equal(first, rollout(one, seed=3, steps=20))
    assert not np.array_equal(first, rollout(one, seed=4, steps=20))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_point_is_appendix_d(dimensions: int) -> None:
    env = gymnasium.make(f"pombu/Point{dimensions}D-v0")
    np.testing.assert_array_equal(env.action_space.high, np.float32(0.1))
    state, _ = env.reset(seed=0)
    after, reward, *_ = env.step(np.full(dimensions, 7.0, np.float32))
    np.testing.assert_allclose(after, state + 0.1, atol=1e-6)
    assert reward == pytest.approx(-np.sum((state + 0.1) ** 2), abs=1e-5)
    starts = np.stack([env.reset(seed=seed)[0] for seed in range(400)])
    assert abs(starts).max() <= 2
    assert abs(starts).max() > 1.98
    np.testing.assert_allclose(starts.var(axis=0), 4 / 3, rtol=0.2)


@pytest.mark.parametrize(
    ("name", "velocity", "effort", "height"),
    [
        ("Swimmer", 3, 1e-4, None),
        ("HalfCheetah", 8, 0.1, None),
        ("Ant", 14, 0.1, (1, 0.57)),
        ("Walker2d", 8, 0.1, (0, 1.3)),
        ("Hopper", 5, 0.1, (0, 1.3)),
    ],
)
@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_reward_is_the_papers_and_reads_the_state_before(
    name: str,
    velocity: int,
    effort: float,
    height: tuple[int, float] | None,
    bonus: float,
) -> None:
    env = gymnasium.make(f"pombu/{name}-v0", alive_bonus=bonus)
    before, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(30):
        action = rng.uniform(-2, 2, env.action_space.shape).astype(np.float32)
        after, reward, *_ = env.step(action)
        due = before[velocity] - effort * np.sum(np.clip(action, -1, 1) ** 2) + bonus
        if height is not None:
            index, target = height
            due -= 3 * (before[index] - target) ** 2
        assert reward == pytest.approx(due, abs=1e-5)
        before = after


@each_body
def test_observation_is_qpos_and_qvel(name: str) -> None:
    env = gymnasium.make(f"pombu/{name}-v0").unwrapped
    observation, _ = env.reset(seed=0)
    observation, *_ = env.step(env.action_space.sample())
    data = env.physics.data
    hidden = 2 if name == "Swimmer" else 1
    due = np.concatenate([data.qpos[hidden:], data.qvel]).astype(np.float32)
    np.testing.assert_array_equal(observation, due)


@each_body
def test_physics_are_the_files(name: str) -> None:
    """Rest, actuators, time step and masses agree with Gymnasium's model."""
    spec = LOCOMOTION[name]
    ours = load_model(spec.asset)
    theirs = mujoco.MjModel.from_xml_path(str(ASSETS / spec.asset))
    np.testing.assert_array_equal(ours.qpos0, spec.rest)
    assert (ours.nq, ours.nv, ours.nu) == (spec.nq, spec.nv, spec.nu)
    np.testing.assert_array_equal(ours.actuator_ctrlrange, [[-1, 1]] * spec.nu)
    np.testing.assert_allclose(ours.body_mass, theirs.body_mass, rtol=1e-12)
    np.testing.assert_allclose(ours.body_inertia, theirs.body_inertia, rtol=1e-12)
    np.testing.assert_allclose(
        ours.stat.meaninertia, theirs.stat.meaninertia, rtol=1e-12
    )
    due = {"Swimmer": 0.04, "HalfCheetah": 0.05, "Ant": 0.05}.get(name, 0.008)
    assert ours.opt.timestep * spec.frame_skip == pytest.approx(due)


def test_step_agrees_with_gymnasium() -> None:
    """One step of Gymnasium's HalfCheetah from the same state, up to the solver."""
    theirs = gymnasium.make("HalfCheetah-v5").unwrapped
    ours = gymnasium.make("pombu/HalfCheetah-v0").unwrapped
    ours.reset(seed=0)
    theirs.reset(seed=0)
    theirs.set_state(ours.state[:9], ours.state[9:])
    for _ in range(5):
        action = ours.action_space.sample()
        after, *_ = ours.step(action)
        np.testing.assert_allclose(theirs.step(action)[0], after, atol=1e-4)
    theirs.close()


def test_walker_has_feet_of_different_friction() -> None:
    model = load_model("walker2d.xml")
    assert model.geom("foot_geom").friction[0] == 0.9
    assert model.geom("foot_left_geom").friction[0] == 1.9


def test_ant_with_and_without_y() -> None:
    with_y = gymnasium.make("pombu/Ant-v0")
    without = gymnasium.make("pombu/Ant-v0", observe_y=False)
    a, b = rollout(with_y, 0, 10), rollout(without, 0, 10)
    assert (a.shape[1], b.shape[1]) == (28, 27)
    np.testing.assert_array_equal(a[:, 1:], b)
    action = np.ones(8, np.float32)
    assert with_y.step(action)[1] == without.step(action)[1]


def test_ant_starts_with_a_unit_quaternion() -> None:
    env = gymnasium.make("pombu/Ant-v0")
    starts = np.stack([env.reset(seed=seed)[0] for seed in range(20)])
    np.testing.assert_allclose(np.linalg.norm(starts[:, 2:6], axis=1), 1, atol=1e-6)


def test_next_state_depends_on_state_and_action_alone() -> None:
    dynamics = gymnasium.make("pombu/Walker2d-v0").unwrapped.physics
    state = dynamics.start(np.random.default_rng(0))
    action = np.full(6, 0.5)
    first = dynamics.advance(state, action)
    dynamics.advance(first, -action)
    np.testing.assert_array_equal(dynamics.advance(state, action), first)


@each_task
def test_noise_is_on_every_observation_and_not_in_the_reward(entry: Entry) -> None:
    clean = gymnasium.make(entry.id)
    noisy = gymnasium.make(entry.id, observation_noise=0.1)
    action = np.zeros(entry.action_dim, np.float32)
    gaps = []
    for seed in range(60):
        plain, _ = clean.reset(seed=seed)
        seen, info = noisy.reset(seed=seed)
        np.testing.assert_array_equal(info["clean_observation"], plain)
        gaps.append(seen - plain)
        plain, reward, *_ = clean.step(action)
        seen, noisy_reward, *_, info = noisy.step(action)
        np.testing.assert_array_equal(info["clean_observation"], plain)
        gaps.append(seen - plain)
        assert reward == noisy_reward
    assert np.std(gaps[::2]) == pytest.approx(0.1, rel=0.25)
    assert np.std(gaps[1::2]) == pytest.approx(0.1, rel=0.25)
    assert np.mean(gaps) == pytest.approx(0, abs=0.03)


@each_task
def test_bad_actions_and_options(entry: Entry) -> None:
    env = gymnasium.make(entry.id, disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"shape \(99,\)"):
        env.step(np.zeros(99, np.float32))
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.full(entry.action_dim, np.nan, np.float32))
    with pytest.raises(ValueError, match="observation_noise is -1"):
        gymnasium.make(entry.id, observation_noise=-1.0)
    with pytest.raises(ValueError, match="alive_bonus is nan"):
        gymnasium.make(entry.id, alive_bonus=float("nan"))
    if entry.name in LOCOMOTION and entry.name != "Ant":
        with pytest.raises(ValueError, match="observe_y=False"):
            gymnasium.make(entry.id, observe_y=False)
    with pytest.raises(UsageError, match="reset"):
        gymnasium.make(entry.id).unwrapped.step(np.zeros(entry.action_dim))


def test_long_horizon() -> None:
    env = gymnasium.make("pombu/Swimmer-v0", max_episode_steps=1000)
    env.reset(seed=0)
    steps = 1
    while not env.step(env.action_space.sample())[3]:
        steps += 1
    assert steps == 1000


def test_version_is_public() -> None:
    assert pombu.__version__
