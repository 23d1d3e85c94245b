"""sbx behind pombu's interface: arrays in and out, no other state."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from pombu.agent.export import export_policy
from pombu.agent.numpy_policy import load_policy
from pombu.algorithms.base import init_counters
from pombu.algorithms.ppo import learner as ppo
from pombu.algorithms.ppo.config import PPOConfig
from pombu.algorithms.registry import make, preset
from pombu.algorithms.sac import learner as sac
from pombu.algorithms.sac.config import CrossQConfig, TQCConfig
from pombu.algorithms.stable_baselines import ReplayBuffer, SbxState, seeded
from pombu.data.episodes import EpisodeStore
from pombu.envs import ActionBox, EnvConfig, Episode, Task, load
from pombu.errors import UsageError
from pombu.training import checkpoint
from pombu.training.algorithm import StageTimer
from pombu.training.checkpoint import Identity

OFF_POLICY = ("sac", "droq", "tqc", "crossq")
ALL = (*OFF_POLICY, "ppo")


@pytest.fixture(scope="module")
def task() -> Task:
    return load("Point2D", horizon=6)


def learner_of(name: str, task: Task, **changes: Any) -> Any:
    config = replace(preset(name, "smoke", "Point2D"), **changes)
    if name in OFF_POLICY:
        first = {"learning_starts": task.horizon, "updates_per_step": 1.0}
        config = replace(config, **{**first, **changes})
    return make(name, task, config)


@cache
def shared(name: str) -> Any:
    """One learner for all tests that leave it as it is: each compiles its own."""
    return learner_of(name, load("Point2D", horizon=6))


@cache
def trained(name: str) -> tuple[Any, tuple[Episode, ...]]:
    """A state after two iterations, and its episodes."""
    learner, episodes = shared(name), EpisodeStore()
    state = learner.init(3)
    for _ in range(2):
        state, _ = learner.iterate(state, episodes, StageTimer())
    return state, tuple(episodes)


def flat(networks: Mapping[str, Any]) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(networks)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in leaves}


def episode(length: int, terminated: bool, seed: int) -> Episode:
    draw = np.random.default_rng(seed)
    return Episode(
        draw.normal(size=(length + 1, 2)).astype(np.float32),
        draw.uniform(-0.1, 0.1, (length, 2)).astype(np.float32),
        draw.normal(size=length).astype(np.float32),
        terminated,
    )


def buffer_arrays(buffer: ReplayBuffer) -> list[Any]:
    names = ("observations", "next_observations", "actions", "rewards", "dones")
    arrays = [getattr(buffer, name) for name in names]
    return [*arrays, buffer.timeouts, buffer.pos, buffer.full]


@pytest.mark.parametrize("capacity", [100, 7])
def test_a_buffer_filled_at_once_equals_one_filled_bit_by_bit(
    task: Task, capacity: int
) -> None:
    episodes = [episode(n, n == 4, n) for n in (6, 4, 6, 3)]
    at_once = learner_of("sac", task, capacity=capacity)._buffer
    sac.fill(at_once, episodes, 0, task)
    slowly = learner_of("sac", task, capacity=capacity)._buffer
    before = 0
    for one in episodes:
        sac.fill(slowly, [one], before, task)
        before += len(one)
    for first, second in zip(
        buffer_arrays(at_once), buffer_arrays(slowly), strict=True
    ):
        np.testing.assert_array_equal(first, second)


def test_a_buffer_holds_the_episodes_and_only_real_ends(task: Task) -> None:
    episodes = [episode(3, False, 0), episode(2, True, 1)]
    buffer = shared("sac")._buffer
    sac.fill(buffer, episodes, 0, task)
    assert (buffer.pos, buffer.full) == (5, False)
    np.testing.assert_array_equal(buffer.dones[:5, 0], [0, 0, 0, 0, 1])
    stored = buffer.next_observations[2, 0]
    np.testing.assert_array_equal(stored, episodes[0].observations[3])
    boxed = task.action_box.to_box(buffer.actions[:3, 0])
    np.testing.assert_allclose(boxed, episodes[0].actions, atol=1e-7)


def test_actions_return_to_policy_space_from_any_box() -> None:
    from pombu.algorithms.stable_baselines import to_policy_space

    box = ActionBox((-2.0, 0.0), (1.0, 10.0))
    lopsided = Task(EnvConfig(), 2, 2, 6, box, None)
    actions = np.array([[-1.0, 1.0], [0.25, -0.5]], np.float32)
    back = to_policy_space(lopsided, box.to_box(actions))
    np.testing.assert_allclose(back, actions, atol=1e-6)
    # An entry without a choice is 0 to a policy, not a division by it.
    narrow = replace(lopsided, action_box=ActionBox((-2.0, 3.0), (1.0, 3.0)))
    back = to_policy_space(narrow, narrow.action_box.to_box(actions))
    np.testing.assert_allclose(back, [[-1.0, 0.0], [0.25, 0.0]], atol=1e-6)


def test_the_global_generator_is_left_as_it_was() -> None:
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    with seeded((1, 2, 3)):
        first = np.random.rand()
    assert np.random.rand() == expected
    with seeded((1, 2, 3)):
        assert np.random.rand() == first


@pytest.mark.parametrize("name", ALL)
def test_a_state_is_all_that_a_model_knows(name: str, task: Task) -> None:
    """Another learner that is given the state goes on in exactly the same way."""
    state, known = trained(name)
    other = learner_of(name, task)
    # The other one has a past of its own, which must not show.
    other.iterate(other.init(8), EpisodeStore(), StageTimer())
    ours, our_metrics = shared(name).iterate(state, EpisodeStore(known), StageTimer())
    theirs, their_metrics = other.iterate(state, EpisodeStore(known), StageTimer())
    assert our_metrics == their_metrics
    leaves = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    for first, second in zip(*leaves, strict=True):
        np.testing.assert_array_equal(first, second)


PARTS = {
    "sac": {"actor_state", "qf_state", "ent_coef_state"},
    "droq": {"actor_state", "qf_state", "ent_coef_state"},
    "tqc": {"actor_state", "qf1_state", "qf2_state", "ent_coef_state"},
    "crossq": {"actor_state", "qf_state", "ent_coef_state"},
    "ppo": {"actor_state", "vf_state"},
}


@pytest.mark.parametrize("name", ALL)
def test_all_that_changes_in_training_is_in_the_state(name: str) -> None:
    """Weights, targets, moments, statistics and the temperature, as plain arrays."""
    after = trained(name)[0].networks
    # Of a learner that has trained meanwhile, which must not show.
    before = shared(name).init(3).networks
    assert set(after) == PARTS[name]
    first, last = flat(before), flat(after)
    assert first.keys() == last.keys()
    assert all(type(leaf) is np.ndarray for leaf in last.values())
    assert all(first[key].dtype == last[key].dtype for key in first)
    moved = {key for key in first if (first[key] != last[key]).any()}
    weights = [key for key in first if key.endswith("kernel")]
    assert moved >= set(weights)
    assert name == "ppo" or "ent_coef_state/params/log_ent_coef" in moved
    assert any("/mu/" in key for key in moved)
    assert any("/target_params/" in key for key in moved) == (
        name in ("sac", "droq", "tqc")
    )
    assert any("/batch_stats/" in key for key in moved) == (name == "crossq")
    # Adam begins without memory.
    moments = [first[key] for key in first if "/mu/" in key or "/nu/" in key]
    assert not any(moment.any() for moment in moments)
    start = before.get("ent_coef_state", {"params": {"log_ent_coef": 0.0}})
    assert start["params"]["log_ent_coef"] == 0


@pytest.mark.parametrize("name", OFF_POLICY)
def test_critics_and_actor_take_the_steps_that_real_steps_ask_for(name: str) -> None:
    """Two trajectories of 6 steps per iteration; the first 6 steps reach the start."""
    config, networks = shared(name).config, trained(name)[0].networks
    critic = networks["qf1_state" if name == "tqc" else "qf_state"]
    assert networks["actor_state"]["step"] == 24 // config.policy_delay
    assert critic["step"] == 24 // config.policy_delay * config.policy_delay
    if name == "crossq":
        steps = [x for key, x in flat(critic).items() if key.endswith("/steps")]
        assert steps
        assert all((count == critic["step"]).all() for count in steps)


def test_steps_come_in_few_sizes_and_none_is_lost() -> None:
    for delay in (1, 3, 20):
        for number in range(300):
            parts = sac.blocks(number, delay)
            assert sum(parts) == number
            assert {size * delay for size in parts if size > 1} <= {8, 64, 24}
    config = CrossQConfig(updates_per_step=0.7)
    bounds = np.cumsum(np.random.default_rng(0).integers(1, 40, 50)).tolist()
    parts = [sac.actor_steps(first, last, config) for first, last in pairwise(bounds)]
    assert sum(parts) == sac.actor_steps(bounds[0], bounds[-1], config)
    assert sac.actor_steps(0, 1000, config) == 233


def test_settings_reach_the_models() -> None:
    target = shared("tqc")._model.policy
    config = shared("tqc").config
    kept = config.quantiles - config.dropped_quantiles
    assert target.n_target_quantiles == 2 * kept
    assert shared("droq")._model.policy_delay == 2
    layers = shared("droq").init(0).networks["qf_state"]["params"]["params"]
    (critics,) = layers.values()
    assert "LayerNorm_0" in critics
    assert shared("droq")._model.policy.dropout_rate == 0.01
    crossq = learner_of(
        "crossq",
        load("Point2D", horizon=6),
        critic_hidden=(7, 5),
        momentum=0.5,
        renormalisation_starts=9,
    )
    policy = crossq._model.policy
    assert (policy.batch_norm_momentum, policy.renorm_warmup_steps) == (0.5, 9)
    shapes = [x.shape for x in jax.tree.leaves(crossq.init(0).networks["qf_state"])]
    assert (2, 7, 5) in shapes


def test_more_quantiles_cannot_be_dropped_than_there_are() -> None:
    with pytest.raises(UsageError, match=r"dropped_quantiles is 25.*none of the 25"):
        TQCConfig(dropped_quantiles=25)


@pytest.mark.parametrize("name", ALL)
def test_seeds_differ_and_repeat(name: str) -> None:
    def weights(seed: int) -> np.ndarray:
        layers = flat(shared(name).init(seed).networks["actor_state"]["params"])
        return next(x for key, x in layers.items() if key.endswith("Dense_0/kernel"))

    np.testing.assert_array_equal(weights(1), weights(1))
    assert (weights(1) != weights(2)).any()


@pytest.mark.parametrize("name", ALL)
def test_a_policy_depends_on_its_key_alone(name: str) -> None:
    policy = shared(name).policy(trained(name)[0])
    states = np.ones((3, 2), np.float32)
    one, other = jax.random.key(1), jax.random.key(2)
    np.testing.assert_array_equal(
        policy(states, False, one), policy(states, False, one)
    )
    assert (policy(states, False, one) != policy(states, False, other)).any()
    np.testing.assert_array_equal(
        policy(states, True, one), policy(states, True, other)
    )
    assert abs(policy(100 * states, False, one)).max() <= 1.0


@pytest.mark.parametrize("name", ALL)
def test_an_exported_policy_acts_as_sbx_does(
    name: str, task: Task, tmp_path: Path
) -> None:
    """Also where batch renormalisation has statistics far from 0 and 1."""
    state = trained(name)[0]
    rng = np.random.default_rng(0)
    odd = jax.tree.map(
        lambda x: (
            np.abs(rng.normal(size=x.shape)).astype(x.dtype) + 0.1
            if x.dtype.kind == "f"
            else x
        ),
        state.networks["actor_state"],
    )
    networks = {**state.networks, "actor_state": odd}
    for one in (state, eqx.tree_at(lambda s: s.networks, state, networks)):
        file = tmp_path / f"{one is state}.safetensors"
        export_policy(file, shared(name), one, {"algorithm": name})
        states = rng.normal(size=(20, 2)).astype(np.float32)
        acted = shared(name).policy(one)(states, True, jax.random.key(0))
        boxed = task.action_box.to_box(acted)
        np.testing.assert_allclose(load_policy(str(file))(states), boxed, atol=2e-6)


def test_what_pytorch_wrote_is_refused_with_who_wrote_it(tmp_path: Path) -> None:
    earlier = {"tensors": {"actor.mu.weight": np.zeros(2, np.float32)}}
    state = SbxState(**init_counters(0), networks=earlier)
    identity = Identity("sac", {})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "episodes").mkdir()
    path = checkpoint.save(tmp_path, state, EpisodeStore(), identity, 1)
    with pytest.raises(UsageError) as caught:
        checkpoint.load(path, shared("sac").init(0), identity)
    said = str(caught.value)
    assert "written by pombu 0." in said
    assert "its PyTorch implementation (Stable-Baselines3)" in said
    assert "use the version that wrote it" in said


def test_ppo_bootstraps_at_time_limits_and_not_at_ends(task: Task) -> None:
    """Returns and advantages against a loop over each episode."""
    learner = learner_of("ppo", task, normalise_observations=False, gamma=0.9, lam=0.8)
    model = learner._model
    episodes = [episode(4, True, 0), episode(6, False, 1)]
    recorder = ppo.Recorder(model, np.asarray, jax.random.key(0))
    for step in range(6):
        rows = [e.observations[min(step, len(e))] for e in episodes]
        recorder.act(np.stack(rows), step)
    rollout = recorder.rollout(episodes, reward_scale=2.0, gamma=0.9)
    buffer = learner._buffer(rollout)
    offset = 0
    for one in episodes:
        values = model.vf.apply(model.policy.vf_state.params, one.observations)
        values = np.asarray(values)[:, 0].astype(np.float64)
        values[-1] *= not one.terminated
        advantage = 0.0
        for step in range(len(one) - 1, -1, -1):
            error = one.rewards[step] / 2.0 + 0.9 * values[step + 1] - values[step]
            advantage = error + 0.9 * 0.8 * advantage
            found = buffer.advantages[offset + step, 0]
            assert found == pytest.approx(advantage, rel=1e-4, abs=1e-5)
            expected = advantage + values[step]
            found = buffer.returns[offset + step, 0]
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
        offset += len(one)
    np.testing.assert_array_equal(np.flatnonzero(rollout.starts), [0, 4])


def test_ppo_remembers_the_actions_that_it_drew_not_the_clipped_ones(
    task: Task,
) -> None:
    learner = learner_of("ppo", task, log_std=2.0, normalise_observations=False)
    recorder = ppo.Recorder(learner._model, np.asarray, jax.random.key(0))
    episodes = [episode(6, False, 0)]
    for step in range(6):
        recorder.act(episodes[0].observations[step : step + 1], step)
    rollout = recorder.rollout(episodes, 1.0, 0.99)
    assert abs(rollout.actions).max() > 1.0
    params = learner._model.policy.actor_state.params
    mean = learner._model.actor.apply(params, rollout.observations).mode()
    noise = (rollout.actions - np.asarray(mean)) / np.exp(2.0)
    expected = -0.5 * (noise**2 + np.log(2 * np.pi)).sum(-1) - 2 * 2.0
    np.testing.assert_allclose(rollout.log_probs, expected, rtol=1e-4)


def rates(learner: Any) -> list[float]:
    """The step sizes with which policy and value were trained last."""
    states = learner._model.policy.actor_state, learner._model.policy.vf_state
    return [float(s.opt_state[1].hyperparams["learning_rate"]) for s in states]


def test_ppo_falls_linearly_in_its_learning_rate(task: Task) -> None:
    learner = learner_of(
        "ppo", task, iterations=4, learning_rate=1.0e-3, final_learning_rate=0.0
    )
    state, episodes, found = learner.init(0), EpisodeStore(), []
    for _ in range(3):
        state, _ = learner.iterate(state, episodes, StageTimer())
        found.append(rates(learner))
    np.testing.assert_allclose(found, [[1e-3] * 2, [0.75e-3] * 2, [0.5e-3] * 2])


def test_ppo_s_learning_rate_counts_steps_not_iterations() -> None:
    """Where episodes end early, an iteration is less of the plan."""
    config = PPOConfig(
        trajectories=2, iterations=5, learning_rate=1e-3, final_learning_rate=0.0
    )
    assert config.planned_steps(100) == 1000
    rates = [config.rate(steps, 100) for steps in (0, 250, 1000, 5000)]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.0, 0.0])
    assert config.iterations_for(1000, 100) == 5
    assert config.iterations_for(1001, 100) == 6


def test_ppo_tells_when_its_learning_rate_is_0(task: Task) -> None:
    learner = learner_of("ppo", task, iterations=1, final_learning_rate=0.0)
    state, _ = learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    with pytest.warns(UserWarning, match="fallen to 0, so nothing more is learned"):
        learner.iterate(state, EpisodeStore(), StageTimer())
    assert rates(learner) == [0.0, 0.0]
    learner.config.require_rate(12, 6)
    with pytest.raises(UsageError, match="within 12 real steps, and 13 are asked for"):
        learner.config.require_rate(13, 6)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_training_waits_for_the_first_steps(name: str, task: Task) -> None:
    learner = learner_of(name, task, learning_starts=1000)
    state = learner.init(0)
    after, metrics = learner.iterate(state, EpisodeStore(), StageTimer())
    now = flat(after.networks)
    for key, leaf in flat(state.networks).items():
        np.testing.assert_array_equal(leaf, now[key])
    assert "value_loss" not in metrics
    assert np.isfinite(list(metrics.values())).all()


def test_training_begins_as_soon_as_there_are_the_first_steps(task: Task) -> None:
    both = {"trajectories": 2, "bout": 2}
    learner = learner_of("sac", task, learning_starts=12, **both)
    _, metrics = learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    assert "value_loss" in metrics


def test_a_fixed_temperature_stays(task: Task) -> None:
    learner = learner_of("sac", task, temperature=0.2)
    state, metrics = learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    assert metrics["temperature"] == pytest.approx(0.2)
    assert "log_ent_coef" not in state.networks["ent_coef_state"]["params"]


def test_without_the_extra_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sbx", None)
    name = "pombu.algorithms.stable_baselines"
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError) as caught:
        importlib.import_module(name)
    said = str(caught.value)
    assert said.startswith("SAC, DroQ, TQC, CrossQ and PPO need sbx, which cannot be")
    assert said.endswith(": pip install 'pombu[baselines]'.")
    assert "sbx" in said.partition("(")[2]
