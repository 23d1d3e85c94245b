"""Imagined trajectories against a plain loop, and what happens to broken ones."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from tiny import Mimic, hand_made_task, same, uniform

from pombu import q_uncertainty
from pombu.config import ReturnConfig
from pombu.data import Normaliser
from pombu.imagination import Imagined, imagine, imagine_in_shards
from pombu.models import Layers, init_ensemble, materialise
from pombu.policies import init_policy
from pombu.returns import scaled_reward, targets
from pombu.values import init_value, predict
from pombu.workers import Workers, jit
from pombu.worlds import Rules, World, predict_step

RETURNS = ReturnConfig(gamma=0.9, reward_clip=1.5)
MEMBERS = 3

_imagine = jit(imagine)


def quadratic(obs: Any, action: Any, next_obs: Any) -> Any:
    """A reward of everything a reward may depend on."""
    return next_obs[..., 0] - obs[..., 1] ** 2 - 0.1 * (action**2).sum(-1)


def far_right(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 0] > 0.8


def make_rules(contract: Any, horizon: int, runaway: float = 1e5) -> Rules:
    task = hand_made_task(contract, horizon)
    return Rules(contract, task.action_box, RETURNS, horizon, runaway, "float32")


def make_world() -> World:
    ensemble = init_ensemble(jax.random.key(5), MEMBERS, 3, 2, (6, 6))
    draw = np.random.default_rng(2)

    def scale(dim: int) -> Normaliser:
        mean, std = draw.normal(size=dim) / 4, 0.5 + draw.random(dim)
        return Normaliser(jnp.float32(mean), jnp.float32(std))

    return World(
        materialise(ensemble), scale(2), scale(1), scale(2), None, jnp.float32(1.7)
    )


def plain(world: World) -> reference.World:
    def scale(normaliser: Normaliser) -> reference.Scale:
        return reference.Scale(*reference.doubles(normaliser))

    members = []
    for k in range(world.members):
        layers = zip(*world.layers, strict=True)
        arrays = [x[k] for layer in layers for x in layer]
        members.append([np.asarray(x, np.float64) for x in arrays])
    return reference.World(
        members,
        scale(world.observation),
        scale(world.action),
        scale(world.delta),
        float(world.return_std),
    )


POLICY = init_policy(jax.random.key(0), 2, 1, (5,), log_std=-0.5)
VALUE = init_value(jax.random.key(1), 2, (5,))


@pytest.mark.parametrize("terminal", [None, far_right], ids=["endless", "ending"])
def test_equals_a_plain_loop_with_the_same_draws(terminal: Any) -> None:
    contract = Mimic(quadratic, terminal)
    world, rules = make_world(), make_rules(contract, 6)
    starts = jax.random.normal(jax.random.key(3), (8, 2)) - 0.5
    weights, key = jnp.array([0.5, 0.3, 0.2]), jax.random.key(4)
    imagined = _imagine(POLICY, VALUE, world, rules, starts, weights, key)
    expected = reference.imagine(
        reference.policy_of(POLICY),
        reference.network_of(VALUE),
        plain(world),
        hand_made_task(contract, 6),
        RETURNS,
        np.asarray(starts),
        weights,
        key,
    )
    expected["raw_rewards"] = expected.pop("raw")
    for name, array in expected.items():
        np.testing.assert_allclose(getattr(imagined, name), array, atol=2e-5)
    assert int(imagined.masked) == 0
    goals, loops = prepare(imagined), reference.targets(expected, RETURNS)
    counted = expected["weight"] > 0
    assert counted.all() == (terminal is None)
    for name, array in loops.items():
        np.testing.assert_allclose(
            np.asarray(getattr(goals, name))[counted], array[counted], atol=1e-4
        )


def prepare(imagined: Imagined, config: ReturnConfig = RETURNS) -> Any:
    return targets(
        imagined.rewards,
        imagined.values,
        imagined.local,
        imagined.continues,
        imagined.weight,
        config,
    )


def test_uncertainty_is_that_of_algorithm_1() -> None:
    """The members' rewards and next values along the trajectories, given to
    `pombu.q_uncertainty`."""
    world, rules = make_world(), make_rules(Mimic(quadratic), 5)
    starts = jax.random.normal(jax.random.key(3), (4, 2))
    imagined = _imagine(
        POLICY, VALUE, world, rules, starts, uniform(MEMBERS), jax.random.key(4)
    )
    rewards, next_values = [], []
    for observation, action in zip(
        imagined.observations, imagined.actions, strict=True
    ):
        state = world.observation.restore(observation)
        following, raw = predict_step(world, rules, state, rules.box.to_box(action))
        rewards.append(scaled_reward(raw, world.return_std, RETURNS))
        next_values.append(predict(VALUE, world.observation.normalise(following)))
    expected = q_uncertainty(
        jnp.stack(rewards, 1), jnp.stack(next_values, 1), RETURNS.gamma
    )
    free = replace(RETURNS, variance_clip=None)
    np.testing.assert_allclose(
        prepare(imagined, free).uncertainty, expected, rtol=2e-3, atol=1e-5
    )


def constant_world(deltas: list[list[float]]) -> World:
    """Members that add a constant of their own, whatever the state and action."""
    changes = jnp.array(deltas)
    layers = Layers((jnp.zeros((len(deltas), 3, 2)),), (changes,))
    same_units = [Normaliser(jnp.zeros(d), jnp.ones(d)) for d in (2, 1, 2)]
    return World(layers, *same_units, None, jnp.float32(1.0))


def position(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 1]


def test_next_states_are_drawn_by_weight_and_rewards_are_the_mean() -> None:
    """Members move by 0, 1 and 2; in 6000 draws their shares are within 4 sigma."""
    world = constant_world([[0.0, 0.0], [1.0, 3.0], [2.0, 6.0]])
    rules = replace_returns(make_rules(Mimic(position), 3), ReturnConfig(gamma=0.9))
    weights = np.array([0.7, 0.2, 0.1])
    starts = jnp.zeros((3000, 2))
    imagined = _imagine(
        POLICY, VALUE, world, rules, starts, jnp.asarray(weights), jax.random.key(0)
    )
    states = np.asarray(imagined.observations)
    moves = np.rint(states[1:, :, 0] - states[:-1, :, 0]).astype(int).ravel()
    shares = np.bincount(moves, minlength=3) / len(moves)
    sigma = np.sqrt(weights * (1 - weights) / len(moves))
    assert (np.abs(shares - weights) < 4 * sigma).all()
    mean = np.clip(states[..., 1:] + [0.0, 3.0, 6.0], -5, 5).mean(-1)
    np.testing.assert_allclose(imagined.rewards, mean, atol=1e-5)


def replace_returns(rules: Rules, returns: ReturnConfig) -> Rules:
    return Rules(
        rules.contract, rules.box, returns, rules.horizon, rules.runaway, "float32"
    )


def assert_clean(imagined: Imagined) -> None:
    for leaf in jax.tree.leaves(imagined):
        assert bool(jnp.isfinite(leaf).all())
    for leaf in jax.tree.leaves(prepare(imagined)):
        assert bool(jnp.isfinite(leaf).all())


def test_runaways_and_non_finite_trajectories_are_masked_and_counted() -> None:
    """Moving right by 1 from 0, 8 and NaN with a bound at 10 in 5 steps."""
    rules = make_rules(Mimic(position), 5, runaway=10.0)
    world = constant_world([[1.0, 0.1], [1.0, -0.1]])
    starts = jnp.array([[0.0, 0.0], [8.0, 0.0], [jnp.nan, 0.0], [4.0, 1.0]])
    imagined = _imagine(
        POLICY, VALUE, world, rules, starts, uniform(2), jax.random.key(0)
    )
    assert imagined.weight.sum(0).tolist() == [5.0, 0.0, 0.0, 5.0]
    assert int(imagined.masked) == 2
    assert_clean(imagined)
    sound = _imagine(
        POLICY, VALUE, world, rules, starts[:1], uniform(2), jax.random.key(0)
    )
    assert int(sound.masked) == 0


@pytest.mark.parametrize("broken", [jnp.nan, jnp.inf, 1e7])
def test_a_broken_member_masks_even_if_it_is_never_drawn(broken: float) -> None:
    """It would spoil the mean reward and the local uncertainty all the same."""
    rules = make_rules(Mimic(position), 3)
    world = constant_world([[1.0, 0.0], [broken, 0.0]])
    imagined = _imagine(
        POLICY,
        VALUE,
        world,
        rules,
        jnp.zeros((2, 2)),
        jnp.array([1.0, 0.0]),
        jax.random.key(0),
    )
    assert int(imagined.masked) == 2
    assert_clean(imagined)


def test_what_comes_after_an_end_neither_masks_nor_leaves_a_nan() -> None:
    """Ends at 2; from 3 on the reward is no number and at 5 the state would be lost."""

    def reward(obs: Any, action: Any, next_obs: Any) -> Any:
        return jnp.sqrt(2.5 - next_obs[..., 0])

    def ends(obs: Any, action: Any, next_obs: Any) -> Any:
        return next_obs[..., 0] >= 2.0

    rules = make_rules(Mimic(reward, ends), 8, runaway=5.0)
    imagined = _imagine(
        POLICY,
        VALUE,
        constant_world([[1.0, 0.0]]),
        rules,
        jnp.zeros((2, 2)),
        uniform(1),
        jax.random.key(0),
    )
    assert int(imagined.masked) == 0
    assert imagined.weight[:, 0].tolist() == [1.0, 1.0] + [0.0] * 6
    assert imagined.continues[:, 0].tolist() == [1.0] + [0.0] * 7
    assert_clean(imagined)
    expected = [np.sqrt(1.5) + 0.9 * np.sqrt(0.5), np.sqrt(0.5)]
    scaled = prepare(imagined, replace(RETURNS, reward_clip=None)).returns[:2, 0]
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)


def test_one_member_is_never_uncertain() -> None:
    rules = make_rules(Mimic(quadratic), 4)
    world = constant_world([[0.3, -0.1]])
    imagined = _imagine(
        POLICY, VALUE, world, rules, jnp.ones((3, 2)), uniform(1), jax.random.key(0)
    )
    assert float(jnp.abs(imagined.local).max()) == 0.0
    assert float(prepare(imagined).uncertainty.max()) == 0.0


def test_shards_are_independent_parts_whoever_works_on_them() -> None:
    world, rules = make_world(), make_rules(Mimic(quadratic), 6)
    starts = jax.random.normal(jax.random.key(3), (8, 2))
    key = jax.random.key(4)
    arguments: Any = (POLICY, VALUE, world, rules, starts, uniform(MEMBERS), key, 2)
    joined = imagine_in_shards(*arguments, Workers(1))
    assert same(joined, imagine_in_shards(*arguments, Workers(2)))
    for shard, part in enumerate((starts[:4], starts[4:])):
        alone = _imagine(
            POLICY,
            VALUE,
            world,
            rules,
            part,
            uniform(MEMBERS),
            jax.random.fold_in(key, shard),
        )
        columns = slice(4 * shard, 4 * shard + 4)
        assert same(joined.rewards[:, columns], alone.rewards)
        assert same(joined.observations[:, columns], alone.observations)
