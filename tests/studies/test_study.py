"""A study: its file, its folders, and the loop that has every run."""

import contextlib
import dataclasses
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pombu.cli import main
from pombu.cli.experiments import closing_lines
from pombu.envs import EnvConfig
from pombu.errors import RunError, UsageError
from pombu.studies import backends
from pombu.studies.backends import (
    FAILURE,
    BackendOptions,
    EndState,
    LocalBackend,
    failure_sentence,
    train,
)
from pombu.studies.progress import (
    LiveTable,
    PlainRuns,
    display_on,
    examine,
    pace,
    table,
    time_left,
)
from pombu.studies.study import Job, Outcome, plan, require_trusted, run_study, status
from pombu.studies.study_file import key_lines, read_study
from pombu.training.metrics import MetricsFile, read_rows
from pombu.training.run import create, open_run

STUDY = """
algorithms = ["pombu", "meppo"]
tasks = ["Point2D"]
seeds = 2
preset = "smoke"
total_steps = 60
out = "runs/mine"

[overrides]
updates = 1
model.hidden = [8, 8]

[grid]
trajectories = [1, 2]
"""


def written(tmp_path: Path, text: str = STUDY) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def test_a_file_is_a_grid(tmp_path: Path) -> None:
    study = read_study(written(tmp_path))
    jobs = study.jobs()
    assert len(jobs) == 2 * 1 * 2 * 2
    assert len({job.name for job in jobs}) == len(jobs)
    assert [job.seed for job in jobs] == [0] * 4 + [1] * 4
    assert jobs[1].name == (
        "Point2D-pombu-smoke-model.hidden8x8-trajectories2-updates1-seed0"
    )
    spec = jobs[1].spec()
    assert spec.total_steps == 60
    assert spec.config["trajectories"] == 2
    assert spec.config["model"]["hidden"] == (8, 8)


def test_steps_that_are_not_given_are_the_presets() -> None:
    assert (
        Job("pombu", EnvConfig("Point2D"), preset="smoke").spec().total_steps
        == 8 * 2 * 30
    )
    assert (
        Job("sac", EnvConfig("Point2D", 10), preset="smoke").spec().total_steps == 160
    )


