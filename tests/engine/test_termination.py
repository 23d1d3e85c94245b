"""Learned termination and stored starts, against plain loops over a probe task."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from test_imagination import (
    HORIZON,
    MEMBERS,
    NUMBER,
    POLICY,
    RETURNS,
    RULES,
    STARTS,
    VALUE,
    make_world,
    plain,
    quadratic,
)
from tiny import Mimic, hand_made_task

from pombu.data import Normaliser, learn_from, no_experience
from pombu.dynamics.model import (
    Dynamics,
    fit_termination,
    init_termination,
    network_of,
    says_ended,
)
from pombu.envs import Episode
from pombu.nn import MLP, predict_value
from pombu.optim.objectives import conservative_surrogate, value_loss
from pombu.optim.ppo import Batch, likelihood_ratio, prepare
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.rollout.imagine import Imagined, imagine
from pombu.rollout.plan import branch_starts, real_starts

LAM = replace(RETURNS, lam=0.8, bootstrap=True)
LIMITS = jnp.arange(NUMBER) % HORIZON + 1


def right_of(bound: float, units: Normaliser) -> MLP:
    """A classifier that says by hand: the first entry is larger than `bound`."""
    weight = jnp.array([[units.std[0]], [0.0]])
    return MLP((weight,), (jnp.array([units.mean[0] - bound]),))


@pytest.fixture(scope="module")
def dynamics() -> Dynamics:
    bare = make_world()
    return replace(bare, termination=right_of(0.8, bare.observation))


def loop(dynamics: Dynamics, config: Any, limits: Any = None) -> tuple[Any, Any]:
    """The same trajectories and goals, one after the other in float64."""

    def terminal(obs: Any, action: Any, next_obs: Any) -> Any:
        return next_obs[..., 0] > 0.8

    task = hand_made_task(Mimic(quadratic, terminal), HORIZON)
    units = plain(dynamics)
    steps = reference.imagine(
        reference.policy_of(POLICY),
        reference.network_of(VALUE),
        units,
        task,
        config,
        np.asarray(STARTS),
        np.full(MEMBERS, 1 / MEMBERS),
        jax.random.key(4),
    )
    steps["beyond"] = np.zeros(NUMBER)
    if limits is not None:
        cut_off(steps, units, np.asarray(limits), config)
    return steps, reference.targets(steps, config)


def cut_off(steps: Any, units: Any, limits: Any, config: Any) -> None:
    """End every trajectory at its time limit, expecting V of the state it leads to."""
    network = reference.network_of(VALUE)
    for n, limit in enumerate(limits):
        last = limit - 1
        if steps["continues"][last, n]:
            assert limit < HORIZON or steps["weight"][last, n]
            steps["continues"][last, n] = 0.0
            steps["rewards"][last, n] += config.gamma * follow(n, last, units, network)
        for name, array in steps.items():
            if name != "beyond":
                array[limit:, n] = 0.0


def follow(n: int, last: int, units: Any, network: Any) -> float:
    """V of the state after step `last` of trajectory `n`, walked from its start."""
    state = np.asarray(STARTS[n], np.float64)
    task = hand_made_task(None, HORIZON)
    for h, key in enumerate(jax.random.split(jax.random.key(4), HORIZON)):
        action_key, member_key = jax.random.split(key)
        noise = np.asarray(jax.random.normal(action_key, (NUMBER, 1)), np.float64)[n]
        weights = jnp.log(jnp.full(MEMBERS, 1 / MEMBERS))
        drawn = jax.random.categorical(member_key, weights, shape=(NUMBER,))[n]
        observation = units.observation.normalise(state)
        action = reference.policy_of(POLICY).act(observation, noise)
        state = units.step(int(drawn), state, reference.to_box(task, action))
        if h == last:
            break
    normal = units.observation.normalise(state)
    return float(reference.forward(network, normal, np.tanh)[0][0])


def imagined_with(dynamics: Dynamics, config: Any, limits: Any = None) -> Imagined:
    rules = replace(RULES, returns=config)
    evenly = jnp.full(MEMBERS, 1 / MEMBERS)
    imagined: Imagined = jit(imagine)(
        POLICY, VALUE, dynamics, rules, STARTS, evenly, jax.random.key(4), limits
    )
    return imagined


@pytest.fixture(scope="module", params=["ends", "ends and limits"])
def both(request: Any, dynamics: Dynamics) -> tuple[Any, ...]:
    limits = LIMITS if "limits" in request.param else None
    config = LAM if limits is not None else replace(RETURNS, lam=0.8)
    imagined = imagined_with(dynamics, config, limits)
    return imagined, *prepare(imagined, config), *loop(dynamics, config, limits), config


def test_trajectories_end_as_in_a_plain_loop(both: Any) -> None:
    imagined, _, _, steps, _, _ = both
    assert 0 < steps["weight"].sum() < steps["weight"].size
    for name in ("weight", "continues", "rewards", "values", "local", "observations"):
        np.testing.assert_allclose(getattr(imagined, name), steps[name], atol=2e-5)


def test_returns_advantages_and_uncertainty_stop_at_the_end(both: Any) -> None:
    _, _, goals, steps, expected, _ = both
    counted = steps["weight"] > 0
    for name, array in expected.items():
        found = np.asarray(getattr(goals, name))
        np.testing.assert_allclose(found[counted], array[counted], atol=2e-4)


def test_losses_see_only_what_happened(both: Any) -> None:
    """Masked samples may hold anything: losses equal those over the others alone."""
    _, batch, _, steps, _, _ = both
    counted = (steps["weight"] > 0).ravel()
    spoiled = jax.tree.map(
        lambda x: jnp.where(counted.reshape(-1, *[1] * (x.ndim - 1)), x, 7.0), batch
    )._replace(weight=batch.weight)
    kept = jax.tree.map(lambda x: x[counted], batch)
    other = jax.tree.map(lambda x: x + 0.05, POLICY)

    def losses(samples: Batch) -> list[float]:
        ratio = likelihood_ratio(other, samples)
        values = predict_value(VALUE, samples.observations)
        goal = (samples.advantages, samples.uncertainty, samples.weight)
        return [
            float(value_loss(values, samples.returns, samples.weight)),
            float(conservative_surrogate(ratio, *goal, 0.15, 0.5)),
        ]

    np.testing.assert_allclose(losses(spoiled), losses(kept), rtol=1e-5)


def episodes_with_a_wall(number: int, seed: int) -> list[Episode]:
    """Random walks in the plane that end for good right of 1."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        walk = np.cumsum(rng.normal(0, 0.3, (21, 2)), 0).astype(np.float32)
        over = np.flatnonzero(walk[1:, 0] > 1.0)
        steps = int(over[0]) + 1 if len(over) else 20
        blank = np.zeros((steps, 1), np.float32)
        made.append(Episode(walk[: steps + 1], blank, blank[:, 0], bool(len(over))))
    return made


