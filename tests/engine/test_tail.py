"""U_psi past the end of a branch: known answers, a tabular chain, and Point2D."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import CONFIG, Mimic, change, hand_made_task, run, same, uniform

from pombu.algorithms.pombu.learner import Learner
from pombu.data import Normaliser
from pombu.dynamics.config import ReturnConfig
from pombu.dynamics.ensemble import Layers
from pombu.dynamics.model import Dynamics
from pombu.envs import load
from pombu.errors import UsageError
from pombu.nn import VarianceValue, init_policy, init_variance, predict_variance
from pombu.optim.config import TailConfig
from pombu.optim.ppo import improve_variance, prepare, value_adam
from pombu.parallel import jit
from pombu.rollout.imagine import ImaginationRules, Imagined, imagine
from pombu.uncertainty.algorithm1 import local_uncertainty, propagate
from pombu.uncertainty.tabular import chain, pombu_bound
from pombu.uncertainty.tabular.posteriors import mean_values

OFFSETS = np.array([-1.0, 0.0, 2.0])
"""What each member of the probe adds to the first dimension in every step."""
RETURNS = ReturnConfig(
    gamma=0.9,
    bootstrap=True,
    reward_clip=None,
    scale_rewards=False,
    variance_clip=None,
)
KNOWN_U = OFFSETS.var() / (1.0 - RETURNS.gamma**2)
"""Rewards are the next first dimension, V is 0: d is the same in every step."""

_imagine = jit(imagine)


def probe_world() -> Dynamics:
    """Members that move the state by a constant of their own, whatever it is."""
    weights = jnp.zeros((3, 3, 2))
    biases = jnp.zeros((3, 2)).at[:, 0].set(jnp.asarray(OFFSETS, jnp.float32))
    units = [
        Normaliser(jnp.zeros(dim), jnp.full(dim, scale))
        for dim, scale in ((2, 10.0), (1, 1.0), (2, 1.0))
    ]
    contract = Mimic(lambda obs, action, next_obs: next_obs[..., 0] - obs[..., 0])
    layers = Layers((weights,), (biases,))
    return Dynamics(layers, *units, None, jnp.float32(1.0), contract=contract)


def probe_rules(horizon: int) -> ImaginationRules:
    box = hand_made_task(None, horizon).action_box
    return ImaginationRules(box, RETURNS, horizon, 1e5)


def imagine_probe(
    tail: VarianceValue | None, horizon: int, seed: int, limits: Any = None
) -> Imagined:
    starts = 3.0 * jax.random.normal(jax.random.key(seed), (64, 2))
    policy = init_policy(jax.random.key(0), 2, 1, (4,))
    imagined: Imagined = _imagine(
        policy,
        None,
        probe_world(),
        probe_rules(horizon),
        starts,
        uniform(3),
        jax.random.key(seed),
        limits,
        tail,
    )
    return imagined


def constant_tail(variance: float) -> VarianceValue:
    """U_psi that says the same everywhere: softplus(0) is log 2."""
    blank = jax.tree.map(jnp.zeros_like, init_variance(jax.random.key(0), 2, (4,)))
    return VarianceValue(blank.network, jnp.float32(variance / np.log(2.0)))


def test_the_last_step_is_continued() -> None:
    """Two steps, gamma = 1/2, U = 8 beyond: D = (3 + (4 + 8/4)/4, 4 + 8/4)."""
    d, beyond = jnp.array([[3.0], [4.0]]), jnp.array([8.0])
    assert propagate(d, 0.5, None, beyond)[:, 0].tolist() == [4.5, 6.0]
    ended = jnp.array([[1.0], [0.0]])
    assert propagate(d, 0.5, ended, beyond)[:, 0].tolist() == [4.0, 4.0]


def test_an_untrained_tail_adds_nothing() -> None:
    tail = init_variance(jax.random.key(1), 2, (4,))
    assert not predict_variance(tail, jnp.ones((5, 2))).any()


def test_the_known_tail_makes_every_step_of_a_branch_equally_uncertain() -> None:
    _, goals = prepare(imagine_probe(constant_tail(KNOWN_U), 5, 0), RETURNS)
    np.testing.assert_allclose(goals.variances, KNOWN_U, rtol=1e-4)
    _, without = prepare(imagine_probe(None, 5, 0), RETURNS)
    np.testing.assert_allclose(without.variances[-1], OFFSETS.var(), rtol=1e-4)


def test_a_branch_cut_by_the_time_limit_goes_on_with_u() -> None:
    limits = jnp.arange(64) % 5 + 1
    imagined = imagine_probe(constant_tail(KNOWN_U), 5, 0, limits)
    _, goals = prepare(imagined, RETURNS)
    counted = np.asarray(imagined.weight) > 0
    assert counted.sum() == int(limits.sum())
    np.testing.assert_allclose(np.asarray(goals.variances)[counted], KNOWN_U, rtol=1e-4)


def test_it_learns_the_known_u() -> None:
    """From branches of three steps, each continued by what was learned before."""
    config = TailConfig(use=True, hidden=(16,), epochs=10, minibatch=64)
    tail = init_variance(jax.random.key(1), 2, config.hidden)
    optimiser = value_adam(config).init(tail.network)
    for i in range(60):
        imagined = imagine_probe(tail, 3, i)
        batch, goals = prepare(imagined, RETURNS)
        tail, optimiser = improve_variance(
            tail, optimiser, batch, goals.variances, (0, i), 3e-3, config
        )
    found = predict_variance(tail, batch.observations)
    np.testing.assert_allclose(found.mean(), KNOWN_U, rtol=0.05)
    assert float(found.std()) < 0.05 * KNOWN_U


def test_chain_trajectories_cut_short_approach_u() -> None:
    """Algorithm 1 on half of the chain, U of the paper beyond: still U."""
    H, cut, count, gamma = 4, 2, 200_000, 0.9
    posterior, policy = chain(H)
    values = mean_values(posterior, policy, H, gamma)
    U = pombu_bound(posterior, policy, H, gamma)
    rng = np.random.default_rng(0)
    state, action = np.full(count, H), np.ones(count, int)
    local = []
    for h in range(cut):
        rewards = posterior.R[:, state, action]
        following = posterior.P[:, state, action] @ values[h + 1]
        q = (jnp.asarray(rewards), jnp.asarray(following))
        local.append(local_uncertainty(*q, gamma))
        member = rng.integers(0, 2, count)
        state = posterior.P[member, state, action].argmax(axis=-1)
        action = rng.integers(0, 2, count)
    beyond = (U[cut] * policy).sum(-1)[state]
    found = np.asarray(
        propagate(jnp.stack(local), gamma, None, jnp.asarray(beyond, jnp.float32))[0]
    )
    assert abs(found.mean() - U[0, H, 1]) < 4 * found.std() / np.sqrt(count)


def test_branches_of_ten_steps_are_as_uncertain_as_whole_episodes() -> None:
    """Point2D: sqrt(D) where a branch begins, continued after 10 steps and after 30."""
    config = change(
        CONFIG,
        env=replace(CONFIG.env, horizon=30),
        imagination__steps=10,
        imagination__trajectories=60,
        returns__bootstrap=True,
        returns__lam=0.95,
        tail=TailConfig(
            use=True,
            hidden=(16, 16),
            epochs=5,
            minibatch=60,
            learning_rate=3e-3,
            final_learning_rate=3e-3,
        ),
        value__minibatch=60,
        policy__minibatch=60,
        exploration__policies=0,
        updates=10,
    )
    learner = Learner(load(config.env), config)
    state, _ = run(learner, 0, 2)
    dynamics, tail = learner.dynamics(state), state.tail
    optimiser = state.tail_optimiser

    def branch(steps: int, seed: int) -> Imagined:
        starts = learner.task.contract.initial(jax.random.key(seed), 300)
        rules = replace(learner.rules, horizon=steps)
        imagined: Imagined = _imagine(
            state.policy,
            state.value,
            dynamics,
            rules,
            starts,
            uniform(3),
            jax.random.key(seed),
            None,
            tail,
        )
        return imagined

    for i in range(40):  # with everything else held fixed
        batch, goals = prepare(branch(10, i), config.returns)
        tail, optimiser = improve_variance(
            tail, optimiser, batch, goals.variances, (1, i), 3e-3, config.tail
        )
    roots = []
    for steps in (10, 30):
        _, goals = prepare(branch(steps, 1000), config.returns)
        roots.append(float(jnp.sqrt(goals.variances[0]).mean()))
    assert roots[0] == pytest.approx(roots[1], rel=0.1)


def test_the_tail_is_saved_with_the_state_and_repeats() -> None:
    config = change(
        CONFIG,
        returns__bootstrap=True,
        tail=TailConfig(use=True, hidden=(5,), minibatch=8),
    )
    learner = Learner(load(config.env), config)
    first, _ = run(learner, 0, 2)
    second, _ = run(learner, 0, 2)
    assert same(first, second)
    assert float(first.tail.scale) > 0


def test_a_tail_without_bootstrap_is_refused() -> None:
    with pytest.raises(UsageError, match=r"tail\.use.*returns\.bootstrap"):
        replace(CONFIG, tail=TailConfig(use=True))