def test_environment_options_reach_the_config_and_the_name() -> None:
    job = Job("meppo", EnvConfig("Ant", 1000, 0.1, 1), 4)
    env = job.spec().config["env"]
    assert env["horizon"] == 1000
    assert env["observation_noise"] == 0.1
    assert env["alive_bonus"] == 1
    assert job.name == "Ant-meppo-fast-h1000-noise0.1-alive1-seed4"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds = 2", "seeds = ", "line 4"),
        ("algorithms", "algoritms", "line 2, key algoritms: it is unknown"),
        ("algorithms", "algoritms", "did you mean algorithms?"),
        ('"pombu"', '"pombo"', "line 2, key algorithms: There is no algorithm 'pombo'"),
        ("Point2D", "Pont2D", "line 3, key tasks: There is no environment 'Pont2D'"),
        ("seeds = 2", "seeds = 0", "line 4, key seeds: it is 0"),
        ("seeds = 2", "seeds = [1, -1]", "line 4, key seeds"),
        ("seeds = 2", "seeds = [4294967296]", "line 4, key seeds"),
        ("seeds = 2", "seeds = 1_000_000_000", "line 4, key seeds: it is 1000000000"),
        ("seeds = 2", "seeds = 2\nseeds = 3", "line 5, column 10), key seeds"),
        ("[1, 2]", "[\n[1, 2],\n[3]\n]\nx = 3", "line 18, key grid.x: it is 3"),
        ('"smoke"', '"quick"', "line 5, key preset: it is 'quick'"),
        ("total_steps = 60", "total_steps = 0.5", "line 6, key total_steps"),
        ("updates = 1", "updatse = 1", "line 10, key overrides.updatse"),
        ("updates = 1", "updates = 'x'", "line 10, key overrides.updates"),
        ("updates = 1", "updates = -1", "line 10, key overrides.updates"),
        ("[1, 2]", "3", "line 14, key grid.trajectories: it is 3"),
        ('tasks = ["Point2D"]', "horizon = 5", "has no key tasks"),
        ('out = "runs/mine"', "horizon = 0", "line 7, key horizon"),
        ('out = "runs/mine"', "observation_noise = -1", "line 7, key observation_n"),
        ('out = "runs/mine"', "grid = []", "key grid: it is [], and a table"),
    ],
)
def test_a_malformed_file_is_told_by_line_and_key(
    old: str,
    new: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = STUDY.replace(old, new, 1)
    written(tmp_path, text.partition("[grid]")[0] if "grid = " in new else text)
    assert main(["study", "study.toml"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "nowhere.toml"]) == 2
    assert "nowhere.toml cannot be read" in capsys.readouterr().err
    assert main(["study", "status", "nowhere.toml"]) == 2


def test_lines_of_keys_in_every_spelling() -> None:
    text = 'a = 1\n[b]\n"c.d" = 2\n[b.e]\nf = 3\n'
    assert key_lines(text) == {"a": 1, "b": 2, "b.c.d": 3, "b.e": 4, "b.e.f": 5}


def test_the_order_of_lines_names_no_other_folder(tmp_path: Path) -> None:
    swapped = STUDY.replace("updates = 1\nmodel.hidden = [8, 8]\n", "")
    swapped = swapped.replace(
        "[overrides]\n", "[overrides]\nmodel.hidden = [8, 8]\nupdates = 1\n"
    )
    names = [job.name for job in read_study(written(tmp_path)).jobs()]
    assert [job.name for job in read_study(written(tmp_path, swapped)).jobs()] == names


def test_code_is_followed_only_if_named() -> None:
    with pytest.raises(UsageError, match="--trust my_module:make"):
        require_trusted(["Point2D", "my_module:make"], ())
    require_trusted(["Point2D", "my_module:make"], ("my_module:make",))


def test_the_same_job_twice_is_one_run(tmp_path: Path) -> None:
    job = Job("pombu", EnvConfig("Point2D"), preset="smoke", total_steps=60)
    full = dataclasses.replace(job, env=EnvConfig("pombu/Point2D-v0"))
    assert len(plan([job, job, full], tmp_path)) == 1


def test_two_jobs_never_share_a_folder(tmp_path: Path) -> None:
    one = Job("pombu", EnvConfig("Point2D"), preset="smoke", total_steps=60)
    with pytest.raises(UsageError, match=r"would share the folder.*total_steps"):
        plan([one, dataclasses.replace(one, total_steps=90)], tmp_path)


class Pretended:
    """A backend that writes metrics instead of training."""

    name = "pretended"
    slots = 2

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.started: list[Path] = []
        self.closed = False

    def start(self, path: Path, trusted: str | None) -> None:
        self.started.append(path)

    def poll(self) -> Mapping[Path, EndState]:
        ended: dict[Path, EndState] = {}
        for path in self.started:
            if self.failing and self.failing in path.name:
                (path / FAILURE).write_text("the disk is full\n")
                ended[path] = "failed"
            elif not (path / "metrics.csv").exists():
                pretend(path)
                ended[path] = "finished"
        return ended

    def stop(self, paths: Collection[Path] | None = None) -> None:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


def pretend(path: Path) -> None:
    steps = open_run(path).spec.total_steps
    file = MetricsFile(path / "metrics.csv")
    for i in (1, 2):
        file.append(
            {
                "iteration": i,
                "real_steps": i * steps // 2,
                "return_real": float(i),
                "iteration_seconds": 3.0,
            }
        )
    (path / "evaluation.json").write_text("{}")


def have(tmp_path: Path, backend: Any, steps: int = 60) -> Outcome:
    jobs = [
        Job(name, EnvConfig("Point2D"), seed, "smoke", steps)
        for name in ("pombu", "meppo")
        for seed in (0, 1)
    ]
    runs = tmp_path / "runs"
    console = Console(file=io.StringIO())
    return run_study(plan(jobs, runs), runs, backend, PlainRuns(console))


def test_failures_are_named_and_stop_nothing(tmp_path: Path) -> None:
    backend = Pretended(failing="meppo-smoke-seed0")
    outcome = have(tmp_path, backend)
    assert backend.closed
    assert [run.name for run in outcome.failed] == ["Point2D-meppo-smoke-seed0"]
    assert outcome.failed[0].failure == "the disk is full"
    assert [run.state for run in outcome.runs].count("finished") == 3

    again = Pretended()
    assert have(tmp_path, again).finished
    assert [path.name for path in again.started] == ["Point2D-meppo-smoke-seed0"]

    assert have(tmp_path, never := Pretended()).finished
    assert never.started == []
    runs, slots = status(tmp_path / "runs")
    assert [run.state for run in runs] == ["finished"] * 4
    assert slots == 2


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    job = Job("pombu", EnvConfig("Point2D"), 0, "smoke", 60)
    spec = job.spec()
    spec.config["beta"] = 7.0
    create(tmp_path / "runs" / job.name, spec)
    with pytest.raises(UsageError, match=r"Point2D-pombu-smoke-seed0 .* beta"):
        plan([job], tmp_path / "runs")
    (tmp_path / "else" / job.name).mkdir(parents=True)
    (tmp_path / "else" / job.name / "file").write_text("")
    with pytest.raises(UsageError, match="else/Point2D-pombu-smoke-seed0 "):
        plan([job], tmp_path / "else")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match=r"runs .*--out"):
        have(tmp_path, Pretended())


