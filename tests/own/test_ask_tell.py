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
from pombu.algorithms.registry import preset
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


def new_agent() -> POMBU:
    smoke = preset("pombu", "smoke", "probes:corridor")
    starts = replace(smoke.imagination, real_starts=0.5)
    return POMBU("probes:corridor", preset="smoke", seed=1, imagination=starts)


@pytest.fixture(scope="module")
def trained() -> POMBU:
    agent = new_agent()
    updates = [agent.observe(episode_of(agent.propose(), seed)) for seed in range(4)]
    assert [bool(update) for update in updates] == [False, True, False, True]
    assert np.isfinite(updates[1]["kl"])
    return agent


def test_learns_each_time_a_round_is_there(trained: POMBU) -> None:
    assert int(trained.state.iteration) == 2
    assert len(trained.episodes) == 4
    assert int(trained.state.real_steps) == trained.episodes.steps


def test_proposals_are_in_the_box_and_repeatable() -> None:
    first, second = new_agent().propose(), new_agent().propose()
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
    trained: POMBU, tmp_path: Path
) -> None:
    agent = new_agent()
    agent.observe(episode_of(agent.propose(), 0))
    agent.save(tmp_path / "agent")
    # Its environment is code, which `load` does not run unasked.
    with pytest.raises(UsageError, match=r"agent.* --env probes:corridor"):
        POMBU.load(tmp_path / "agent")
    copy = POMBU.load(tmp_path / "agent", env="probes:corridor")
    assert copy.observe(episode_of(copy.propose(), 1))
    copy.observe(episode_of(copy.propose(), 2))
    # From the second iteration on, proposals are imagined from what was learned.
    copy.save(tmp_path / "agent")
    copy = POMBU.load(tmp_path / "agent", env="probes:corridor")
    assert copy.observe(episode_of(copy.propose(), 3))
    for mine, theirs in zip(
        jax.tree.leaves(trained.state), jax.tree.leaves(copy.state), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_learn_begins_with_what_was_observed() -> None:
    agent = new_agent()
    agent.observe(episode_of(agent.propose(), 0))
    agent.learn(total_timesteps=1)
    assert int(agent.state.iteration) == 2
    assert int(agent.state.experience.observation.count) == agent.episodes.steps


def test_a_proposal_is_imagined_once(trained: POMBU) -> None:
    before = int(trained.state.imagined_steps)
    trained.propose()
    assert int(trained.state.imagined_steps) == before


def test_misfits_are_named() -> None:
    agent = new_agent()
    right = episode_of(agent.propose(), 0)
    with pytest.raises(UsageError, match="observations of shape"):
        agent.observe(
            Episode(right.observations[:-1], right.actions, right.rewards, False)
        )
    with pytest.raises(UsageError, match="not finite"):
        agent.observe(
            Episode(right.observations * np.nan, right.actions, right.rewards, False)
        )
    with pytest.raises(UsageError, match=r"^slbo .*choose .*pombu"):
        SLBO("probes:corridor", preset="smoke").propose()


def test_a_failed_update_is_not_undone_by_an_older_proposal() -> None:
    agent = new_agent()
    agent.propose()

    class Breaks(Callback):
        def on_iteration(self, progress: Progress) -> bool | None:
            if progress.iteration == 2:
                raise RuntimeError("broken")
            return None

    with pytest.raises(RuntimeError, match="broken"):
        agent.learn(total_timesteps=1000, callbacks=[Breaks()])
    learned = int(agent.state.iteration)
    assert learned >= 1
    for seed in range(4):
        agent.observe(episode_of(agent.propose(), seed))
    assert int(agent.state.iteration) > learned


def test_proposals_and_predictions_have_their_own_noise() -> None:
    agent = new_agent()
    observation = probes.corridor().reset(seed=0)[0]
    proposed = agent.propose()(observation)
    predicted, _ = agent.predict(observation, deterministic=False)
    assert not np.array_equal(proposed, predicted)
