"""Runs fall into experiments, and their configs are compared."""

from pathlib import Path

import numpy as np
import pytest
from hand_made import write_run

from pombu.analysis.curves import Curve, differences, read_curves
from pombu.analysis.report.charts import arrange, entries_of, over_episodes, over_seeds


@pytest.fixture
def curves(tmp_path: Path) -> list[Curve]:
    write_run(tmp_path / "a", 0)
    write_run(tmp_path / "b", 0, alpha=1.5)
    write_run(tmp_path / "c", 1)
    return read_curves([tmp_path / name for name in "abc"])


def test_runs_that_differ_in_their_seed_alone_are_one_experiment(
    curves: list[Curve],
) -> None:
    first, second = arrange(curves)
    assert [entry.name for entry in first.entries] == ["a", "c"]
    assert first.label == "pombu (fast), alpha 0.5"
    assert second.label == "pombu (fast), alpha 1.5"
    assert [entry.number for entry in entries_of([first, second])] == [0, 1, 2]
    colours = {entry.colour for entry in first.entries}
    assert colours == {first.colour} != {second.colour}


def test_runs_of_one_experiment_have_their_own_colours(curves: list[Curve]) -> None:
    (one,) = arrange([curves[0], curves[2]])
    assert len({one.colour, *(entry.colour for entry in one.entries)}) == 3


def test_equal_folder_names_are_told_apart(tmp_path: Path) -> None:
    folders = [tmp_path / parent / "run" for parent in ("x", "y")]
    for seed, folder in enumerate(folders):
        write_run(folder, seed)
    names = [entry.name for entry in entries_of(arrange(read_curves(folders)))]
    assert names == list(map(str, folders))


def test_only_what_differs_is_listed(curves: list[Curve]) -> None:
    found = {row.key: row.values for row in differences(curves)}
    assert found == {"seed": ("0", "0", "1"), "alpha": ("0.5", "1.5", "0.5")}


def curve(steps: list[int], returns: list[float], like: Curve) -> Curve:
    pairs = zip(steps, returns, strict=True)
    return Curve(like.run, [{"real_steps": s, "return_real": r} for s, r in pairs])


def test_the_mean_is_taken_where_every_seed_has_come(curves: list[Curve]) -> None:
    band = over_seeds(
        [
            curve([0, 10, 20, 30], [0.0, 1.0, 2.0, 9.0], curves[0]),
            curve([5, 25], [4.0, 6.0], curves[0]),
        ]
    )
    assert band is not None
    np.testing.assert_allclose(band.steps, [5, 10, 20, 25])
    np.testing.assert_allclose(band.middle, [2.25, 2.75, 3.75, 5.75])
    # Of two seeds a quarter of the resamples is one seed twice: the interval is both.
    np.testing.assert_allclose(band.low, [0.5, 1.0, 2.0, 5.5])
    np.testing.assert_allclose(band.high, [4.0, 4.5, 5.5, 6.0])


def test_seeds_without_common_steps_have_no_mean(curves: list[Curve]) -> None:
    early = curve([0, 1], [0.0, 0.0], curves[0])
    assert over_seeds([early, curve([5, 6], [0.0, 0.0], curves[0])]) is None


def test_one_run_is_shaded_with_the_spread_of_its_episodes(
    curves: list[Curve],
) -> None:
    band = over_episodes(curves[0])
    assert band is not None
    np.testing.assert_allclose(band.high - band.middle, 20.0)
    np.testing.assert_allclose(band.middle - band.low, 20.0)
