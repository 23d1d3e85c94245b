"""The familiar face: learn, predict, save, load, q_uncertainty."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pombu
from pombu import MEPPO, POMBU, EnvConfig, UsageError
from pombu.algorithms.registry import preset
from pombu.data.episodes import EpisodeStore
from pombu.errors import StoppedError
from pombu.nn import predict_value
from pombu.rollout.q_value import q_uncertainty
from pombu.rollout.returns import scaled_reward
from pombu.training.callbacks import Callback, Progress

STATES = np.array([[1.0, -0.5], [0.0, 0.3], [-1.5, 1.5]], np.float32)
ACTIONS = np.array([[0.1, 0.0], [0.0, -0.1], [0.05, 0.05]], np.float32)


@pytest.fixture(scope="module")
def agent() -> POMBU:
    return POMBU("Point2D", preset="smoke", seed=3).learn(total_timesteps=120)


def weights(agent: POMBU) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(agent.state)]


def test_actions_are_in_the_environments_units(agent: POMBU) -> None:
    action, memory = agent.predict(STATES[0], deterministic=True)
    batch, _ = agent.predict(STATES, deterministic=True)
    assert action.shape == (2,)
    assert memory is None
    # One row and three are multiplied in another order on some processors.
    np.testing.assert_allclose(batch[0], action, rtol=1e-5)
    assert np.all(np.abs(batch) <= 0.1)


def test_stochastic_actions_differ_from_call_to_call(agent: POMBU) -> None:
    first, _ = agent.predict(STATES, deterministic=False)
    second, _ = agent.predict(STATES, deterministic=False)
    assert not np.array_equal(first, second)


def test_a_loaded_agent_goes_on_as_the_saved_one(agent: POMBU, tmp_path: Path) -> None:
    agent.save(tmp_path / "agent")
    copy = POMBU.load(tmp_path / "agent")
    for mine, theirs in zip(weights(agent), weights(copy), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(copy.episodes) == len(agent.episodes)
    whole = POMBU("Point2D", preset="smoke", seed=3).learn(total_timesteps=180)
    copy.learn(total_timesteps=60)
    for mine, theirs in zip(weights(whole), weights(copy), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_another_algorithms_save_is_refused(agent: POMBU, tmp_path: Path) -> None:
    agent.save(tmp_path / "agent")
    with pytest.raises(UsageError, match="trained by pombu, not meppo"):
        MEPPO.load(tmp_path / "agent")


def test_every_folder_holds_all_episodes(agent: POMBU, tmp_path: Path) -> None:
    agent.save(tmp_path / "one")
    agent.save(tmp_path / "two")
    POMBU.load(tmp_path / "two").save(tmp_path / "three")
    for name in ("one", "two", "three"):
        copy = POMBU.load(tmp_path / name)
        assert copy.episodes.steps == agent.episodes.steps
    trained = POMBU("Point2D", preset="smoke", seed=3)
    trained.learn(60, out=tmp_path / "four").learn(60, out=tmp_path / "five")
    assert POMBU.load(tmp_path / "five").episodes.steps == 120


def test_a_folder_takes_one_save_after_another(tmp_path: Path) -> None:
    pupil = POMBU("Point2D", preset="smoke", seed=3).learn(total_timesteps=60)
    pupil.save(tmp_path / "agent")
    pupil.save(tmp_path / "agent")
    earlier = POMBU.load(tmp_path / "agent")
    pupil.learn(total_timesteps=60).save(tmp_path / "agent")
    saves = {path.name for path in (tmp_path / "agent").glob("*/*")}
    assert saves == {"000001", "000002", "00000.safetensors", "00001.safetensors"}
    loaded = POMBU.load(tmp_path / "agent")
    assert loaded.episodes.steps == 120
    for mine, theirs in zip(weights(pupil), weights(loaded), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(UsageError, match=r"save of iteration 2.* only had 1: choose"):
        earlier.save(tmp_path / "agent")
    # The same run, saved in one piece: the folder's pieces stay as they are.
    whole = POMBU("Point2D", preset="smoke", seed=3).learn(total_timesteps=180)
    whole.save(tmp_path / "agent")
    assert POMBU.load(tmp_path / "agent").episodes.steps == 180
    assert not [*tmp_path.rglob("*.damaged-*")]


def test_another_past_is_not_saved_over(agent: POMBU, tmp_path: Path) -> None:
    agent.save(tmp_path / "agent")
    other_agent = POMBU("Point2D", preset="smoke", seed=3).learn(total_timesteps=120)
    changed = replace(
        other_agent.episodes[0], rewards=other_agent.episodes[0].rewards + 1
    )
    other_agent.episodes = EpisodeStore([changed, *list(other_agent.episodes)[1:]])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"agent .*episodes"):
        other_agent.save(tmp_path / "agent")
    assert sorted(tmp_path.rglob("*")) == before


class Press(Callback):
    """Sends a signal to this process after the first iteration."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def on_iteration(self, progress: Progress) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, StoppedError)],
)
def test_a_signal_ends_the_script_and_nothing_is_lost(
    number: signal.Signals, error: type[BaseException]
) -> None:
    pupil = POMBU("Point2D", preset="smoke", seed=3)
    with pytest.raises(error, match="keeps every finished iteration"):
        pupil.learn(total_timesteps=120, callbacks=[Press(number)])
    assert int(pupil.state.iteration) == 1
    assert pupil.episodes.steps == 60


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_would_be_another_is_refused(seed: int) -> None:
    with pytest.raises(UsageError, match="a whole number from 0 to 4294967295"):
        POMBU("Point2D", preset="smoke", seed=seed)