class Full(Pretended):
    """A disk on which there is no room even for the reason."""

    def poll(self) -> Mapping[Path, EndState]:
        return dict.fromkeys(self.started, "failed")


def test_a_full_disk_leaves_finished_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(tmp_path, Pretended(failing="seed1"))
    finished = tmp_path / "runs" / "Point2D-pombu-smoke-seed0"
    before = {path: path.read_bytes() for path in finished.iterdir() if path.is_file()}

    def refuse(path: Path, content: object) -> None:
        raise RunError(f"could not write {path} (No space left on device)")

    monkeypatch.setattr("pombu.studies.study.write_json", refuse)
    monkeypatch.setattr("pombu.studies.study.create", refuse)
    outcome = have(tmp_path, Full())
    assert [run.name[-5:] for run in outcome.failed] == ["seed1", "seed1"]
    assert "is the disk full?" in outcome.failed[0].failure
    for path, content in before.items():
        assert path.read_bytes() == content


def test_an_empty_reason_is_none(tmp_path: Path) -> None:
    have(tmp_path, Pretended(failing="seed1"))
    folder = tmp_path / "runs" / "Point2D-pombu-smoke-seed1"
    (folder / FAILURE).write_text("")
    assert "is the disk full?" in examine(folder, 60).failure


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    have(tmp_path, Pretended())
    folder = tmp_path / "runs" / "Point2D-pombu-smoke-seed0"
    with (folder / "metrics.csv").open("a") as file:
        file.write("3,what\n")
    found = examine(folder, 60)
    assert found.state == "failed"
    assert f"{folder / 'metrics.csv'} is damaged (row 3" in found.failure


def test_a_run_folder_is_no_study_folder(tmp_path: Path) -> None:
    have(tmp_path, Pretended())
    folder = tmp_path / "runs" / "Point2D-pombu-smoke-seed0"
    job = Job("meppo", EnvConfig("Point2D"), 0, "smoke", 60)
    with pytest.raises(UsageError, match=r"Point2D-pombu-smoke-seed0 .*--out"):
        run_study(plan([job], folder), folder, Pretended(), PlainRuns(Console()))
    assert not (folder / job.name).exists()


def test_two_studies_in_one_folder_are_both_told_of(tmp_path: Path) -> None:
    have(tmp_path, Pretended())
    job, folder = Job("slbo", EnvConfig("Point2D"), 0, "smoke", 60), tmp_path / "runs"
    console = Console(file=io.StringIO())
    run_study(plan([job], folder), folder, Pretended(), PlainRuns(console))
    runs, _ = status(folder)
    assert [run.state for run in runs] == ["finished"] * 5
    assert runs[-1].name == job.name


