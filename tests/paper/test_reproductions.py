"""Each reproduction of the uncertainty pictures leaves its files and known numbers."""

import csv
import gzip
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from pombu.cli.experiments import Reproduce
from pombu.envs import load
from pombu.errors import UsageError
from pombu.paper.point_experiment import (
    PointOutcome,
    restore_outcome,
    run_datasets,
    take_datasets,
)
from pombu.paper.point_figures import (
    BINS,
    PUBLISHED_BINS,
    draw_histograms,
    histogram_rows,
)
from pombu.paper.point_model import POINT_PROFILES, as_published, random_policy
from pombu.paper.point_recalibration import recalibrated
from pombu.paper.reproduce import PAGES, find, names


def files(folder):
    return {path.name for path in folder.iterdir()}


def test_the_list_names_the_uncertainty_pictures(capsys):
    assert {"appendix-c", "figure-1", "figure-scatter"} <= set(names())
    assert Reproduce().run() == 0
    assert "appendix-c" in capsys.readouterr().out
    for name in ("appendix-c", "figure-1", "figure-scatter"):
        assert find(name).default == "paper"


def test_everything_but_pages_has_a_line_for_the_overview():
    for found in map(find, set(names()) - set(PAGES)):
        assert (found.item is None) == (found.tell is not None), found.name


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no reproduction 'figure-9'.*appendix-c"):
        Reproduce(name="figure-9").run()


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/deeper .*--out"):
        Reproduce(name="appendix-c", out=tmp_path / "file" / "deeper").run()


