"""Model error on stored episodes: splits and numbers by hand, and a small study."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pombu.algorithms.pombu.learner import Learner
from pombu.algorithms.registry import preset
from pombu.analysis.model_study import Row, errors, split, variant_of
from pombu.cli import main
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.config import ModelConfig
from pombu.envs import EnvConfig, Episode, collect, load
from pombu.errors import UsageError
from pombu.training import checkpoint
from pombu.training.loop import identity
from pombu.training.run import RunSpec, create

START = Row("r", "t", "v", 0, "held out", 0, "", 0, 0, 0, 0, 0.5, 1.0)


def episode(length: int, mark: float = 0.0) -> Episode:
    return Episode(
        np.full((length + 1, 2), mark, np.float32),
        np.zeros((length, 1), np.float32),
        np.zeros(length, np.float32),
        False,
    )


def marks(episodes: list[Episode]) -> list[int]:
    return [int(one.observations[0, 0]) for one in episodes]


def test_the_first_part_is_learned_from_and_the_next_iterations_are_newer() -> None:
    """Six iterations of three episodes, of which two thirds are the first part."""
    iterations = [[episode(4, 3 * i + n) for n in range(3)] for i in range(6)]
    parts = split(iterations, 4 / 6)
    assert marks(parts.held_out) == [4, 9]
    assert marks(parts.training) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]
    assert marks(parts.newer) == [12, 13, 14], "at least two, in whole iterations"


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_that_is_too_short_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match="too few to learn from some"):
        split([[episode(4), episode(4)]] * number, 0.5)


def test_errors_by_hand() -> None:
    """Two members and two segments of 5 and 1 steps; the error grows with time in the
    first dimension and is twice that of the step in the second member's second."""
    gap = np.zeros((5, 2, 2, 2))
    gap[..., 0] = np.arange(1, 6)[:, None, None]
    gap[:, 1, :, 1] = 2 * np.arange(1, 6)[:, None]
    gap[4, :, 1] = np.nan
    found = {(r.horizon, r.dimension): r for r in errors(gap, np.array([5, 1]), START)}
    assert set(found) == {(h, d) for h in (1, 5) for d in ("all", "0", "1")}
    first = found[1, "all"]
    assert first.segments == 2
    assert first.rmse == pytest.approx(np.sqrt((0.5 + 2.5) / 2))
    assert first.median == pytest.approx((np.sqrt(0.5) + np.sqrt(2.5)) / 2)
    assert found[5, "all"].segments == 1
    assert found[5, "0"].rmse == pytest.approx(5.0)
    assert found[5, "1"].rmse == pytest.approx(np.sqrt(50.0))
    assert found[5, "1"].ninth_decile == pytest.approx(9.0)


def test_what_diverges_is_large_but_finite() -> None:
    gap = np.array([np.inf, np.nan]).reshape(1, 1, 2, 1)
    for row in errors(gap, np.array([1, 1]), START):
        assert (row.rmse, row.median) == (1e6, 1e6)


def test_variants_are_names_and_fields() -> None:
    base = ModelConfig(max_steps=2000)
    text = "wide:hidden=512x64,activation=silu,learning_rate=1e-3,max_steps=50"
    variant = variant_of(text, base)
    changes: dict[str, Any] = {"activation": "silu", "learning_rate": 1e-3}
    expected = dataclasses.replace(base, hidden=(512, 64), max_steps=50, **changes)
    assert (variant.name, variant.config) == ("wide", expected)
    assert variant_of("same", base).config == base
    for wrong in ("a:depth=3", "a:hidden", "a:activation=tanh", "a:members=many"):
        with pytest.raises(UsageError, match="--variant a"):
            variant_of(wrong, base)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with three iterations of random actions."""
    env = EnvConfig(id="Point2D", horizon=30)
    config = dataclasses.replace(preset("pombu", "smoke", "Point2D"), env=env)
    learner = Learner(load(env), config)
    spec = RunSpec("pombu", "smoke", 0, 90, dataclasses.asdict(config))
    run = create(tmp_path_factory.mktemp("runs") / "point", spec)
    rng, store = np.random.default_rng(0), EpisodeStore()

    def act(observations: np.ndarray, step: int) -> np.ndarray:
        return rng.uniform(-1, 1, (len(observations), 2))

    for iteration in range(3):
        seeds = list(range(5 * iteration, 5 * iteration + 5))
        store.append(collect(learner.task, act, seeds))
        state = learner.init(0)
        checkpoint.save(run.path, state, store, identity(learner), iteration + 1)
    return run.path


def table(folder: Path) -> list[dict[str, str]]:
    text = (folder / "model-study.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def test_a_small_study(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More steps leave less error; the same seed gives the same numbers."""
    variants = ["--variant", "little:max_steps=1", "more:activation=silu"]
    command = ["model-study", str(stored), *variants, "--steps", "300", "--out"]
    assert main([*command, str(tmp_path / "first")]) == 0
    assert "## Point2D (point), newer policy" in capsys.readouterr().out
    rows = table(tmp_path / "first")
    assert {(r["test"], r["horizon"]) for r in rows} == {
        (test, horizon)
        for test in ("held out", "newer policy")
        for horizon in ("1", "5", "20")
    }
    whole = [r for r in rows if (r["dimension"], r["horizon"]) == ("all", "20")]
    medians = {(r["variant"], r["test"]): float(r["median"]) for r in whole}
    for test in ("held out", "newer policy"):
        assert medians["more", test] < 0.5 * medians["little", test]
    assert main([*command, str(tmp_path / "again")]) == 0
    for one, other in zip(rows, table(tmp_path / "again"), strict=True):
        assert one | {"fit_seconds": ""} == other | {"fit_seconds": ""}


def test_wrong_options_are_refused(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--share", "1"], ["--steps", "0"]):
        command = ["model-study", str(stored), "--out", str(tmp_path), *option]
        assert main(command) == 2
        assert "must" in capsys.readouterr().err