def test_a_run_that_still_saves_itself_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a study was killed, whose workers notice it a little later."""
    job = Job("meppo", EnvConfig("Point2D"), 0, "smoke", 60)
    run = create(tmp_path / job.name, job.spec())
    with contextlib.ExitStack() as held, (tmp_path / "log").open("w") as log:
        held.enter_context(run.locked())
        monkeypatch.setattr("pombu.studies.backends.time.sleep", lambda _: held.close())
        assert train(run.path, log, None)
    said = (tmp_path / "log").read_text()
    assert "is in use by process" in said
    assert "Waiting for it." in said


def test_no_study_no_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no study was started"):
        status(tmp_path)
    # A folder that is not there is not replaced by the file's own.
    monkeypatch.chdir(tmp_path)
    have(tmp_path / "runs" / "study", Pretended())
    (tmp_path / "runs" / "study" / "runs").rename(tmp_path / "runs" / "mine")
    written(tmp_path)
    assert main(["study", "status", "study.toml"]) == 0
    assert main(["study", "status", "study.toml", "--out", "runs/mime"]) == 2
    assert "no study was started in runs/mime" in capsys.readouterr().err


def test_what_a_study_recommends_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = have(tmp_path, Pretended())
    recommended = closing_lines(tmp_path / "runs", outcome.runs).partition(
        "Next: pombu "
    )
    assert main(recommended[2].split()) == 0
    assert (tmp_path / "runs" / "returns.png").exists()
    assert capsys.readouterr().out.count("returns final") == 4
    every = [str(path) for path in sorted((tmp_path / "runs").glob("*-*"))]
    names = [*every, str(tmp_path / "runs" / "study.json")]
    assert main(["plot", *names, "--out", str(tmp_path / "again.png")]) == 0


def test_time_left_follows_the_pace(tmp_path: Path) -> None:
    rows = [{"real_steps": 10 * i, "iteration_seconds": 5.0} for i in range(1, 9)]
    assert pace(rows) == 0.5
    assert pace(rows[:1]) == 0.5
    assert pace([]) is None
    waiting = examine(tmp_path / "none", 100)
    running = dataclasses.replace(
        waiting, state="running", real_steps=80, seconds_per_step=0.5
    )
    assert waiting.state == "waiting"
    assert running.seconds_left == 10.0
    assert time_left([waiting], 1) is None
    assert time_left([running, waiting], 1) == 10 + 50
    assert time_left([running, waiting], 2) == 50
    assert table([running, waiting], 2).row_count == 2


def test_cores_are_claimed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys; from pombu.studies.backends import claimed_cores\n"
        "with claimed_cores(1) as mine: print(*mine, flush=True); sys.stdin.read()"
    )
    before = backends.available_cores()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        with backends.claimed_cores(1) as mine:
            assert backends.available_cores() == list(mine)
            assert len(before) == 1 or mine != (theirs,)
        other.stdin.close()
    assert backends.available_cores() == before


def test_impossible_backends() -> None:
    with pytest.raises(UsageError, match="cores-per-run is 1000"):
        LocalBackend(cores_per_run=1000)
    with pytest.raises(UsageError, match="workers is 0"):
        LocalBackend(workers=0)
    with pytest.raises(UsageError, match=r"--address .*--backend ray"):
        BackendOptions(address="auto").open()


def test_words_for_errors() -> None:
    assert failure_sentence(RunError("No.")) == "No."
    assert failure_sentence(KeyError("a\nb")) == r"KeyError: 'a\nb'"


def test_a_study_on_this_machine(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = STUDY.replace('"pombu", "meppo"', '"meppo"').replace("seeds = 2", "seeds=1")
    text = text.replace("trajectories = [1, 2]", "policy.minibatch = [60, 1000000]")
    written(tmp_path, text)
    assert main(["study", "study.toml", "--json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)["runs"]
    assert good["state"] == "finished"
    assert bad["state"] == "failed"
    assert "minibatch of 1000000 is larger" in bad["failure"]
    folder = tmp_path / "runs" / "mine" / good["name"]
    assert "iteration 1" in (folder / "log.txt").read_text()

    # More steps: the finished run goes on from its checkpoint.
    written(tmp_path, text.replace("60\n", "120\n").replace("[60, 1000000]", "[60]"))
    assert main(["study", "study.toml"]) == 0
    assert "Done: 1 runs" in capsys.readouterr().out
    assert [row["real_steps"] for row in read_rows(folder / "metrics.csv")[1]] == [
        60,
        120,
    ]
    assert main(["study", "status", "study.toml"]) == 0
    assert "finished, 100% of 120 steps" in capsys.readouterr().out


def test_the_live_table_shows_every_run(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    view = display_on(console)
    assert isinstance(view, LiveTable)
    waiting = examine(tmp_path / "a-run", 1000)
    running = dataclasses.replace(
        waiting, name="another", state="running", real_steps=250, seconds_per_step=0.1
    )
    view.show([waiting, running], 2)
    view.say("a word [of] warning")
    view.close()
    shown = text.getvalue()
    for part in ("a-run", "another", "250/1,000", "25%", "75 s", "[of]", "2 runs"):
        assert part in shown


def test_a_narrow_terminal_shows_what_matters(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, height=24)
    waiting = examine(tmp_path / ("a-run-with-many-overrides" * 4), 1000)
    runs = [dataclasses.replace(waiting, name=f"{i}-{waiting.name}") for i in range(40)]
    runs[35] = dataclasses.replace(
        runs[35], state="running", real_steps=250, seconds_per_step=0.1
    )
    view = LiveTable(console)
    view.show(runs, 2)
    view.close()
    shown = text.getvalue()
    for part in ("35-a-run", "running", "25%", "75 s", "waiting", "more"):
        assert part in shown


def test_status_on_a_terminal_tells_why_runs_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(tmp_path, Pretended(failing="meppo-smoke-seed0"))
    text = io.StringIO()
    terminal = Console(file=text, force_terminal=True, width=80)
    monkeypatch.setattr("pombu.cli.experiments.Console", lambda: terminal)
    assert main(["study", "status", str(tmp_path / "runs")]) == 0
    assert "the disk is full" in text.getvalue()