def test_appendix_c(tmp_path, capsys):
    command = Reproduce(name="appendix-c", profile="paper", out=tmp_path, json=True)
    assert command.run() == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    says = json.loads((tmp_path / "line.json").read_text())["says"]
    assert says == (
        "H = 16: the true variance of Q is 0.508, the bound U 0.593 (1.17 times), "
        "UBE's B 342 (673 times)"
    )
    assert round(numbers["H=16"]["D"], 8) == 0.50793651
    assert round(numbers["H=8"]["U"], 8) == 0.5924773
    assert round(numbers["H=4"]["B"], 5) == 21.58203
    assert {
        "appendix-c.png",
        "appendix-c.pdf",
        "appendix-c.csv",
        "possible-mdps.png",
        "possible-mdps.pdf",
        "summary.json",
        "config.json",
        "versions.json",
    } <= files(tmp_path)
    with open(tmp_path / "appendix-c.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(H + 1 for H in (2, 4, 8, 16))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["horizons"] == [2, 4, 8, 16]
    assert "jax" in json.loads((tmp_path / "versions.json").read_text())


@pytest.fixture(scope="module")
def figure_1(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figure-1")
    assert Reproduce(name="figure-1", profile="smoke", out=folder).run() == 0
    return folder


def test_figure_1(figure_1):
    assert {
        "figure-1.png",
        "figure-1.pdf",
        "coverage.png",
        "coverage.pdf",
        "histograms.csv",
        "calibration.json",
        "config.json",
        "versions.json",
    } <= files(figure_1)
    scores = json.loads((figure_1 / "calibration.json").read_text())
    assert set(scores) == {"Point2D", "Point3D"}
    for found in scores.values():
        assert set(found["stages"]) == {"0", "5", "10", "15", "flat", "timed"}
        assert found["stages"]["flat"]["mean_z_squared"]["mean"] > 0
        assert len(found["mean_z_squared_by_dataset"]["flat"]) == 2


def test_figure_1_is_the_same_when_read_back(figure_1, tmp_path):
    settings = POINT_PROFILES["smoke"]
    again = restore_outcome(settings, "Point2D", 0, figure_1 / "datasets")
    assert again is not None
    with gzip.open(figure_1 / "datasets" / "Point2D-0.csv.gz", "rt") as file:
        errors = [float(row["error"]) for row in csv.DictReader(file)]
    np.testing.assert_array_equal(again.error, errors)
    read = run_datasets(settings, figure_1 / "datasets", say=pytest.fail)
    np.testing.assert_array_equal(read[0].sigma["flat"], again.sigma["flat"])


def test_figure_1_is_drawn_again_from_its_datasets(figure_1, tmp_path, monkeypatch):
    monkeypatch.setattr("pombu.paper.point_experiment.measure_dataset", None)
    redraw = find("figure-1").redraw
    redraw("smoke", figure_1, tmp_path)
    first, again = (
        json.loads((folder / "calibration.json").read_text())
        for folder in (figure_1, tmp_path)
    )
    for name, found in first.items():
        for stage, numbers in found["mean_z_squared_by_dataset"].items():
            due = again[name]["mean_z_squared_by_dataset"][stage]
            # What is kept has fewer digits.
            np.testing.assert_allclose(due, numbers, rtol=1e-4)
    with pytest.raises(UsageError, match=r"dataset 0 .*--from"):
        redraw("fast", figure_1, tmp_path)


def test_as_many_datasets_are_taken_as_every_environment_has(figure_1, tmp_path):
    kept, settings = tmp_path / "kept", POINT_PROFILES["smoke"]
    shutil.copytree(figure_1 / "datasets", kept)
    (kept / "Point3D-1.json").unlink()
    taken = take_datasets(settings, kept, tmp_path / "out")
    assert (settings.datasets, taken.datasets) == (2, 1)
    assert sorted(files(tmp_path / "out")) == [
        f"{name}-0.{ending}"
        for name in ("Point2D", "Point3D")
        for ending in ("csv.gz", "json")
    ]


def test_datasets_from_before_a_setting_was_added_are_taken_up():
    """What is kept in results was made before there were two readings."""
    kept = Path(__file__).parents[2] / "results/uncertainty/figure-1/datasets"
    assert restore_outcome(POINT_PROFILES["paper"], "Point2D", 0, kept) is not None
    published = as_published(POINT_PROFILES["paper"])
    assert restore_outcome(published, "Point2D", 0, kept) is None


def test_the_published_policy_nearly_stands_still():
    task, key = load("Point2D"), jax.random.key(0)
    settings = POINT_PROFILES["smoke"]
    text, code = (
        random_policy(one, task, key) for one in (settings, as_published(settings))
    )
    states = jax.random.normal(key, (50, 2))
    np.testing.assert_allclose(code(states), 0.01 * text(states), atol=1e-6)


def outcome(number, error, sigma):
    error, sigma = np.asarray(error, float), np.asarray(sigma, float)
    return PointOutcome(
        environment="Point2D",
        dataset=number,
        error=error,
        sigma={"flat": sigma},
        member_variance=sigma**2,
        member_error=error,
        epochs={},
        losses={},
        model_loss=(1.0,) * 5,
        model_epochs=(1.0,) * 5,
    )


def test_a_dataset_is_scaled_by_the_others():
    """Mean z^2 is 4, 9 and 25: the first is scaled by the root of (9 + 25) / 2."""
    outcomes = [outcome(i, [c, -c], [1, 1]) for i, c in enumerate((2.0, 3.0, 5.0))]
    scaled = [one.sigma["flat"][0] for one in recalibrated(outcomes)]
    np.testing.assert_allclose(scaled, np.sqrt([17.0, 14.5, 6.5]))


def test_the_published_histogram_leaves_outsiders_out():
    """Of four ratios one lies at 3: the rest sums to 1, as published."""
    by_task = {"Point2D": [outcome(0, [0, 1, -1, 3], np.ones(4))]}
    for bins in (BINS, PUBLISHED_BINS):
        rows = histogram_rows(by_task, bins)
        area = sum(float(row[4]) * (float(row[3]) - float(row[2])) for row in rows)
        assert area == pytest.approx(1.0, rel=1e-5)
    figure = draw_histograms(by_task, PUBLISHED_BINS)
    assert "25% outside" in figure.axes[0].texts[0].get_text()


def test_both_readings_and_their_recalibration(figure_1, tmp_path):
    with pytest.raises(UsageError, match=r"figure-1-code.*--profile smoke"):
        Reproduce(
            name="figure-1-recalibrated", profile="smoke", out=tmp_path / "nothing"
        ).run()
    shutil.copytree(figure_1, tmp_path / "figure-1")
    code = Reproduce(
        name="figure-1-code", profile="smoke", out=tmp_path / "figure-1-code"
    )
    assert code.run() == 0
    assert "figure-1-code.png" in files(tmp_path / "figure-1-code")
    out = tmp_path / "figure-1-recalibrated"
    assert Reproduce(name=out.name, profile="smoke", out=out).run() == 0
    assert {"figure-1-recalibrated.png", "z-squared.png", "config.json"} <= files(out)
    scores = json.loads((out / "recalibrated.json").read_text())
    assert set(scores) == {"figure-1", "figure-1-code"}
    for by_task in scores.values():
        for found in by_task.values():
            # With two datasets one's scale is the root of the other's mean z^2.
            before, after = found["before"]["flat"], found["after"]["flat"]
            c = np.array(found["scale"]["flat"]) ** 2
            assert before["mean_z_squared"]["mean"] == pytest.approx(c.mean())
            assert after["mean_z_squared"]["mean"] == pytest.approx(
                np.mean(c[::-1] / c)
            )


def test_figure_scatter_takes_up_finished_datasets(figure_1, tmp_path, capsys):
    (tmp_path / "datasets").mkdir()
    for name in ("Point2D-0.json", "Point2D-0.csv.gz"):
        data = (figure_1 / "datasets" / name).read_bytes()
        (tmp_path / "datasets" / name).write_bytes(data)
    assert Reproduce(name="figure-scatter", profile="smoke", out=tmp_path).run() == 0
    assert "dataset 1" not in capsys.readouterr().err
    assert {
        "figure-scatter.png",
        "figure-scatter.pdf",
        "pairs.csv",
        "summary.json",
        "config.json",
        "versions.json",
    } <= files(tmp_path)


def test_other_settings_are_not_taken_for_the_same(figure_1):
    assert (
        restore_outcome(POINT_PROFILES["fast"], "Point2D", 0, figure_1 / "datasets")
        is None
    )


def test_the_page_is_made_of_the_files(figure_1, tmp_path):
    with pytest.raises(UsageError, match=r"missing.*pombu reproduce appendix-c"):
        Reproduce(name="uncertainty-page", out=tmp_path).run()
    parts = tmp_path / "uncertainty"
    Reproduce(name="appendix-c", profile="smoke", out=parts / "appendix-c").run()
    shutil.copytree(figure_1, parts / "figure-1")
    (parts / "figure-scatter").mkdir()
    summary = {"flat": {"spearman": 0.5, "mean_z_squared": 1.0}}
    (parts / "figure-scatter" / "summary.json").write_text(json.dumps(summary))
    assert Reproduce(name="uncertainty-page", out=tmp_path).run() == 0
    page = (tmp_path / "uncertainty.md").read_text()
    assert "| 4 | 0.50140381 | 0.50140381 | 0.57696533 | 21.58203 |" in page
    assert "### 3D-point" in page
    assert "V(s) until flat 0.50" in page
    assert "After recalibration" not in page
    beside = parts / "figure-1-recalibrated"
    assert Reproduce(name=beside.name, profile="smoke", out=beside).run() == 0
    shutil.copytree(parts / "figure-1", parts / "figure-1-code")
    (parts / "figure-1-code" / "config.json").write_text(
        json.dumps({"command": "made by hand", "settings": {"value_pool": 7}})
    )
    assert Reproduce(name="uncertainty-page", out=tmp_path).run() == 0
    page = (tmp_path / "uncertainty.md").read_text()
    assert "## After recalibration" in page
    assert "7 trajectories are imagined once" in page
