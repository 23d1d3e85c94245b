"""Ask and tell: an agent that never touches the environment."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import probes
import pytest

from pombu import POMBU, SLBO, Episode, UsageError
from pombu.algorithms.presets import preset
from pombu.training.callbacks import Callback, Progress


def episode_of(act: Callable[[Any], Any], seed: int) -> Episode:
    """What a robot's own loop would do."""
    env = probes.corridor()
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, over = [observation], [], [], False
    while not over:
        action = act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
        over = terminated or truncated
    return Episode(
        np.array(observations), np.array(actions), np.array(rewards), terminated
    )


def agent() -> POMBU:
    smoke = preset("pombu", "smoke", "probes:corridor")
    starts = replace(smoke.imagination, real_starts=0.5)
    return POMBU("probes:corridor", preset="smoke", seed=1, imagination=starts)


@pytest.fixture(scope="module")
def taught() -> POMBU:
    pupil = agent()
    updates = [pupil.observe(episode_of(pupil.propose(), seed)) for seed in range(4)]
    assert [bool(update) for update in updates] == [False, True, False, True]
    assert np.isfinite(updates[1]["kl"])
    return pupil


def test_learns_each_time_a_round_is_there(taught: POMBU) -> None:
    assert int(taught.state.iteration) == 2
    assert len(taught.episodes) == 4
    assert int(taught.state.real_steps) == taught.episodes.steps


def test_proposals_are_in_the_box_and_repeatable() -> None:
    first, second = agent().propose(), agent().propose()
    for _ in range(3):
        action = first(np.zeros(2))
        np.testing.assert_array_equal(action, second(np.zeros(2)))
        assert action.shape == (1,)
        assert abs(action[0]) <= 0.5
    with pytest.raises(UsageError, match="give 2 entries"):
        first(np.zeros(3))
    with pytest.raises(UsageError, match="not finite"):
        first(np.array([0.0, np.nan]))


def test_a_saved_agent_still_has_what_it_has_not_learned_from(
    taught: POMBU, tmp_path: Path
) -> None:
    pupil = agent()
    pupil.observe(episode_of(pupil.propose(), 0))
    pupil.save(tmp_path / "agent")
    # Its environment is code, which `load` does not run unasked.
    with pytest.raises(UsageError, match="code outside pombu"):
        POMBU.load(tmp_path / "agent")
    copy = POMBU.load(tmp_path / "agent", env="probes:corridor")
    assert copy.observe(episode_of(copy.propose(), 1))
    copy.observe(episode_of(copy.propose(), 2))
    # From the second iteration on, proposals are imagined from what was learned.
    copy.save(tmp_path / "agent")
    copy = POMBU.load(tmp_path / "agent", env="probes:corridor")
    assert copy.observe(episode_of(copy.propose(), 3))
    for mine, theirs in zip(
        jax.tree.leaves(taught.state), jax.tree.leaves(copy.state), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_learn_begins_with_what_was_observed() -> None:
    pupil = agent()
    pupil.observe(episode_of(pupil.propose(), 0))
    pupil.learn(total_timesteps=1)
    assert int(pupil.state.iteration) == 2
    assert int(pupil.state.experience.observation.count) == pupil.episodes.steps


def test_a_proposal_is_imagined_once(taught: POMBU) -> None:
    before = int(taught.state.imagined_steps)
    taught.propose()
    assert int(taught.state.imagined_steps) == before


def test_misfits_are_named() -> None:
    pupil = agent()
    right = episode_of(pupil.propose(), 0)
    with pytest.raises(UsageError, match="observations of shape"):
        pupil.observe(
            Episode(right.observations[:-1], right.actions, right.rewards, False)
        )
    with pytest.raises(UsageError, match="not finite"):
        pupil.observe(
            Episode(right.observations * np.nan, right.actions, right.rewards, False)
        )
    with pytest.raises(UsageError, match="slbo collects its real episodes itself"):
        SLBO("probes:corridor", preset="smoke").propose()


def test_a_failed_lesson_is_not_undone_by_an_older_proposal() -> None:
    pupil = agent()
    pupil.propose()

    class Breaks(Callback):
        def on_iteration(self, progress: Progress) -> bool | None:
            if progress.iteration == 2:
                raise RuntimeError("broken")
            return None

    with pytest.raises(RuntimeError, match="broken"):
        pupil.learn(total_timesteps=1000, callbacks=[Breaks()])
    learned = int(pupil.state.iteration)
    assert learned >= 1
    for seed in range(4):
        pupil.observe(episode_of(pupil.propose(), seed))
    assert int(pupil.state.iteration) > learned


def test_proposals_and_predictions_have_their_own_noise() -> None:
    pupil = agent()
    observation = probes.corridor().reset(seed=0)[0]
    proposed = pupil.propose()(observation)
    predicted, _ = pupil.predict(observation, deterministic=False)
    assert not np.array_equal(proposed, predicted)
