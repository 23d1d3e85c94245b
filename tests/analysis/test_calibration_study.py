"""Calibration by stage: known answers of the scores, members alone, and a small run."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pombu.algorithms.pombu.learner import Learner
from pombu.algorithms.registry import preset
from pombu.analysis import calibration_study as judged
from pombu.cli import main
from pombu.data.episodes import EpisodeStore
from pombu.envs import load
from pombu.errors import UsageError
from pombu.rollout.held_out import real_steps
from pombu.training import checkpoint
from pombu.training.algorithm import StageTimer
from pombu.training.loop import identity
from pombu.training.run import RunSpec, create, open_run
from pombu.uncertainty.n_step import RealSteps, Windows

EPISODES, STEPS = 60, 100


def known(scale: float) -> tuple[RealSteps, dict[int, Windows]]:
    """Errors that are independent from step to step, `scale` times as large as sigma.

    With two members the deviations are +-1: sigma of a step is exactly 1.
    """
    rng = np.random.default_rng(0)
    errors = scale * rng.normal(size=(EPISODES, STEPS))
    members = np.stack([np.ones_like(errors), -np.ones_like(errors)])
    lengths, over = np.full(EPISODES, STEPS), np.zeros(EPISODES, bool)
    alone = {
        n: Windows(
            scale * rng.normal(size=300), np.ones(300), np.arange(300) % EPISODES
        )
        for n in judged.STEPS
    }
    return RealSteps(members, errors, lengths, over), alone


@pytest.fixture(scope="module")
def by_name() -> dict[tuple[Any, ...], Any]:
    rows = [
        row._replace(task="t", run="r", episodes=EPISODES)
        for row in judged.scores(*known(2.0), gamma=1.0, unit=5.0)
    ]
    return {(r.estimator, r.recalibrated, r.n): r for r in rows}


def test_independent_errors_are_right_for_u_once_scaled(by_name: Any) -> None:
    for n in judged.STEPS:
        raw, better = by_name["U", False, n], by_name["U", True, n]
        assert raw.mean_z_squared == pytest.approx(4.0, rel=0.25)
        assert raw.sharpness == pytest.approx(5 * np.sqrt(n))
        assert raw.scale == 1.0
        assert better.mean_z_squared == pytest.approx(1.0, rel=0.25)
        assert better.scale == pytest.approx(2.0, rel=0.1)
        assert better.coverage_90 == pytest.approx(0.9, abs=0.06)
        assert better.nll < raw.nll


def test_f_takes_members_at_their_word(by_name: Any) -> None:
    """Members that repeat their deviation differ by n, and sigma is too large by it."""
    for n in judged.STEPS:
        row = by_name["F", False, n]
        assert row.sharpness == pytest.approx(5.0 * n)
        assert row.mean_z_squared == pytest.approx(4.0 / n, rel=0.25)


def test_every_n_has_a_scale_of_its_own(by_name: Any) -> None:
    for n in judged.STEPS:
        row = by_name["F", True, n]
        assert row.scale == pytest.approx(2.0 / np.sqrt(n), rel=0.15)
        assert row.mean_z_squared == pytest.approx(1.0, abs=0.1)
        assert row.coverage_90 == pytest.approx(0.9, abs=0.05)


def test_scores_are_of_episodes_that_the_scale_has_not_seen() -> None:
    """One episode in twenty is wild: scaled by the others it is as wild as it was."""
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(20, 50))
    errors[7] *= 10.0
    members = np.stack([np.ones_like(errors), -np.ones_like(errors)])
    real = RealSteps(members, errors, np.full(20, 50), np.zeros(20, bool))
    alone = {n: judged.windows(real, n, 1.0) for n in judged.STEPS}
    rows = list(judged.scores(real, alone, 1.0))
    # Ten parts of two episodes each.
    squares, part = (errors**2).mean(1), np.arange(20) % 10
    scales = [squares[part != p].mean() for p in range(10)]
    want = np.mean(squares / np.array(scales)[part])
    assert want > 4
    (row,) = (r for r in rows if (r.estimator, r.recalibrated, r.n) == ("U", True, 1))
    assert row.mean_z_squared == pytest.approx(want)
    assert row.scale == pytest.approx(np.mean(np.sqrt(scales)))


def test_rho_finds_that_nothing_depends(by_name: Any) -> None:
    assert by_name["rho", True, 1].rho == pytest.approx(0.0, abs=0.1)
    assert by_name["members alone", True, 5].mean_z_squared == pytest.approx(
        1.0, rel=0.2
    )


def test_the_table_shows_means_over_n_and_the_verdict(by_name: Any) -> None:
    text = judged.text_of(list(by_name.values()))
    assert "| U_ρ, recalibrated |" in text
    # One scale for all n would leave F at 0 of 4: its sigma grows with n, not its root.
    for shown in ("U", "F", "U_ρ", "members alone"):
        assert f"| {shown} | 1 of 1 | 4 of 4 | 1 of 1 | 4 of 4 |" in text
    assert "Outside" not in text
    worse = [row._replace(coverage_90=0.7) for row in by_name.values()]
    assert "| U | 0 of 1 | 0 of 4 | 1 of 1 | 4 of 4 |" in judged.text_of(worse)
    assert "- F, t after 0: in 90 % 0.7 for n = 1, in" in judged.text_of(worse)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations of a smoke run, each with its checkpoint."""
    config = preset("pombu", "smoke", "Point2D")
    learner = Learner(load(config.env), config)
    path = tmp_path_factory.mktemp("runs") / "run"
    spec = RunSpec("pombu", "smoke", 0, 120, dataclasses.asdict(config))
    folder = create(path, spec)
    state, store = learner.init(0), EpisodeStore()
    for iteration in (1, 2):
        state, _ = learner.iterate(state, store, StageTimer())
        named = identity(learner, folder)
        checkpoint.save(folder.path, state, store, named, iteration)
    return path


