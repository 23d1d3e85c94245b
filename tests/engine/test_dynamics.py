"""The one interface of learned dynamics: every kind of member against plain loops."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import Mimic, hand_made_task

from pombu.data import Normaliser
from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.ensemble import Layers, Members, init_ensemble, materialise
from pombu.dynamics.gaussian import init_gaussian, predict_gaussian
from pombu.dynamics.model import Dynamics
from pombu.nn import MLP, StochasticPolicy, init_mlp, xavier
from pombu.rollout.imagine import ImaginationRules, imagine

MEMBERS, ROWS = 3, 5


def reward(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 0] - obs[..., 1] ** 2 + action[..., 0]


def beyond(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 1] > 0.2


def members(kind: str, outputs: int = 2) -> Members:
    if kind == "gaussian":
        return init_gaussian(jax.random.key(5), MEMBERS, 3, outputs, (6,))
    return materialise(init_ensemble(jax.random.key(5), MEMBERS, 3, outputs, (6,)))


def make(kind: str, learned: bool = False) -> Dynamics:
    draw = np.random.default_rng(2)

    def scale(dim: int) -> Normaliser:
        mean, std = draw.normal(size=dim) / 4, 0.5 + draw.random(dim)
        return Normaliser(jnp.float32(mean), jnp.float32(std))

    units = scale(2), scale(1), scale(2), scale(1) if learned else None
    contract = Mimic(reward, beyond)
    return Dynamics(
        members(kind, 2 + learned), *units, jnp.float32(1.0), contract=contract
    )


def rows(*lead: int) -> tuple[jax.Array, jax.Array]:
    one, two = jax.random.split(jax.random.key(1))
    return jax.random.normal(one, (*lead, 2)), jax.random.normal(two, (*lead, 1))


def by_hand(
    dynamics: Dynamics, member: int, state: Any, action: Any, noise: Any
) -> tuple[np.ndarray, float, bool]:
    """One step of one row in one member."""
    units = dynamics.observation, dynamics.action
    x = np.concatenate(
        [(v - u.mean) / u.std for v, u in zip((state, action), units, strict=True)]
    )
    single: Any = jax.tree.map(lambda leaf: leaf[member], dynamics.members)
    if isinstance(single, Layers):
        output = np.asarray(single.outputs(jnp.asarray(x[None]), "float32")[0][0])
    else:
        mean, log_variance = predict_gaussian(single, jnp.asarray(x[None]))
        output = np.asarray(mean[0] + noise * jnp.sqrt(jnp.exp(log_variance[0])))
    following = state + output[:2] * dynamics.delta.std + dynamics.delta.mean
    earned = float(reward(state, action, following))
    if dynamics.reward is not None:
        earned = float((output[2] * dynamics.reward.std + dynamics.reward.mean)[0])
    return following, earned, bool(beyond(state, action, following))


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", ["deterministic", "gaussian"])
def test_steps_are_those_of_a_loop(kind: str, learned: bool) -> None:
    dynamics, (states, actions) = make(kind, learned), rows(ROWS)
    own_states, own_actions = rows(MEMBERS, ROWS)
    noise = jax.random.normal(jax.random.key(3), (MEMBERS, ROWS, 2 + learned))
    together = dynamics.step(states, actions)
    moved = dynamics.move(own_states, own_actions, noise)
    assert together.ends.any()
    assert not together.ends.all()
    for k in range(MEMBERS):
        for n in range(ROWS):
            given = {
                "same rows": (together, states[n], actions[n], 0.0),
                "own rows": (moved, own_states[k, n], own_actions[k, n], noise[k, n]),
            }
            for found, state, action, draw in given.values():
                state, earned, ended = by_hand(dynamics, k, state, action, draw)
                np.testing.assert_allclose(found.states[k, n], state, atol=1e-5)
                np.testing.assert_allclose(found.rewards[k, n], earned, atol=1e-5)
                assert bool(found.ends[k, n]) == ended


@pytest.mark.parametrize("kind", ["deterministic", "gaussian"])
def test_unstacked_members_predict_the_same(kind: str) -> None:
    dynamics, key = make(kind), jax.random.key(7)
    loop = dynamics.unstack()
    assert loop.members.count == MEMBERS
    for one, other in (
        (dynamics.step(*rows(ROWS)), loop.step(*rows(ROWS))),
        (
            dynamics.sample(*rows(MEMBERS, ROWS), key),
            loop.sample(*rows(MEMBERS, ROWS), key),
        ),
    ):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)
    alone = dynamics.only(jnp.asarray(1))
    np.testing.assert_allclose(
        alone.step(*rows(ROWS)).states[0], loop.step(*rows(ROWS)).states[1], atol=1e-6
    )


def test_draws_have_the_members_mean_and_deviation() -> None:
    dynamics = make("gaussian")
    state, action = rows(1)
    many = 20_000
    states, actions = (
        jnp.broadcast_to(x, (MEMBERS, many, x.shape[-1])) for x in (state, action)
    )
    drawn = np.asarray(dynamics.sample(states, actions, jax.random.key(0)).states)
    mean = np.asarray(dynamics.step(state, action).states)[:, 0]
    x = jnp.concatenate(
        [dynamics.observation.normalise(state), dynamics.action.normalise(action)], -1
    )
    for k, single in enumerate(dynamics.members.unstack()):
        log_std = single.outputs(x, "float32")[1]
        assert log_std is not None
        std = np.exp(np.asarray(log_std)[0]) * np.asarray(dynamics.delta.std)
        np.testing.assert_allclose(drawn[k].std(0), std, rtol=0.03)
        assert (np.abs(drawn[k].mean(0) - mean[k]) < 4 * std / np.sqrt(many)).all()


def test_deterministic_members_draw_what_they_predict() -> None:
    dynamics, given = make("deterministic"), rows(MEMBERS, ROWS)
    one = dynamics.sample(*given, jax.random.key(0))
    np.testing.assert_array_equal(one.states, dynamics.move(*given).states)


class Squashed(eqx.Module):
    """A tanh-Gaussian policy, which is no GaussianPolicy."""

    net: MLP

    def sample(self, observation: Any, key: Any) -> tuple[Any, Any]:
        free = self.net(observation)
        free = free + jax.random.normal(key, free.shape)
        action = jnp.tanh(free)
        return action, self.log_prob(observation, action)

    def log_prob(self, observation: Any, action: Any) -> Any:
        free = jnp.arctanh(action)
        gap = free - self.net(observation)
        density = -0.5 * (gap**2 + jnp.log(2 * jnp.pi))
        return jnp.sum(density - jnp.log(1 - action**2), -1)


def test_any_policy_with_sample_and_log_prob_imagines() -> None:
    policy = Squashed(init_mlp(jax.random.key(0), (2, 4, 1), xavier))
    assert isinstance(policy, StochasticPolicy)
    dynamics = replace(make("deterministic"), contract=Mimic(reward))
    box = hand_made_task(None, 4).action_box
    rules = ImaginationRules(box, ReturnConfig(reward_clip=None), 4, 1e5)
    starts, evenly = rows(ROWS)[0], jnp.full(MEMBERS, 1 / MEMBERS)
    imagined = imagine(policy, None, dynamics, rules, starts, evenly, jax.random.key(2))
    assert float(jnp.abs(imagined.actions).max()) < 1.0
    for h in range(4):
        state = dynamics.observation.restore(imagined.observations[h])
        ahead = dynamics.step(state, box.to_box(imagined.actions[h]))
        np.testing.assert_allclose(
            imagined.raw_rewards[h], ahead.rewards.mean(0), atol=1e-5
        )
        expected = policy.log_prob(imagined.observations[h], imagined.actions[h])
        np.testing.assert_allclose(imagined.log_probs[h], expected, atol=1e-4)
