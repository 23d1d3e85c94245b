"""Imagined trajectories against a plain loop, and what happens to broken ones."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from tiny import Mimic, hand_made_task, same, uniform

from pombu import q_uncertainty
from pombu.data import Normaliser
from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.ensemble import Layers, init_ensemble, materialise
from pombu.dynamics.model import Dynamics
from pombu.nn import init_policy, init_value, predict_value
from pombu.parallel import Workers, jit
from pombu.rollout.imagine import (
    ImaginationRules,
    Imagined,
    imagine,
    imagine_in_shards,
)
from pombu.rollout.returns import scaled_reward, targets

RETURNS = ReturnConfig(gamma=0.9, reward_clip=1.5)
MEMBERS, HORIZON, NUMBER, RUNAWAY = 3, 6, 8, 100.0
"""The same for all tests, so that they share what is compiled."""

_imagine = jit(imagine)


def quadratic(obs: Any, action: Any, next_obs: Any) -> Any:
    """A reward of everything a reward may depend on."""
    return next_obs[..., 0] - obs[..., 1] ** 2 - 0.1 * (action**2).sum(-1)


def far_right(obs: Any, action: Any, next_obs: Any) -> Any:
    return next_obs[..., 0] > 0.8


ENDLESS, ENDING = Mimic(quadratic), Mimic(quadratic, far_right)


BOX = hand_made_task(None, HORIZON).action_box
RULES = ImaginationRules(BOX, RETURNS, HORIZON, RUNAWAY)


def make_world() -> Dynamics:
    ensemble = init_ensemble(jax.random.key(5), MEMBERS, 3, 2, (6, 6))
    draw = np.random.default_rng(2)

    def scale(dim: int) -> Normaliser:
        mean, std = draw.normal(size=dim) / 4, 0.5 + draw.random(dim)
        return Normaliser(jnp.float32(mean), jnp.float32(std))

    return Dynamics(
        materialise(ensemble),
        scale(2),
        scale(1),
        scale(2),
        None,
        jnp.float32(1.7),
        contract=ENDLESS,
    )


def plain(dynamics: Dynamics) -> reference.Dynamics:
    def scale(normaliser: Normaliser) -> reference.Scale:
        return reference.Scale(*reference.doubles(normaliser))

    members = []
    for k in range(dynamics.members.count):
        networks: Any = dynamics.members
        layers = zip(networks.weights, networks.biases, strict=True)
        arrays = [x[k] for layer in layers for x in layer]
        members.append([np.asarray(x, np.float64) for x in arrays])
    return reference.Dynamics(
        members,
        scale(dynamics.observation),
        scale(dynamics.action),
        scale(dynamics.delta),
        float(dynamics.return_std),
    )


POLICY = init_policy(jax.random.key(0), 2, 1, (5,), log_std=-0.5)
VALUE = init_value(jax.random.key(1), 2, (5,))
STARTS = jax.random.normal(jax.random.key(3), (NUMBER, 2)) - 0.5


def imagined_in(
    dynamics: Dynamics,
    contract: Any = ENDLESS,
    starts: Any = STARTS,
    weights: Any = None,
    seed: int = 4,
) -> Imagined:
    weights = (
        uniform(dynamics.members.count) if weights is None else jnp.asarray(weights)
    )
    imagined: Imagined = _imagine(
        POLICY,
        VALUE,
        replace(dynamics, contract=contract),
        RULES,
        starts,
        weights,
        jax.random.key(seed),
    )
    return imagined


def prepare(imagined: Imagined, config: ReturnConfig = RETURNS) -> Any:
    return targets(
        imagined.rewards,
        imagined.values,
        imagined.local,
        imagined.continues,
        imagined.weight,
        config,
    )


@pytest.mark.parametrize("contract", [ENDLESS, ENDING], ids=["endless", "ending"])
def test_equals_a_plain_loop_with_the_same_draws(contract: Any) -> None:
    dynamics, weights = make_world(), jnp.array([0.5, 0.3, 0.2])
    imagined = imagined_in(dynamics, contract, weights=weights)
    expected = reference.imagine(
        reference.policy_of(POLICY),
        reference.network_of(VALUE),
        plain(dynamics),
        hand_made_task(contract, HORIZON),
        RETURNS,
        np.asarray(STARTS),
        weights,
        jax.random.key(4),
    )
    expected["raw_rewards"] = expected.pop("raw")
    for name, array in expected.items():
        np.testing.assert_allclose(getattr(imagined, name), array, atol=2e-5)
    assert int(imagined.masked) == 0
    goals, loops = prepare(imagined), reference.targets(expected, RETURNS)
    counted = expected["weight"] > 0
    assert counted.all() == (contract is ENDLESS)
    for name, array in loops.items():
        np.testing.assert_allclose(
            np.asarray(getattr(goals, name))[counted], array[counted], atol=1e-4
        )


def test_uncertainty_is_that_of_algorithm_1() -> None:
    """The members' rewards and next values along the trajectories, given to
    `pombu.q_uncertainty`."""
    dynamics = make_world()
    imagined = imagined_in(dynamics)
    rewards, next_values = [], []
    for observation, action in zip(
        imagined.observations, imagined.actions, strict=True
    ):
        state = dynamics.observation.restore(observation)
        following, raw, _ = dynamics.step(state, BOX.to_box(action))
        rewards.append(scaled_reward(raw, dynamics.return_std, RETURNS))
        next_values.append(
            predict_value(VALUE, dynamics.observation.normalise(following))
        )
    expected = q_uncertainty(
        jnp.stack(rewards, 1), jnp.stack(next_values, 1), RETURNS.gamma
    )
    free = replace(RETURNS, variance_clip=None)
    np.testing.assert_allclose(
        prepare(imagined, free).uncertainty, expected, rtol=2e-3, atol=1e-5
    )


def constant_world(*deltas: tuple[float, float]) -> Dynamics:
    """Members that add a constant of their own, whatever the state and action."""
    shapes = [(len(deltas), i, o) for i, o in ((3, 6), (6, 6), (6, 2))]
    silent = [jnp.zeros((len(deltas), 6))] * 2
    layers = Layers(
        tuple(jnp.zeros(shape) for shape in shapes), (*silent, jnp.array(deltas))
    )
    same_units = [Normaliser(jnp.zeros(d), jnp.ones(d)) for d in (2, 1, 2)]
    return Dynamics(layers, *same_units, None, jnp.float32(1.0), contract=ENDLESS)


def test_next_states_are_drawn_by_weight_and_rewards_are_the_mean() -> None:
    """Members move by 0, 1/2 and 1; of 4000 draws their shares are within 4 sigma."""
    dynamics = constant_world((0.0, 0.0), (0.5, 0.0), (1.0, 0.0))
    weights = np.array([0.7, 0.2, 0.1])
    moves = []
    for seed in range(100):
        imagined = imagined_in(
            dynamics, starts=0.0 * STARTS, weights=weights, seed=seed
        )
        x = np.asarray(imagined.observations[..., 0])
        moves.append(np.rint(2 * np.diff(x, axis=0)).astype(int).ravel())
        boxed = BOX.to_box(imagined.actions)
        effort = 0.1 * np.asarray(boxed[..., 0]) ** 2
        by_member = [np.clip(x + d - effort, -1.5, 1.5) for d in (0.0, 0.5, 1.0)]
        np.testing.assert_allclose(imagined.rewards, np.mean(by_member, 0), atol=1e-5)
    drawn = np.concatenate(moves)
    assert len(drawn) == 4000
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    sigma = np.sqrt(weights * (1 - weights) / len(drawn))
    assert (np.abs(shares - weights) < 4 * sigma).all()


def assert_clean(imagined: Imagined) -> None:
    for leaf in jax.tree.leaves((imagined, prepare(imagined))):
        assert bool(jnp.isfinite(leaf).all())


def test_runaways_and_non_finite_trajectories_are_masked_and_counted() -> None:
    """Moving right by 1 for 6 steps, with a bound at 100, from 0, 98, NaN and 4."""
    dynamics = constant_world((1.0, 0.1), (1.0, -0.1), (1.0, 0.0))
    starts = jnp.zeros((NUMBER, 2)).at[:4, 0].set(jnp.array([0.0, 98.0, jnp.nan, 4.0]))
    imagined = imagined_in(dynamics, starts=starts)
    assert imagined.weight.sum(0).tolist() == [6.0, 0.0, 0.0, 6.0, 6.0, 6.0, 6.0, 6.0]
    assert int(imagined.masked) == 2
    assert_clean(imagined)
    assert int(imagined_in(dynamics, starts=0.0 * STARTS).masked) == 0


@pytest.mark.parametrize("unit", [1e-6, 1.0, 3e3, 1e6])
def test_the_bound_is_in_the_units_of_the_data(unit: float) -> None:
    """Starts and steps in another unit are masked as they are in the first one."""
    dynamics = constant_world((unit, 0.0), (unit, 0.0), (unit, 0.0))
    units = Normaliser(jnp.zeros(2), jnp.full(2, unit))
    dynamics = eqx.tree_at(lambda d: d.observation, dynamics, units)
    starts = jnp.zeros((NUMBER, 2)).at[:2, 0].set(unit * jnp.array([0.0, 98.0]))
    imagined = imagined_in(dynamics, starts=starts)
    assert int(imagined.masked) == 1
    assert float(imagined.weight[:, 1].sum()) == 0.0


@pytest.mark.parametrize("broken", [jnp.nan, jnp.inf, 1e7])
def test_a_broken_member_masks_even_if_it_is_never_drawn(broken: float) -> None:
    """It would spoil the mean reward and the local uncertainty all the same."""
    dynamics = constant_world((0.1, 0.0), (0.1, 0.0), (broken, 0.0))
    imagined = imagined_in(dynamics, weights=[0.5, 0.5, 0.0])
    assert int(imagined.masked) == NUMBER
    assert_clean(imagined)


def test_what_comes_after_an_end_neither_masks_nor_leaves_a_nan() -> None:
    """Moving right by 25 from 0, ending beyond 40: the rewards after the third step are
    no numbers, and the fifth state would have run away."""

    def reward(obs: Any, action: Any, next_obs: Any) -> Any:
        return jnp.sqrt(62.5 - next_obs[..., 0]) / 5.0

    def ends(obs: Any, action: Any, next_obs: Any) -> Any:
        return next_obs[..., 0] > 40.0

    dynamics = constant_world((25.0, 0.0), (25.0, 0.0), (25.0, 0.0))
    imagined = imagined_in(dynamics, Mimic(reward, ends), 0.0 * STARTS)
    assert int(imagined.masked) == 0
    assert imagined.weight[:, 0].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert imagined.continues[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert_clean(imagined)
    first, second = np.sqrt(37.5) / 5.0, np.sqrt(12.5) / 5.0
    np.testing.assert_allclose(
        prepare(imagined).returns[:2, 0], [first + 0.9 * second, second], rtol=1e-5
    )


def test_one_member_is_never_uncertain() -> None:
    imagined = imagined_in(constant_world((0.3, -0.1)))
    assert float(jnp.abs(imagined.local).max()) == 0.0
    assert float(prepare(imagined).uncertainty.max()) == 0.0


def test_shards_are_independent_parts_whoever_works_on_them() -> None:
    dynamics, key = make_world(), jax.random.key(4)
    starts = jnp.concatenate([STARTS, -STARTS])
    arguments: Any = (
        POLICY,
        VALUE,
        dynamics,
        RULES,
        starts,
        uniform(MEMBERS),
    )
    joined = imagine_in_shards(*arguments, key, 2, Workers(1))
    assert same(joined, imagine_in_shards(*arguments, key, 2, Workers(2)))
    for shard, part in enumerate((STARTS, -STARTS)):
        own_key = jax.random.fold_in(key, shard)
        alone = _imagine(*arguments[:4], part, uniform(MEMBERS), own_key)
        columns = slice(NUMBER * shard, NUMBER * (shard + 1))
        assert same(joined.rewards[:, columns], alone.rewards)
        assert same(joined.observations[:, columns], alone.observations)


def test_a_trajectory_may_keep_its_member() -> None:
    dynamics, rules = make_world(), replace(RULES, keep_member=True)
    arguments = (POLICY, VALUE, dynamics, rules, STARTS, uniform(MEMBERS))
    kept = _imagine(*arguments, jax.random.key(4))
    sound = np.flatnonzero(kept.weight[0])
    states = dynamics.observation.restore(kept.observations)[:, sound]
    boxed = BOX.to_box(kept.actions)[:, sound]
    followed = []
    for before, action, after in zip(states, boxed, states[1:], strict=False):
        ahead = dynamics.step(before, action).states
        followed.append(np.argmin(np.abs(ahead - after).max(-1), 0))
        nearest = np.take_along_axis(np.asarray(ahead), followed[-1][None, :, None], 0)[
            0
        ]
        np.testing.assert_allclose(nearest, after, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(followed, np.tile(followed[0], (len(followed), 1)))
    assert len(set(followed[0].tolist())) > 1
    # All other draws are those of a member per step.
    stepwise = imagined_in(dynamics)
    both = np.flatnonzero(kept.weight[0] * stepwise.weight[0])
    np.testing.assert_array_equal(kept.actions[0, both], stepwise.actions[0, both])
    np.testing.assert_array_equal(kept.local[0, both], stepwise.local[0, both])
