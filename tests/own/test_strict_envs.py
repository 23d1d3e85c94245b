"""Right environments that are particular: boxes, shapes, dtypes, shared arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strict_envs
from hypothesis import given
from hypothesis import strategies as st

from pombu import POMBU, EnvConfig, UsageError
from pombu.agent.runs import algorithm_of
from pombu.algorithms import registry
from pombu.algorithms.pombu.config import POMBUConfig
from pombu.algorithms.registry import preset
from pombu.cli import main
from pombu.envs import ActionBox, CollectionError, check, collect, load
from pombu.envs.environment import ActionBox as Box
from pombu.training.run import open_run

BOUNDS = st.tuples(
    st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32)
).filter(lambda pair: pair[0] < pair[1])
SMOKE = {"preset": "smoke", "seed": 1}


@given(BOUNDS, st.floats(-3, 3, width=32), st.sampled_from(["float32", "float64"]))
def test_no_action_leaves_the_box(
    bounds: tuple[float, float], drawn: float, dtype: str
) -> None:
    low, high = bounds
    box = Box((low,), (high,), dtype=dtype)
    mapped = box.to_box(np.array([drawn], np.float32))
    sent = box.to_env(mapped)
    assert low <= float(mapped[0]) <= high
    assert low <= float(sent[0]) <= high
    assert sent.dtype == dtype


def test_actions_have_the_shape_of_the_environments_box() -> None:
    box = ActionBox((0.0,) * 4, (1.0,) * 4, (2, 2), "float64")
    assert box.to_env(np.zeros(4, np.float32)).shape == (2, 2)
    assert box.to_env(np.zeros((5, 4), np.float32)).shape == (5, 2, 2)


def test_a_strict_environment_passes_the_check() -> None:
    task = load("strict_envs:strict")
    assert task.observation_shape == (1, 2)
    report = check(task, 60, resets=5)
    assert report.passed, report
    corners = iter([-5.0, 5.0] * 10)
    episodes = collect(task, lambda *_: np.full((2, 4), next(corners)), [0, 1])
    assert [len(episode) for episode in episodes] == [12, 12]


def test_an_agent_keeps_shapes(tmp_path: Path) -> None:
    agent = POMBU(strict_envs.strict, **SMOKE)
    env = strict_envs.strict()
    observation, _ = env.reset(seed=0)
    action, _ = agent.predict(observation)
    assert env.action_space.contains(action)
    batch, _ = agent.predict(np.zeros((1, 1, 2)))
    assert batch.shape == (1, 2, 2)
    assert agent.predict(np.zeros((3, 2)))[0].shape == (3, 2, 2)
    assert agent.predict(np.zeros(2))[0].shape == (2, 2)
    assert env.action_space.contains(agent.propose()(observation))


def test_a_batch_of_one_is_a_batch() -> None:
    agent = POMBU("Point2D", **SMOKE)
    assert agent.predict(np.zeros((1, 2)))[0].shape == (1, 2)
    assert agent.predict(np.zeros(2))[0].shape == (2,)


def test_the_environment_that_is_named_is_the_one() -> None:
    agent = POMBU("Point3D", config=preset("pombu", "smoke", "Point2D"))
    assert agent.learner.task.config.id == "pombu/Point3D-v0"
    agent = POMBU(config=preset("pombu", "smoke", "Point2D"))
    assert agent.learner.task.config.id == "pombu/Point2D-v0"
    assert POMBUConfig().env == EnvConfig()


def test_a_reward_in_an_array_is_told() -> None:
    task = load("strict_envs:in_a_list")
    with pytest.raises(CollectionError, match=r"a reward of shape \(1,\)"):
        collect(task, lambda *_: np.zeros((2, 4)), [0, 1])


def test_what_was_learned_before_a_fault_stays(tmp_path: Path) -> None:
    strict_envs.Broken.steps = 10**6
    agent = POMBU(strict_envs.broken, **SMOKE)
    per_iteration = agent.config.trajectories * 12
    # One iteration with its evaluation, and a little.
    strict_envs.Broken.steps = per_iteration + 2 * 12 * agent.config.evaluation_episodes
    strict_envs.Broken.steps += 5
    with pytest.raises(CollectionError, match="the cable came loose"):
        agent.learn(10 * per_iteration)
    assert int(agent.state.iteration) == 1
    assert sum(map(len, agent.episodes)) == int(agent.state.real_steps)
    agent.save(tmp_path / "agent")
    loaded = POMBU.load(tmp_path / "agent", env=strict_envs.broken)
    assert int(loaded.state.iteration) == 1


def test_a_factory_s_run_can_be_used_by_its_own_hints(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    run = str(tmp_path / "run")
    flags = ["--preset", "smoke", "--total-steps", "24", "--out", run]
    assert main(["train", "--env", "strict_envs:strict", *flags]) == 0
    said = capsys.readouterr().out
    assert "which are not counted" in said
    hint = f"pombu evaluate {run} --env strict_envs:strict --episodes 100"
    assert hint in said
    assert main([*hint.split()[1:-1], "2"]) == 0
    assert main(["video", run, "--env", "strict_envs:strict"]) == 2
    error = capsys.readouterr().err
    assert "rgb_array" in error
    assert "bug" not in error


def test_a_script_s_environment_is_explained(tmp_path: Path) -> None:
    agent = POMBU(strict_envs.strict, **SMOKE)
    run = open_run(agent.save(tmp_path / "agent").parent.parent)
    config = {**run.spec.config, "env": {"id": "__main__:strict"}}
    script = replace(run, spec=replace(run.spec, config=config))
    with pytest.raises(UsageError, match=r"load\(path, env=\.\.\.\)"):
        algorithm_of(script)


def test_a_horizon_beyond_a_time_limit_is_refused() -> None:
    assert load("strict_envs:strict", horizon=5).horizon == 5
    with pytest.raises(UsageError, match=r"12 steps.* 13"):
        load("strict_envs:strict", horizon=13)


def test_a_name_that_begins_like_a_point_task_is_no_point_task() -> None:
    from pombu.algorithms.config import is_point

    assert is_point("Point2D")
    assert not is_point("PointMaze_UMaze-v3")


def test_an_unknown_algorithm_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="did you mean 'pombu'"):
        preset("pomdu", "fast", "Point2D")
    with pytest.raises(UsageError, match="There is no algorithm 'sizes'"):
        preset("sizes", "fast", "Point2D")


def test_presets_know_every_algorithm() -> None:
    for name in registry.ALGORITHMS:
        assert isinstance(preset(name, "smoke", "Point2D"), registry.config_type(name))
