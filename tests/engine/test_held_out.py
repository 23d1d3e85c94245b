"""Members' predictions of real episodes, in a world whose answers are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from test_estimates import GAMMA, rules, still

from pombu.envs import Episode
from pombu.nn import init_value, predict_value
from pombu.rollout.held_out import real_steps

SCALE = 5.0
"""Standard deviation of returns in the world of `test_estimates`."""


def episode(steps: int, terminated: bool, move: float = 0.25) -> Episode:
    """The first entry moves by `move` a step, where members say 0, 0.5 and 1."""
    observations = np.zeros((steps + 1, 2), np.float32)
    observations[:, 0] = move * np.arange(steps + 1)
    return Episode(
        observations, np.zeros((steps, 1), np.float32), observations[1:, 0], terminated
    )


def value_of(network: Any, states: np.ndarray) -> np.ndarray:
    return np.asarray(predict_value(network, jnp.asarray(states, jnp.float32)))


def test_backups_are_the_loops() -> None:
    value = init_value(jax.random.key(0), 2, (4,))
    given = [episode(4, False), episode(2, True)]
    found = real_steps(value, still(0.5), rules(), given, 6)
    assert found.member_q.shape == (3, 2, 6)
    np.testing.assert_array_equal(found.lengths, [4, 2])
    np.testing.assert_array_equal(found.terminated, [False, True])
    for e, one in enumerate(given):
        for t in range(len(one)):
            came = one.observations[t + 1]
            later = value_of(value, came[None])[0]
            if one.terminated and t == len(one) - 1:
                later = 0.0
            due = one.rewards[t] / SCALE + GAMMA * later
            np.testing.assert_allclose(found.real_q[e, t], due, rtol=1e-5, atol=1e-6)
            for k, drift in enumerate((0.0, 0.5, 1.0)):
                after = one.observations[t] + np.array([drift, 0.0])
                due = after[0] / SCALE + GAMMA * value_of(value, after[None])[0]
                np.testing.assert_allclose(
                    found.member_q[k, e, t], due, rtol=1e-5, atol=1e-6
                )


def test_nothing_is_expected_after_a_members_end() -> None:
    value = init_value(jax.random.key(0), 2, (4,))
    ending = still(0.5, lambda obs, action, next_obs: next_obs[..., 0] > 0.9)
    found = real_steps(value, ending, rules(), [episode(1, False)], 1)
    np.testing.assert_allclose(found.member_q[2, 0, 0], 1.0 / SCALE, rtol=1e-6)
    assert abs(found.member_q[1, 0, 0] - 0.5 / SCALE) > 1e-4