def test_members_alone_follow_their_own_steps(run: Path) -> None:
    """Against a plain loop, one window and one member at a time."""
    folder = open_run(run)
    learner = judged.algorithm_of(folder)
    assert isinstance(learner, Learner)
    ((_, path),) = judged.stages_of(folder, ())
    template = learner.init(0)
    named = identity(learner, folder)
    state = checkpoint.load(path, template, named).state
    real, noise = judged.play(learner, state, 2)
    dynamics, rules = learner.dynamics(state), learner.rules
    gamma, unit = rules.returns.gamma, float(dynamics.return_std)

    def value(states: Any) -> Any:
        normal = dynamics.observation.normalise(states)
        return np.asarray(state.value(normal)[..., 0])

    n = 5
    found = judged.rolled_alone(
        state.policy, state.value, dynamics, rules, real, noise, n
    )
    assert len(found.error) == 2 * (learner.task.horizon - n + 1)
    for place in (0, 7):
        returns = []
        for k in range(dynamics.members.count):
            now = jnp.asarray(real[0].observations[place : place + 1])
            total = 0.0
            for i in range(n):
                mean = state.policy.mean(dynamics.observation.normalise(now))
                action = rules.box.to_box(mean + noise[place + i, 0])
                following, raw, _ = dynamics.step(now, action)
                now = following[k]
                total += gamma**i * float(raw[k, 0]) / unit
            returns.append(total + gamma**n * float(value(now)[0]))
        rewards = real[0].rewards[place : place + n]
        last = jnp.asarray(real[0].observations[place + n : place + n + 1])
        came = gamma ** np.arange(n) @ rewards / unit
        came += gamma**n * float(value(last)[0])
        assert found.sigma[place] == pytest.approx(np.std(returns), rel=2e-3)
        assert found.error[place] == pytest.approx(came - np.mean(returns), rel=2e-3)
    # A single step is the same whether members go alone or not.
    steps = real_steps(state.value, dynamics, rules, real, learner.task.horizon)
    one = judged.rolled_alone(
        state.policy, state.value, dynamics, rules, real, noise, 1
    )
    np.testing.assert_allclose(
        one.sigma, np.std(steps.member_q, 0).ravel(), rtol=1e-3, atol=1e-6
    )


def test_the_command_judges_the_stages_of_a_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["calibration-study", str(run), "--out", str(tmp_path)]
    command += ["--episodes", "10"]
    assert main([*command, "--after", "60", "120"]) == 0
    assert "Point2D after 120 real steps" in capsys.readouterr().out
    rows = judged.read(tmp_path / "calibration-study.csv")
    assert {row.stage for row in rows} == {60, 120}
    assert {row.real_steps for row in rows} == {60, 120}
    assert {row.estimator for row in rows} == set(judged.ESTIMATORS)
    assert {row.n for row in rows} == {1, 5, 20}, "episodes have 30 steps"
    assert all(row.episodes == 10 and row.episode_steps == 300 for row in rows)
    assert (
        judged.text_of(rows) + "\n" == (tmp_path / "calibration-study.md").read_text()
    )


def test_what_cannot_be_judged_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="after 60, 120 real steps and none near"):
        judged.stages_of(open_run(run), (100_000,))
    with pytest.raises(UsageError, match="episodes is 9"):
        list(judged.study([run], (), 9))
