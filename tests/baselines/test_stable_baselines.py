"""Stable-Baselines3 behind pombu's interface: arrays in and out, no other state."""

import importlib
import sys
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from pombu.algorithms.ppo import learner as ppo
from pombu.algorithms.ppo.config import PPOConfig
from pombu.algorithms.presets import preset
from pombu.algorithms.sac import learner as sac
from pombu.algorithms.stable_baselines import ReplayBuffer, seeded
from pombu.data.episodes import EpisodeStore
from pombu.envs import ActionBox, EnvConfig, Episode, Task, load
from pombu.errors import UsageError
from pombu.training.algorithm import StageTimer


@pytest.fixture(scope="module")
def task() -> Task:
    return load("Point2D", horizon=6)


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


def sac_learner(task: Task, **changes: Any) -> sac.Learner:
    return sac.Learner(task, replace(preset("sac", "smoke", "Point2D"), **changes))


def ppo_learner(task: Task, **changes: Any) -> ppo.Learner:
    return ppo.Learner(task, replace(preset("ppo", "smoke", "Point2D"), **changes))


@pytest.mark.parametrize("capacity", [100, 7])
def test_a_buffer_filled_at_once_equals_one_filled_bit_by_bit(
    task: Task, capacity: int
) -> None:
    episodes = [episode(n, n == 4, n) for n in (6, 4, 6, 3)]
    at_once = sac_learner(task, capacity=capacity)._model.replay_buffer
    sac.fill(at_once, episodes, 0, task)
    slowly = sac_learner(task, capacity=capacity)._model.replay_buffer
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
    buffer = sac_learner(task)._model.replay_buffer
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


def test_global_generators_are_left_as_they_were() -> None:
    np.random.seed(5)
    torch.manual_seed(5)
    expected = np.random.rand(), torch.rand(1)
    np.random.seed(5)
    torch.manual_seed(5)
    with seeded((1, 2, 3)):
        first = np.random.rand(), torch.rand(1)
    assert (np.random.rand(), torch.rand(1)) == expected
    with seeded((1, 2, 3)):
        assert (np.random.rand(), torch.rand(1)) == first


@pytest.mark.parametrize("make", [sac_learner, ppo_learner])
def test_a_state_is_all_that_a_model_knows(make: Any, task: Task) -> None:
    """Another learner that is given the state goes on in exactly the same way."""
    one, other = make(task), make(task)
    state, episodes = one.init(3), EpisodeStore()
    for _ in range(2):
        state, _ = one.iterate(state, episodes, StageTimer())
    # The other one has a past of its own, which must not show.
    other.iterate(other.init(8), EpisodeStore(), StageTimer())
    kept = EpisodeStore(episodes)
    ours, our_metrics = one.iterate(state, episodes, StageTimer())
    theirs, their_metrics = other.iterate(state, kept, StageTimer())
    assert our_metrics == their_metrics
    leaves = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    for first, second in zip(*leaves, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("make", [sac_learner, ppo_learner])
def test_seeds_differ_and_repeat(make: Any, task: Task) -> None:
    def first_weights(seed: int) -> Any:
        tensors = make(task).init(seed).networks.tensors
        return next(x for name, x in tensors.items() if name.endswith("0.weight"))

    np.testing.assert_array_equal(first_weights(1), first_weights(1))
    assert (first_weights(1) != first_weights(2)).any()


@pytest.mark.parametrize("make", [sac_learner, ppo_learner])
def test_a_policy_depends_on_its_key_alone(make: Any, task: Task) -> None:
    learner = make(task)
    policy = learner.policy(learner.init(0))
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


def test_untrained_optimisers_are_as_adam_begins(task: Task) -> None:
    (memory,) = ppo_learner(task).init(0).networks.optimisers
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(memory))


def test_ppo_bootstraps_at_time_limits_and_not_at_ends(task: Task) -> None:
    """Returns and advantages against a loop over each episode."""
    learner = ppo_learner(task, normalise_observations=False, gamma=0.9, lam=0.8)
    model = learner._model
    episodes = [episode(4, True, 0), episode(6, False, 1)]
    recorder = ppo.Recorder(model.policy, np.asarray)
    for step in range(6):
        rows = [e.observations[min(step, len(e))] for e in episodes]
        recorder.act(np.stack(rows), step)
    rollout = recorder.rollout(episodes, reward_scale=2.0, gamma=0.9)
    buffer = learner._buffer(rollout)
    offset = 0
    for one in episodes:
        with torch.no_grad():
            values = model.policy.predict_values(torch.from_numpy(one.observations))
        values = values.numpy()[:, 0].astype(np.float64)
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
    learner = ppo_learner(task, log_std=2.0)
    recorder = ppo.Recorder(learner._model.policy, np.asarray)
    episodes = [episode(6, False, 0)]
    for step in range(6):
        recorder.act(episodes[0].observations[step : step + 1], step)
    rollout = recorder.rollout(episodes, 1.0, 0.99)
    assert abs(rollout.actions).max() > 1.0
    with torch.no_grad():
        _, expected, _ = learner._model.policy.evaluate_actions(
            torch.from_numpy(rollout.observations), torch.from_numpy(rollout.actions)
        )
    np.testing.assert_allclose(rollout.log_probs, expected.numpy(), rtol=1e-4)


def test_ppo_falls_linearly_in_its_learning_rate(task: Task) -> None:
    learner = ppo_learner(
        task, iterations=4, learning_rate=1.0e-3, final_learning_rate=0.0
    )
    state, episodes, rates = learner.init(0), EpisodeStore(), []
    for _ in range(3):
        state, _ = learner.iterate(state, episodes, StageTimer())
        rates.append(learner._model.policy.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3])


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
    learner = ppo_learner(task, iterations=1, final_learning_rate=0.0)
    state, _ = learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    with pytest.warns(UserWarning, match="fallen to 0, so nothing more is learned"):
        learner.iterate(state, EpisodeStore(), StageTimer())
    assert learner._model.policy.optimizer.param_groups[0]["lr"] == 0
    learner.config.require_rate(12, 6)
    with pytest.raises(UsageError, match="within 12 real steps, and 13 are asked for"):
        learner.config.require_rate(13, 6)


def test_sac_waits_for_its_first_steps(task: Task) -> None:
    learner = sac_learner(task, learning_starts=1000)
    state = learner.init(0)
    after, metrics = learner.iterate(state, EpisodeStore(), StageTimer())
    for name, tensor in state.networks.tensors.items():
        np.testing.assert_array_equal(tensor, after.networks.tensors[name])
    assert "value_loss" not in metrics
    assert np.isfinite(list(metrics.values())).all()


def test_sac_trains_as_soon_as_it_has_its_first_steps(task: Task) -> None:
    learner = sac_learner(task)
    steps = learner.config.trajectories * task.horizon
    learner = sac_learner(task, learning_starts=steps, bout=learner.config.trajectories)
    _, metrics = learner.iterate(learner.init(0), EpisodeStore(), StageTimer())
    assert "value_loss" in metrics


def test_a_fixed_temperature_is_no_part_of_the_state(task: Task) -> None:
    state = sac_learner(task, temperature=0.2).init(0)
    assert "log_temperature" not in state.networks.tensors
    assert len(state.networks.optimisers) == 2


def test_without_the_extra_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    name = "pombu.algorithms.stable_baselines"
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError) as caught:
        importlib.import_module(name)
    assert str(caught.value) == (
        "SAC and PPO need Stable-Baselines3, which is not installed: "
        "pip install 'pombu[baselines]'."
    )
