"""Contract and environment are the same task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.envs import CATALOGUE, load
from pombu.envs.checker import kolmogorov_smirnov
from pombu.envs.contract import Contract
from pombu.envs.environment import ActionBox

each_task = pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])


@each_task
@pytest.mark.parametrize(("noise", "bonus"), [(0.0, None), (0.1, 1.0)])
def test_rewards_agree_over_1000_steps(
    name: str, noise: float, bonus: float | None
) -> None:
    task = load(name, observation_noise=noise, alive_bonus=bonus)
    contract = task.contract
    assert contract is not None
    env = task.make()
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    before, actions, after, rewards = [], [], [], []
    for _ in range(1000):
        action = task.action_box.to_box(rng.uniform(-1.5, 1.5, task.action_dim))
        actions.append(action.astype(np.float32))
        before.append(info["clean_observation"])
        _, reward, terminated, truncated, info = env.step(actions[-1])
        after.append(info["clean_observation"])
        rewards.append(reward)
        assert not terminated
        if truncated:
            _, info = env.reset()
    transition = (np.stack(before), np.stack(actions), np.stack(after))
    known = jax.jit(contract.reward)(*transition)
    assert known.dtype == jnp.float32
    np.testing.assert_allclose(known, rewards, rtol=0, atol=1e-5)
    ends = jax.jit(contract.terminal)(*transition)
    assert ends.dtype == bool
    assert not ends.any()


@each_task
def test_batched_over_any_leading_axes(name: str) -> None:
    task = load(name)
    contract = task.contract
    assert contract is not None
    obs = contract.initial(jax.random.key(0), 6)
    next_obs = contract.initial(jax.random.key(1), 6)
    action = task.action_box.to_box(
        jax.random.uniform(jax.random.key(2), (6, task.action_dim), minval=-1)
    )
    flat = contract.reward(obs, action, next_obs)
    shaped = [x.reshape(2, 3, -1) for x in (obs, action, next_obs)]
    np.testing.assert_array_equal(contract.reward(*shaped), flat.reshape(2, 3))
    assert contract.terminal(*shaped).shape == (2, 3)
    one = contract.reward(obs[0], action[0], next_obs[0])
    np.testing.assert_allclose(one, flat[0], rtol=1e-6)


@each_task
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_starts_have_the_environments_distribution(name: str, noise: float) -> None:
    task = load(name, observation_noise=noise)
    assert task.contract is not None
    env = task.make()
    real = np.stack([env.reset(seed=seed)[0] for seed in range(1000)])
    known = np.asarray(task.contract.initial(jax.random.key(0), 1000))
    assert known.dtype == np.float32
    # Two samples of 1000 differ by more with a probability of 1e-5.
    assert kolmogorov_smirnov(real, known).max() < 0.11
    np.testing.assert_allclose(
        np.cov(real.T), np.cov(known.T), atol=0.25 * np.cov(real.T).max()
    )


def test_ant_starts_keep_the_unit_quaternion() -> None:
    contract = load("Ant").contract
    assert contract is not None
    starts = contract.initial(jax.random.key(0), 50)
    np.testing.assert_allclose(jnp.linalg.norm(starts[:, 2:6], axis=1), 1, atol=1e-6)


def test_ant_without_y_shifts_the_indices() -> None:
    wide, narrow = load("Ant").contract, load("Ant", observe_y=False).contract
    assert wide is not None
    assert narrow is not None
    obs = wide.initial(jax.random.key(0), 5)
    action = jnp.ones((5, 8)) * 0.3
    np.testing.assert_array_equal(
        wide.reward(obs, action, obs),
        narrow.reward(obs[:, 1:], action, obs[:, 1:]),
    )
    assert narrow.initial(jax.random.key(0), 5).shape == (5, 27)


def test_point_reward_comes_from_the_next_observation() -> None:
    contract = load("Point2D").contract
    assert contract is not None
    obs, action = np.zeros((1, 2)), np.zeros((1, 2))
    assert contract.reward(obs, action, np.array([[3.0, 4.0]])) == -25.0


@each_task
def test_contracts_are_values(name: str) -> None:
    """Equal tasks have equal, hashable contracts: jit can treat them as static."""
    one, two = load(name), load(name)
    assert one == two
    assert hash(one.contract) == hash(two.contract)
    assert hash(one.action_box) == hash(two.action_box)
    assert isinstance(one.contract, Contract)
    assert one.contract != load(name, alive_bonus=0.5).contract


def test_action_box_clips_then_maps() -> None:
    box = ActionBox(low=(-0.1, 0.0), high=(0.1, 4.0))
    actions = np.array([[-3.0, -1.0], [0.0, 0.0], [0.5, 9.0]], np.float32)
    due = np.array([[-0.1, 0.0], [0.0, 2.0], [0.05, 4.0]], np.float32)
    np.testing.assert_allclose(box.to_box(actions), due, rtol=1e-6)
    mapped = jax.jit(box.to_box)(jnp.asarray(actions))
    assert mapped.dtype == jnp.float32
    np.testing.assert_allclose(mapped, due, rtol=1e-6)
    assert box.to_box(actions).dtype == np.float32
