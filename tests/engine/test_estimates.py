"""Q-values of chosen pairs in a model whose answers are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import Mimic, hand_made_task

from pombu.data import Normaliser
from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.model import Dynamics
from pombu.nn import init_policy, init_value
from pombu.rollout.imagine import ImaginationRules
from pombu.rollout.q_value import q_returns, q_uncertainty

GAMMA, HORIZON = 0.9, 6
STATES = jnp.array([[1.0, 0.0], [3.0, 0.0]])
ACTIONS = jnp.zeros((2, 1))


def still(drift: float = 0.0, terminal: Any = None) -> Dynamics:
    """Three members in which nothing moves but the first entry, by 0, 1, 2 drifts."""
    units = [Normaliser(jnp.zeros(d), jnp.ones(d)) for d in (2, 1, 2)]
    biases = drift * jnp.arange(3.0)[:, None] * jnp.array([1.0, 0.0])
    layers = Layers((jnp.zeros((3, 3, 2)),), (biases,))
    contract = Mimic(lambda obs, action, next_obs: next_obs[..., 0], terminal)
    return Dynamics(layers, *units, None, jnp.float32(5.0), contract=contract)


def rules(horizon: int = HORIZON, clip: float = 100.0) -> ImaginationRules:
    returns = ReturnConfig(gamma=GAMMA, reward_clip=clip, scale_rewards=True)
    task = hand_made_task(None, horizon)
    return ImaginationRules(task.action_box, returns, horizon, 1e5)


def networks() -> tuple[Any, Any]:
    one, two = jax.random.split(jax.random.key(0))
    return init_policy(one, 2, 1, (4,)), init_value(two, 2, (4,))


def returns(
    dynamics: Dynamics, given: ImaginationRules
) -> tuple[np.ndarray, np.ndarray]:
    key = jax.random.key(1)
    found, sound = q_returns(*networks(), dynamics, given, STATES, ACTIONS, key)
    return np.asarray(found), np.asarray(sound)


def test_a_constant_reward_sums_up_geometrically() -> None:
    found, sound = returns(still(), rules())
    whole = (1 - GAMMA**HORIZON) / (1 - GAMMA)
    np.testing.assert_allclose(found, [whole, 3 * whole], rtol=1e-5)
    assert sound.all()


def test_one_step_is_the_members_mean_reward() -> None:
    found, _ = returns(still(0.5), rules(horizon=1))
    np.testing.assert_allclose(found, [1.5, 3.5], rtol=1e-6)


def test_nothing_follows_an_end() -> None:
    """The second state is beyond the edge, so its first step is the last one."""
    ending = still(terminal=lambda obs, action, next_obs: next_obs[..., 0] > 2.0)
    found, sound = returns(ending, rules())
    whole = (1 - GAMMA**HORIZON) / (1 - GAMMA)
    np.testing.assert_allclose(found, [whole, 3.0], rtol=1e-5)
    assert sound.all()


def test_members_that_agree_leave_no_doubt() -> None:
    arguments = (*networks(), still(), rules(), STATES, ACTIONS, 3, jax.random.key(2))
    np.testing.assert_allclose(q_uncertainty(*arguments), 0.0, atol=1e-4)


def test_one_step_is_as_unsure_as_the_members_differ() -> None:
    """Rewards differ by the drift, and with gamma 0 nothing else counts."""
    given = rules(horizon=1)
    nothing_later = ReturnConfig(gamma=1e-6, reward_clip=100.0, scale_rewards=True)
    given = ImaginationRules(given.box, nothing_later, 1, 1e5)
    arguments = (*networks(), still(0.5), given, STATES, ACTIONS, 1, jax.random.key(3))
    assert float(q_uncertainty(*arguments)[0]) == pytest.approx(
        np.std([1.0, 1.5, 2.0]), rel=1e-4
    )