@pytest.mark.parametrize(
    ("other", "name"), [({"seed": 4}, "seed"), ({"alpha": 0.1}, "config")]
)
def test_another_agents_folder_is_left_alone(
    agent: POMBU, tmp_path: Path, other: dict[str, Any], name: str
) -> None:
    agent.save(tmp_path / "agent")
    before = sorted(tmp_path.rglob("*"))
    other_agent = POMBU("Point2D", preset="smoke", **{"seed": 3, **other})
    with pytest.raises(UsageError, match=f"holds an agent with another {name}"):
        other_agent.save(tmp_path / "agent")
    assert sorted(tmp_path.rglob("*")) == before


def test_unknown_options_are_refused_with_the_known_ones() -> None:
    said = r"no option 'alfa' .did you mean alpha.*it has .*beta"
    with pytest.raises(UsageError, match=said):
        POMBU("Point2D", preset="smoke", alfa=1.0)


def test_options_change_the_config() -> None:
    env = EnvConfig(id="Point2D", horizon=12)
    agent = POMBU(env, preset="smoke", alpha=0.25)
    assert agent.config.alpha == 0.25
    assert agent.config.env.horizon == 12
    assert agent.config.env.id == "pombu/Point2D-v0"


def test_uncertainty_of_one_step_is_the_spread_of_the_members(agent: POMBU) -> None:
    """With horizon 1, sqrt(U) is the standard deviation of r_j + gamma V(s_j)."""
    dynamics = agent.learner.dynamics(agent.state)
    rules = replace(agent.learner.rules, horizon=1)
    states, actions = jnp.asarray(STATES), jnp.asarray(ACTIONS)
    following, raw, _ = dynamics.step(states, actions)
    q = scaled_reward(raw, dynamics.return_std, rules.returns) + (
        rules.returns.gamma
        * predict_value(agent.state.value, dynamics.observation.normalise(following))
    )
    expected = np.asarray(jnp.std(q, 0) * dynamics.return_std)
    estimated = q_uncertainty(
        agent.state.policy,
        agent.state.value,
        dynamics,
        rules,
        states,
        actions,
        4,
        jax.random.key(0),
    )
    np.testing.assert_allclose(estimated, expected, rtol=1e-4)


def test_uncertainty_is_positive_and_grows_with_the_horizon(agent: POMBU) -> None:
    whole = agent.q_uncertainty(STATES, ACTIONS)
    assert whole.shape == (3,)
    assert np.all(whole > 0)
    dynamics, rules = agent.learner.dynamics(agent.state), agent.learner.rules
    one_step = q_uncertainty(
        agent.state.policy,
        agent.state.value,
        dynamics,
        replace(rules, horizon=1),
        jnp.asarray(STATES),
        jnp.asarray(ACTIONS),
        1,
        jax.random.key(0),
    )
    assert np.all(whole >= np.asarray(one_step) - 1e-6)


def test_where_all_trajectories_run_away_nothing_is_sure(agent: POMBU) -> None:
    """At the edge of the bound the first state is within it and the next are not."""
    dynamics = agent.learner.dynamics(agent.state)
    rules = replace(agent.learner.rules, runaway=2.0)
    edge = jnp.asarray([[1.0, 1.0], [50.0, 50.0]])
    estimated = q_uncertainty(
        agent.state.policy,
        agent.state.value,
        dynamics,
        rules,
        edge,
        jnp.zeros((2, 2)),
        4,
        jax.random.key(0),
    )
    assert np.isfinite(estimated[0])
    assert np.isinf(estimated[1])


def test_a_single_member_is_never_uncertain() -> None:
    config = preset("pombu", "smoke", "Point2D")
    config = replace(config, model=replace(config.model, members=1))
    agent = POMBU("Point2D", config=config).learn(total_timesteps=60)
    np.testing.assert_array_equal(agent.q_uncertainty(STATES, ACTIONS), 0.0)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (np.ones(3), np.ones(2)),
        (STATES, ACTIONS[:2]),
        (np.full((1, 2), np.nan), np.ones((1, 2))),
    ],
)
def test_misfitting_pairs_are_refused(
    agent: POMBU, observation: np.ndarray, action: np.ndarray
) -> None:
    with pytest.raises(UsageError):
        agent.q_uncertainty(observation, action)


def test_public_names_resolve() -> None:
    for name in dir(pombu):
        getattr(pombu, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(pombu, "nothing")  # noqa: B009