def test_the_classifier_finds_the_wall() -> None:
    episodes = episodes_with_a_wall(60, 0)
    experience = learn_from(no_experience(2, 1), episodes, 0.99)
    task = hand_made_task(None, 20)
    fresh = init_termination(jax.random.key(0), task, "learned")
    assert network_of(fresh) is None
    ending, found = fit_termination(fresh, episodes, experience, Keys(0, 0))
    network = network_of(ending)
    assert network is not None
    assert found["termination_missed"] < 0.05
    assert found["termination_invented"] < 0.05
    x = np.linspace(-1, 2, 61, dtype=np.float32)
    states = jnp.stack([jnp.asarray(x), jnp.zeros(61)], -1)
    units = Normaliser.of(experience.observation)
    said = np.asarray(says_ended(network, units, states))
    assert abs(float(x[said].min()) - 1.0) < 0.25
    assert said[-1]


def test_without_real_ends_nothing_is_learned() -> None:
    assert (
        init_termination(jax.random.key(0), hand_made_task(None, 20), "known") is None
    )
    fresh = init_termination(jax.random.key(0), hand_made_task(None, 20), "learned")
    endless = [replace(e, terminated=False) for e in episodes_with_a_wall(3, 1)]
    nothing = no_experience(2, 1)
    assert fit_termination(fresh, endless, nothing, Keys(0, 0)) == (fresh, {})
    assert fit_termination(None, endless, nothing, Keys(0, 0)) == (None, {})


def test_stored_starts_have_the_steps_that_were_left() -> None:
    task = hand_made_task(None, 20)
    episodes = episodes_with_a_wall(8, 2)
    states, left = real_starts(task, episodes, 50, jax.random.key(1))
    for state, steps in zip(np.asarray(states), np.asarray(left), strict=True):
        at = 20 - int(steps)
        assert any(
            at < len(e) and np.array_equal(e.observations[at], state) for e in episodes
        )


def test_a_share_of_the_starts_is_stored_and_the_others_are_resets() -> None:
    task = hand_made_task(None, 20)
    episodes = episodes_with_a_wall(8, 2)
    first, limits = branch_starts(task, episodes, 12, 0.25, jax.random.key(1))
    assert limits is not None
    resets = {tuple(episode.observations[0].tolist()) for episode in episodes}
    assert {tuple(row.tolist()) for row in np.asarray(first[:9])} <= resets
    assert np.all(np.asarray(limits[:9]) == 20)
    assert np.all(np.asarray(limits) <= 20)
    alone, none = branch_starts(task, episodes, 12, 0.0, jax.random.key(1))
    assert none is None
    assert alone.shape == (12, 2)
