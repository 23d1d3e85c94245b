"""What must not happen to a study: foreign code unasked, mixed steps, lost runs."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricated import panels_of, write_run

from pombu.analysis.curves import find_curves
from pombu.analysis.results_page import train_command
from pombu.cli import main
from pombu.envs import EnvConfig
from pombu.errors import StoppedError, UsageError
from pombu.paper import panel_runs
from pombu.paper.experiments import POMBU
from pombu.paper.panel_runs import (
    Request,
    choose,
    departed,
    gather_results,
)
from pombu.paper.reproduce import find, reproduce_all
from pombu.studies import backends, ray_backend
from pombu.studies.backends import FAILURE, BackendOptions
from pombu.studies.progress import PlainRuns, examine
from pombu.studies.ray_backend import FolderChanges, _require_listener, apply_changes
from pombu.studies.study import Job, Outcome, longest, prepare
from pombu.training.config_file import flat, to_json
from pombu.training.run import open_run

UNSEEN: Any = PlainRuns.__new__(PlainRuns)
JOB = Job("pombu", EnvConfig("HalfCheetah"), 0, total_steps=100_000)


def alone(seeds: tuple[int, ...], total_steps: int) -> Any:
    panel = panels_of("figure-4")[0]
    return replace(panel, arms=(POMBU,), seeds=seeds, total_steps=total_steps)


def drawing(tmp_path: Path) -> Request:
    return Request("fast", tmp_path, tmp_path / "no", (tmp_path,), train=False)


@pytest.mark.parametrize("command", [["study"], ["study", "status"]])
def test_a_study_file_runs_no_foreign_code(
    command: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("intruder.py").write_text("open('seen', 'w').close()")
    Path("study.toml").write_text(
        'algorithms = ["pombu"]\ntasks = ["intruder:make"]\npreset = "smoke"\n'
    )
    assert main([*command, "study.toml"]) == 2
    assert not Path("seen").exists()
    wanted = "add --trust intruder:make" if command == ["study"] else "no study was"
    assert wanted in capsys.readouterr().err


def test_seeds_of_different_length_are_not_averaged(tmp_path: Path) -> None:
    write_run(replace(JOB, total_steps=200_000), tmp_path / "a")
    write_run(replace(JOB, seed=1), tmp_path / "b")
    (group,) = gather_results(
        [alone((0, 1), 200_000)], drawing(tmp_path), UNSEEN
    ).groups
    assert [c.run.spec.seed for c in group.curves] == [0]
    assert (group.missing, group.steps) == ((1,), 200_000)
    (group,) = gather_results(
        [alone((0, 1), 400_000)], drawing(tmp_path), UNSEEN
    ).groups
    assert [int(c.rows[-1]["real_steps"]) for c in group.curves] == [100_000] * 2
    assert group.missing == (0, 1)


def test_a_run_with_today_s_values_comes_first(tmp_path: Path) -> None:
    write_run(JOB, tmp_path / "exact")
    other = replace(JOB, total_steps=400_000, overrides=(("model.max_steps", 77),))
    write_run(other, tmp_path / "other")
    found = choose(JOB, find_curves([tmp_path]))
    assert found is not None
    assert found.run.path.name == "exact"
    longer = choose(replace(JOB, total_steps=400_000), find_curves([tmp_path]))
    assert longer is not None
    config = flat(to_json(JOB.config()))
    assert departed(longer.run.spec, config) == ["model.max_steps = 77"]
    old = JOB.spec()
    del old.config["policy"]["initial_log_std"]
    assert departed(old, config) == ["policy.initial_log_std = 0.0"]


def test_an_item_without_runs_is_left_out_of_all(tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "runs"
    (panel,) = panels_of("figure-4")
    for job in panel.jobs(panel.arms[0]):
        write_run(job, source / job.name)
    request = replace(drawing(tmp_path), sources=(source,), out=tmp_path / "out")
    said: list[str] = []

    class Said(PlainRuns):
        def __init__(self) -> None:
            pass

        def say(self, text: str) -> None:
            said.append(text)

    quick = ["figure-1", "figure-4", "appendix-long", "overview"]
    find("overview")  # Its module keeps the names that it finds when it is imported.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pombu.paper.reproduce.names", lambda: quick)
        numbers, missing = reproduce_all(request, Said())
    # Runs of HalfCheetah are rows of the targets too.
    assert set(numbers) == {"figure-4", "targets"}
    assert any("appendix-long has no run yet" in text for text in said)
    assert "figure-1 has no run yet, and is left out" in said
    assert any(text.startswith("appendix-long: ") for text in missing)
    assert (tmp_path / "out" / "figure-4" / "figure-4.png").exists()


def test_a_signal_stops_the_reproduction(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(panel_runs, "run_study", lambda *_: Outcome((), signal=15))
    request = replace(drawing(tmp_path), train=True)
    with pytest.raises(StoppedError, match="the same command goes on"):
        gather_results([alone((0,), 1000)], request, UNSEEN)
    out = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert main(["reproduce", "figure-4", "--profile", "smoke", *out]) == 128 + 15
    assert not list((tmp_path / "out").glob("*.png"))


def test_a_run_that_failed_at_its_end_is_not_finished(tmp_path: Path) -> None:
    write_run(JOB, tmp_path / "run")
    assert examine(tmp_path / "run", 100_000).state == "finished"
    evaluation, failure = (
        tmp_path / "run" / "evaluation.json",
        tmp_path / "run" / FAILURE,
    )
    failure.write_text("the disk is full\n")
    os.utime(evaluation, ns=(0, 0))
    assert examine(tmp_path / "run", 100_000).state == "failed"
    evaluation.unlink()
    assert examine(tmp_path / "run", 99_000).state == "finished", (
        "a shorter one is in it"
    )
    assert examine(tmp_path / "run", 100_000).state == "failed"
    failure.unlink()
    assert examine(tmp_path / "run", 100_000).state == "interrupted"


def test_more_steps_make_an_evaluation_obsolete(tmp_path: Path) -> None:
    write_run(JOB, tmp_path / "run")
    open_run(tmp_path / "run").extend(200_000)
    assert examine(tmp_path / "run", 200_000).state == "interrupted"
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_a_study_may_ask_for_fewer_steps(tmp_path: Path) -> None:
    from pombu.studies.study import Planned

    write_run(JOB, tmp_path / "run")
    wanted = replace(JOB, total_steps=50_000)
    prepare(Planned(wanted, wanted.spec(), tmp_path / "run"))
    assert open_run(tmp_path / "run").spec.total_steps == 50_000


def test_runs_that_must_share_begin_at_different_cores(monkeypatch: Any) -> None:
    pinned: list[list[int]] = []
    monkeypatch.setattr(backends, "available_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(backends, "_claim_core", lambda *_: False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: pinned.append(list(to)))
    for pid in (100, 101, 102, 103):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        with backends.claimed_cores(1) as mine:
            assert len(mine) == 1
    assert sorted(pinned[::2]) == [[0], [1], [2], [3]]


def test_a_checkpoint_arrives_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: Any
) -> None:
    files = {
        "metrics.csv": b"iteration\n",
        "checkpoints/000001/state.safetensors": b"state",
        "checkpoints/000001/manifest.json": b"{}",
    }

    def full(path: Path, content: bytes) -> None:
        if path.name == "manifest.json":
            raise OSError("no space left")
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(ray_backend, "write_atomic", full)
        with pytest.raises(OSError, match="no space"):
            apply_changes(FolderChanges(files), tmp_path)
    assert not (tmp_path / "checkpoints" / "000001").exists()
    apply_changes(FolderChanges(files), tmp_path)
    whole = tmp_path / "checkpoints" / "000001"
    assert {path.name for path in whole.iterdir()} == {
        "state.safetensors",
        "manifest.json",
    }


def test_the_same_experiment_under_two_names_is_one_run() -> None:
    plain = Job("pombu", EnvConfig("HalfCheetah"), 0, "paper", 1000)
    named = replace(plain, overrides=(("alpha", 0.5), ("minimum_kl", None)))
    assert plain.config() == named.config()
    assert longest([plain, named]) == [plain]
    longer = replace(named, total_steps=2000)
    assert longest([plain, longer]) == [longer]


def test_max_lines_are_left_out_where_steps_are_given() -> None:
    item = find("figure-2").item
    assert item is not None
    whole = panel_runs.panels_of(item, Request("paper", Path()))
    short = panel_runs.panels_of(item, Request("paper", Path(), total_steps=10_000))
    assert any(arm.extended for panel in whole for arm in panel.arms)
    jobs = [job for panel in short for arm in panel.arms for job in panel.jobs(arm)]
    assert {job.total_steps for job in jobs} == {10_000}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (BackendOptions("ray", cores_per_run=0), "--cores-per-run is 0"),
        (BackendOptions("local", workers=0), "--workers is 0"),
        (BackendOptions("ray", retries=-1), "--retries is -1"),
        (BackendOptions("ray", gpus_per_run=-0.5), "--gpus-per-run is -0.5"),
    ],
)
def test_backend_options_are_checked(options: BackendOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        options.open()


def test_ray_client_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="cannot stream results"):
        _require_listener("ray://10.0.0.1:10001")


def test_a_run_s_command_asks_for_the_same_run() -> None:
    from pombu.cli.train import parse_train

    job = Job(
        "meppo",
        EnvConfig("HalfCheetah", horizon=1000, observation_noise=0.1),
        4,
        "smoke",
        900,
        overrides=(("model.hidden", (8, 9)), ("minimum_kl", None), ("alpha", 0.25)),
    )
    spec = job.spec()
    command = train_command(spec)
    assert "--observation-noise 0.1" in command
    again = parse_train(command.split()[2:])
    config = replace(again.config, env=again.environment)
    assert json.loads(json.dumps(to_json(config))) == json.loads(
        json.dumps(spec.config)
    )
    assert (again.seed, again.total_steps, again.preset) == (4, 900, "smoke")
