"""An environment that pombu has never seen, from its name to a trained policy."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import probes
import pytest

from pombu import POMBU, EnvConfig, UsageError
from pombu.algorithms.registry import ALGORITHMS, PRESETS, options, preset
from pombu.cli import main
from pombu.cli.lists import check_and_describe
from pombu.data.episodes import from_bytes
from pombu.envs import check, collect_rounds, load

MODELLING = [name for name in ALGORITHMS if "model.termination" in options(name)]
SMOKE = ["--preset", "smoke", "--total-steps"]


@pytest.mark.parametrize("algorithm", MODELLING)
def test_presets_learn_what_an_environment_does_not_know(algorithm: str) -> None:
    for name in PRESETS:
        model = preset(algorithm, name, "Pendulum-v1").model
        assert (model.reward, model.termination) == ("learned", "learned")
        model = preset(algorithm, name, "probes:with_reward").model
        assert (model.reward, model.termination) == ("known", "learned")
        model = preset(algorithm, name, "probes:with_end").model
        assert (model.reward, model.termination) == ("learned", "known")
        model = preset(algorithm, name, "HalfCheetah").model
        assert (model.reward, model.termination) == ("known", "known")


def test_presets_follow_the_environments_time_limit() -> None:
    for env, horizon in [("Pendulum-v1", 200), ("probes:corridor", 12)]:
        for algorithm in ("pombu", "meppo"):
            for name in PRESETS:
                preset(algorithm, name, env).require_full_minibatches(horizon)
    config = preset("pombu", "fast", "Pendulum-v1")
    assert config.trajectories * 200 == config.least_steps == 1000
    assert config.env == EnvConfig(id="Pendulum-v1")


def test_an_explicit_value_wins(capsys: Any, tmp_path: Path) -> None:
    arguments = ["train", "--env", "Pendulum-v1", "--model.reward", "known"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    assert "no known reward function" in capsys.readouterr().err


def test_rounds_go_on_until_there_are_enough_steps() -> None:
    task = load("probes:corridor")
    seeds: list[int] = []

    def round_of(index: int) -> Any:
        seeds.extend(own := [10 * index, 10 * index + 1])
        return lambda observations, _: np.ones((2, 1)), own

    episodes = collect_rounds(task, round_of, 20)
    assert len(episodes) == len(seeds)
    assert sum(map(len, episodes)) >= 20
    assert sum(map(len, episodes[:-2])) < 20
    assert all(episode.terminated for episode in episodes)
    starts = [float(episode.observations[0, 0]) for episode in episodes]
    again = collect_rounds(task, lambda _: (lambda *_: np.ones((2, 1)), seeds[-2:]), 0)
    assert [float(e.observations[0, 0]) for e in again] == starts[-2:]


def test_a_partial_contract_is_compared_as_far_as_it_goes() -> None:
    task = load("probes:with_reward")
    assert task.known == {"reward"}
    found = {f.subject: f for f in check(task, 40, resets=5).findings}
    assert "largest error" in found["reward"].detail
    assert "not known" in found["termination"].detail
    assert check(load("probes:with_end"), 40, resets=5).passed
    assert not check(load("probes:misshapen"), 40, resets=5).passed


def test_train_says_what_it_will_use() -> None:
    for env, reward, ends in [
        ("probes:corridor", "learned beside the dynamics", "learned from real"),
        ("probes:with_reward", "own function", "learned from real"),
        ("probes:with_end", "learned beside the dynamics", "own function"),
    ]:
        config = preset("pombu", "fast", env)
        sizes, *lines = check_and_describe(load(env), config)
        assert "2 observed numbers" in sizes
        assert "at most 12 steps" in sizes
        assert reward in lines[0]
        assert ends in lines[1]
        assert "observed" in lines[2]
    assert check_and_describe(load("Point2D"), preset("pombu", "fast", "Point2D")) == []


@pytest.mark.parametrize("algorithm", ["pombu", "metrpo", "slbo"])
def test_learns_where_real_episodes_end(
    algorithm: str, capsys: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = ["train", "--env", "probes:corridor", "--algo", algorithm, *SMOKE]
    assert main([*arguments, "40", "--out", str(run)]) == 0
    assert "termination: learned" in capsys.readouterr().out
    header, *rows = (run / "metrics.csv").read_text().splitlines()
    last = dict(zip(header.split(","), rows[-1].split(","), strict=True))
    assert float(last["termination_missed"]) <= 0.5
    assert 0.0 <= float(last["termination_invented"]) <= 0.5


@pytest.mark.parametrize("env", ["still", "AtOnce"])
def test_odd_but_honest_environments_train(env: str, tmp_path: Path) -> None:
    """Constant observations, and an episode that is over after one step."""
    flags = [*SMOKE, "4", "--horizon", "12", "--out", str(tmp_path / "run")]
    assert main(["train", "--env", f"probes:{env}", *flags]) == 0


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("Raises", "raised OSError: the cable came loose"),
        ("Nan", "observation that is not finite"),
        ("Shape", "5 entries where its space has 2"),
    ],
)
def test_faults_in_mid_run_keep_what_was_collected(
    env: str, said: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    # 380 of the 400 good steps are gone when the first iteration begins to collect.
    monkeypatch.setattr(probes.Late, "steps", 380)
    run = tmp_path / "run"
    flags = [*SMOKE, "900", "--no-check", "--horizon", "12", "--out", str(run)]
    assert main(["train", "--env", f"probes:{env}", *flags]) == 1
    error = capsys.readouterr().err
    assert re.search(said, error)
    assert error.strip().count("\n") == 0
    (kept,) = (run / "episodes").glob("kept-*.safetensors")
    assert 0 < sum(map(len, from_bytes(kept.read_bytes()))) <= 20


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("toys:Raises", "the cable came loose"),
        ("toys:NanReward", "not finite"),
        ("probes:misshapen", r"reward.*shape"),
    ],
)
def test_the_check_refuses_what_would_spoil_the_run(
    env: str, said: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "envs"))
    flags = [*SMOKE, "30", "--out", str(tmp_path / "run")]
    assert main(["train", "--env", env, *flags]) == 2
    error = capsys.readouterr().err.strip()
    assert re.search(said, error)
    assert "\n" not in error
    assert not (tmp_path / "run").exists()


def test_a_misshapen_reward_is_named_without_the_check_too() -> None:
    agent = POMBU("probes:misshapen", preset="smoke")
    with pytest.raises(UsageError, match=r"reward function gave shape .* reduce the"):
        agent.learn(total_timesteps=10)


@pytest.mark.parametrize("env", ["probes:untraceable", "probes:branching"])
def test_a_contract_that_cannot_be_compiled_is_the_users(env: str) -> None:
    (reward,) = (
        f for f in check(load(env), 20, resets=5).findings if f.subject == "reward"
    )
    assert reward.verdict == "fail"
    assert "write it with jax.numpy" in reward.detail
    with pytest.raises(UsageError, match=r"jnp.where instead of if"):
        POMBU(env, preset="smoke").learn(total_timesteps=10)


def test_a_misspelt_function_is_noticed() -> None:
    task = load("probes:misspelt")
    assert task.known == {"terminal"}
    (found,) = (
        f
        for f in check(task, 20, resets=5).findings
        if f.verdict == "warn" and f.subject == "contract"
    )
    assert "its 'rewards' is not used" in found.detail
    assert any(
        "name it 'reward'" in line
        for line in check_and_describe(task, preset("pombu", "fast", "probes:misspelt"))
    )
    plain = check(load("probes:with_end"), 20, resets=5).findings
    assert all(f.subject != "contract" for f in plain)


def test_a_reward_that_is_not_known_is_not_promised() -> None:
    config = preset("pombu", "fast", "probes:corridor")
    known = replace(config, model=replace(config.model, reward="known"))
    with pytest.raises(
        UsageError, match=r"probes:corridor .*model\.reward .*'learned'"
    ):
        check_and_describe(load("probes:corridor"), known)


def test_actions_beyond_the_box_are_as_uncertain_as_its_bounds() -> None:
    agent = POMBU("probes:corridor", preset="smoke")
    agent.learn(total_timesteps=10)
    observation = np.array([0.1, 1.0], np.float32)
    far, bound, middle = (agent.q_uncertainty(observation, [a]) for a in (9, 0.5, 0))
    assert far.shape == (1,)
    np.testing.assert_array_equal(far, bound)
    assert far != middle


def test_a_module_without_its_factory_is_recognised(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ant.py").write_text("")
    with pytest.raises(UsageError, match="give ant:factory"):
        load("ant")


def test_another_environment_than_the_runs_is_named(
    tmp_path: Path, capsys: Any
) -> None:
    out = str(tmp_path / "run")
    assert main(["train", "--env", "probes:corridor", *SMOKE, "10", "--out", out]) == 0
    assert main(["evaluate", out, "--env", "probes:still"]) == 2
    assert "trained on probes:corridor, not on probes:still" in capsys.readouterr().err
    assert main(["train", "--env", "probes:corridor", "--out", out]) == 2
    assert f"pombu resume {out} --env probes:corridor" in capsys.readouterr().err


def test_a_factory_may_be_given_itself() -> None:
    agent = POMBU(probes.corridor, preset="smoke")
    assert agent.config.env.id == "probes:corridor"
    unnamed = POMBU(lambda: probes.corridor(), preset="smoke")
    assert unnamed.config.env.id.startswith("python:")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    ["shimmy:dm_control/cartpole-balance-v0", "gymnasium_robotics:FetchReachDense-v4"],
)
def test_other_suites_train_or_say_in_a_sentence_why_not(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may not be installed, or not work with this version of MuJoCo."""
    run = tmp_path / "run"
    flags = ["--preset", "smoke", "--total-steps", "20", "--evaluate", "none"]
    code = main(["train", "--env", name, *flags, "--out", str(run)])
    told = capsys.readouterr().err
    if code == 0:
        assert open_run(run).rows()[-1]["real_steps"] >= 20
    else:
        assert code == 2
        assert told.startswith("pombu: ")
        assert name.partition(":")[0] in told
        assert not run.exists()


@pytest.mark.parametrize("env", ["probes:corridor", "probes:with_reward"])
def test_a_policy_is_exported_without_its_environment(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The folder knows sizes and bounds, so that no code need be trusted."""
    run, asked, alone = (tmp_path / name for name in ("run", "a.onnx", "b.onnx"))
    flags = ["--env", env, "--preset", "smoke", "--total-steps", "40"]
    assert main(["train", *flags, "--out", str(run)]) == 0
    assert main(["export", str(run), str(asked), "--env", env]) == 0
    monkeypatch.delattr(f"probes.{env.partition(':')[2]}")
    assert main(["export", str(run), str(alone)]) == 0
    assert alone.read_bytes() == asked.read_bytes()
    kept = run / "task.json"
    kept.write_text(kept.read_text().replace('"horizon"', '"horizont"'))
    assert main(["export", str(run), str(tmp_path / "c.onnx")]) == 1
    assert "task.json" in capsys.readouterr().err
