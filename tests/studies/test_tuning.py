"""A search for options: its file, its trials, and what a kill leaves of it."""

import csv
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pombu.agent.runs import read_config
from pombu.cli import main
from pombu.errors import RunError, UsageError
from pombu.studies.backends import EndState, note_failure
from pombu.studies.tuning import Found, Limits, open_journal, tune
from pombu.studies.tuning_file import Dimension, read_tuning
from pombu.studies.tuning_results import (
    importances,
    learning_curve,
    rung_scores,
    score,
)
from pombu.training.metrics import MetricsFile, read_rows
from pombu.training.run import EVALUATION, open_run, write_json

optuna = pytest.importorskip("optuna")

TUNE = """
algorithm = "pombu"
task = "Point2D"
preset = "smoke"
total_steps = 100
seeds = 2
trials = 12
startup_trials = 4
horizon = 10

[overrides]
beta = 0.5

[space]
alpha = { uniform = [0, 1] }
updates = { int = [1, 8], log = true }

[space.policy]
learning_rate = { log = [1e-5, 1e-1] }
hidden = { categorical = [[8, 8], [16]] }
"""


def written(folder: Path, text: str = TUNE) -> Path:
    path = folder / "tune.toml"
    path.write_text(text)
    return path


class Silent:
    def __init__(self) -> None:
        self.said: list[str] = []

    def show(self, runs: Any, slots: int) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


class Killed(BaseException):
    """The process ends in the middle of everything."""


class FakeBackend:
    """Runs whose return is known: the better, the nearer alpha is to 0.3."""

    name = "fake"

    def __init__(self, slots: int = 1, kill_at: int | None = None) -> None:
        self.slots = slots
        self.polls = 0
        self.kill_at = kill_at
        self.started: list[str] = []
        self.stopped: list[str] = []
        self._running: dict[Path, str] = {}

    def start(self, path: Path, trusted: str | None) -> None:
        self.started.append(path.name)
        self._running[path] = "running"

    def poll(self) -> Mapping[Path, EndState]:
        self.polls += 1
        if self.polls == self.kill_at:
            raise Killed
        ended: dict[Path, EndState] = {}
        for path, state in list(self._running.items()):
            if state == "stopped":
                ended[path] = "interrupted"
            elif end := self.advance(path):
                ended[path] = end
        for path in ended:
            del self._running[path]
        return ended

    def advance(self, path: Path) -> EndState | None:
        """One more iteration of 20 real steps."""
        spec = open_run(path).spec
        file = MetricsFile(path / "metrics.csv")
        number = len(file.rows()) + 1
        file.append(
            {
                "iteration": number,
                "real_steps": 20 * number,
                "return_real": self.return_of(spec.config, number) + 0.01 * spec.seed,
            }
        )
        if 20 * number < spec.total_steps:
            return None
        write_json(path / EVALUATION, {})
        return "finished"

    def return_of(self, config: Any, iteration: int) -> float:
        return iteration * (1.0 - abs(float(config["alpha"]) - 0.3))

    def stop(self, paths: Collection[Path] | None = None) -> None:
        for path in self._running:
            if paths is None or path in paths:
                self.stopped.append(path.name)
                self._running[path] = "stopped"

    def close(self) -> None:
        self._running.clear()


def search(
    folder: Path, backend: Any = None, limits: Limits | None = None, text: str = TUNE
) -> Found:
    folder.mkdir(exist_ok=True)
    tuning = read_tuning(written(folder, text))
    limits = limits or Limits(tuning.trials)
    return tune(tuning, folder / "out", limits, backend or FakeBackend(), Silent())


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pombu.studies.tuning.POLL", 0.0)
    if "drawn" not in request.node.name:
        monkeypatch.setattr("pombu.studies.tuning.write_importance", lambda *_: None)


def curve(*returns: float | None) -> list[dict[str, float]]:
    return [
        {"iteration": n, "real_steps": 10 * n}
        | ({} if value is None else {"return_real": value})
        for n, value in enumerate(returns, 1)
    ]


def test_scores_of_a_curve() -> None:
    rows = curve(1.0, 2.0, None, 6.0, 10.0)
    assert score(rows, "final") == 6.0
    # 1 for 10 steps, 2 for 10, 6 for the 20 since, 10 for 10.
    assert score(rows, "area") == (10 + 20 + 120 + 100) / 50
    assert score(curve(None), "final") is None
    assert score([], "area") is None


def test_scores_along_the_real_steps() -> None:
    found = rung_scores(curve(1.0, 3.0), 40, "final")
    assert found == dict.fromkeys(range(10, 20, 2), 1.0) | {20: 2.0}
    assert rung_scores([], 40, "final") == {}


def test_seeds_follow_one_another() -> None:
    first, second = {10: 1.0, 20: 2.0}, {10: 3.0}
    assert learning_curve([first, second], 20) == {10: 1.0, 20: 2.0, 30: 2.0}
    # What the second has before the first got there is not told yet.
    assert learning_curve([{}, second], 20) == {}


def test_a_file_is_a_space(tmp_path: Path) -> None:
    tuning = read_tuning(written(tmp_path))
    assert tuning.space == (
        Dimension("alpha", "uniform", (0.0, 1.0)),
        Dimension("updates", "int", (1, 8), log=True),
        Dimension("policy.learning_rate", "log", (1e-5, 1e-1), log=True),
        Dimension("policy.hidden", "categorical", ((8, 8), (16,))),
    )
    assert (tuning.seeds, tuning.trials, tuning.env.horizon) == ((0, 1), 12, 10)
    job = tuning.job({"alpha": 0.25, "policy.hidden": (16,), "env.history": 2}, 7)
    config = job.config()
    assert (config.alpha, config.policy.hidden, config.beta) == (0.25, (16,), 0.5)
    assert (config.env.history, config.env.horizon, job.seed) == (2, 10, 7)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "[0, 1]",
            "[1, 0]",
            "line 15, key space.alpha: uniform is [1, 0], and it must",
        ),
        ("[0, 1]", "[0]", "key space.alpha"),
        ("[0, 1]", "[0, nan]", "key space.alpha"),
        ("[0, 1]", "[0, true]", "key space.alpha"),
        ("uniform", "unifrom", "(did you mean uniform?)"),
        ("{ uniform = [0, 1] }", "3", "line 15, key space.alpha: it is 3"),
        ("{ uniform = [0, 1] }", "{}", "key space.alpha"),
        ("[1e-5, 1e-1]", "[0, 1]", "on a log scale it must be above 0"),
        ("[1, 8], log = true", "[1.0, 8]", "key space.updates: int is [1.0, 8]"),
        ("log = true", "step = 0", "key space.updates"),
        ("log = true", "log = true, step = 2", "log and step do not go together"),
        ("[[8, 8], [16]]", "[[8, 8]]", "key space.policy.hidden: categorical is"),
        ("[[8, 8], [16]]", "[[8], [8]]", "key space.policy.hidden: categorical is"),
        ("[[8, 8], [16]]", "[[8], 'x']", "key space.policy.hidden: with 'x'"),
        ("alpha =", "alhpa =", "line 15, key space.alhpa: pombu has no option alhpa"),
        ("alpha =", "alhpa =", "did you mean alpha?"),
        ("alpha =", "'env.horizen' =", "key space.env.horizen: there are env.horizon"),
        ("int = [1, 8], log = true", "int = [-1, 8]", "with -1: updates is -1"),
        ("int = [1, 8], log = true", "uniform = [1, 2]", "with 1.0: pombu.updates"),
        ("beta = 0.5", "alpha = 0.5", "line 12, key overrides.alpha: it is searched"),
        ("beta = 0.5", "bteta = 0.5", "line 12, key overrides.bteta"),
        ("trials = 12", "", "add trials = 40, or minutes = 600"),
        ("trials = 12", "trials = 0", "line 7, key trials: it is 0"),
        ("trials = 12", "trails = 3", "did you mean trials?"),
        ("trials = 12", "minutes = -1", "line 7, key minutes"),
        ("startup_trials = 4", "objective = 'best'", "line 8, key objective"),
        ("startup_trials = 4", "pruning = { warmup = 2 }", "line 8, key pruning"),
        ("startup_trials = 4", "sampler_seed = -1", "line 8, key sampler_seed"),
        ('task = "Point2D"', "", "has no key task"),
        ("Point2D", "mine:make", "add --trust mine:make"),
        ('"pombu"', '"pombo"', "did you mean pombu?"),
    ],
)
def test_a_malformed_file_is_told_by_line_and_key(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, TUNE.replace(old, new, 1))
    assert main(["tune", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_empty_space(tmp_path: Path) -> None:
    text = TUNE.partition("[space]")[0] + "[space]\n"
    with pytest.raises(UsageError, match="key space: it is empty"):
        read_tuning(written(tmp_path, text))


def test_the_best_trial_is_a_config_file(tmp_path: Path) -> None:
    found = search(tmp_path)
    rows = table(tmp_path)
    assert found.trials == len(rows) == 12
    complete = [row for row in rows if row["state"] == "complete"]
    best = max(complete, key=lambda row: float(row["value"]))
    assert found.best.number == int(best["trial"])
    # The mean of the last three of five evaluations, and of both seeds.
    due = 4 * (1 - abs(float(best["alpha"]) - 0.3)) + 0.005
    assert float(best["value"]) == pytest.approx(due)
    assert float(best["seed 1"]) - float(best["seed 0"]) == pytest.approx(0.01)
    text = (tmp_path / "out" / "best.toml").read_text()
    assert "It was tuned on the seeds 0, 1," in text
    file = read_config(tmp_path / "out" / "best.toml")
    config = file.config("pombu")
    assert config.alpha == float(best["alpha"])
    assert config.updates == int(best["updates"])
    assert config.policy.learning_rate == float(best["policy.learning_rate"])
    assert list(config.policy.hidden) == json.loads(best["policy.hidden"])
    assert (config.env.horizon, config.beta) == (10, 0.5)
    assert (file.settings["seed"], file.settings["total_steps"]) == (2, 100)
    summary = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert summary["tuned_on_seeds"] == [0, 1]
    assert summary["best"]["trial"] == found.best.number
    assert summary["searched"]["objective"] == "final"


def test_what_is_worse_is_given_up_early(tmp_path: Path) -> None:
    backend = FakeBackend()
    search(tmp_path, backend)
    rows = table(tmp_path)
    given_up = [row for row in rows if row["state"] == "given up"]
    complete = [row for row in rows if row["state"] == "complete"]
    assert given_up
    assert all(int(row["steps"]) < 200 for row in given_up)
    assert all(int(row["steps"]) == 200 for row in complete)
    # None before the warm-up, and none before four are complete.
    assert min(int(row["steps"]) for row in given_up) >= 25
    assert all(row["state"] == "complete" for row in rows[:4])
    distance = {row["trial"]: abs(float(row["alpha"]) - 0.3) for row in rows}
    best = min(distance, key=lambda trial: distance[trial])
    assert best not in {row["trial"] for row in given_up}
    assert len(backend.stopped) == len(given_up)


def test_pruning_can_be_left_out(tmp_path: Path) -> None:
    text = TUNE.replace("horizon = 10", "pruning = false")
    search(tmp_path, limits=Limits(7), text=text)
    assert {row["state"] for row in table(tmp_path)} == {"complete"}


def test_the_same_search_twice(tmp_path: Path) -> None:
    few = Limits(7)
    search(tmp_path / "one", limits=few)
    search(tmp_path / "two", limits=few)
    assert table(tmp_path / "one") == table(tmp_path / "two")
    changed = TUNE.replace("horizon = 10", "sampler_seed = 1")
    search(tmp_path / "three", text=changed, limits=Limits(1))
    first, other = (table(tmp_path / name)[0]["alpha"] for name in ("one", "three"))
    assert first != other


@pytest.mark.parametrize("slots", [1, 3])
def test_a_search_that_is_killed_again_and_again(tmp_path: Path, slots: int) -> None:
    search(tmp_path / "whole", FakeBackend(slots))
    kills = 0
    for moment in range(1, 200, 2):
        try:
            found = search(tmp_path / "killed", FakeBackend(slots, kill_at=moment))
            break
        except Killed:
            kills += 1
            journal = tmp_path / "killed" / "out" / "tune.journal"
            with journal.open("ab") as file:  # half a line, as a kill may leave it
                file.write(b'{"op_code":')
            journal.with_name("tune.journal.lock").symlink_to(journal)
    assert kills >= 3
    assert found.trials == 12
    if slots == 1:  # side by side, what was known when a trial began may differ
        assert table(tmp_path / "killed") == table(tmp_path / "whole")
    for run in (tmp_path / "killed" / "out" / "trials").iterdir():
        steps = [row["real_steps"] for row in read_rows(run / "metrics.csv")[1]]
        assert steps == sorted(set(steps))


def test_a_time_limit_keeps_what_is_under_way(tmp_path: Path) -> None:
    backend = FakeBackend()
    found = search(tmp_path, backend, Limits(12, minutes=1e-9))
    assert (found.trials, found.unfinished) == (0, 0)
    found = search(tmp_path, Stopping(after=12), Limits(12))
    assert found.signal is not None
    assert (found.trials, found.unfinished) == (1, 1)
    found = search(tmp_path, FakeBackend(), Limits(2))
    assert (found.trials, found.unfinished) == (2, 0)
    found = search(tmp_path, FakeBackend(), Limits(3))
    assert found.trials == 3


class Stopping(FakeBackend):
    """Someone presses Ctrl-C."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def poll(self) -> Mapping[Path, EndState]:
        if self.polls == self.after:
            import signal

            signal.raise_signal(signal.SIGINT)
        return super().poll()


def test_another_search_is_refused(tmp_path: Path) -> None:
    search(tmp_path, limits=Limits(1))
    changed = TUNE.replace("[0, 1]", "[0, 2]")
    with pytest.raises(UsageError, match=r"out .*space\.alpha"):
        search(tmp_path, text=changed)
    more = TUNE.replace("trials = 12", "trials = 2")
    assert search(tmp_path, text=more).trials == 2


class Failing(FakeBackend):
    """Fails where alpha is large, at the second iteration."""

    limit = 0.7

    def advance(self, path: Path) -> EndState | None:
        if open_run(path).spec.config["alpha"] > self.limit:
            note_failure(path, "a loss is not finite")
            return "failed"
        return super().advance(path)


def test_a_failure_stops_nothing_else_and_is_learned_from(tmp_path: Path) -> None:
    backend = Failing()
    search(tmp_path, backend)
    rows = table(tmp_path)
    failed = [row for row in rows if row["state"] == "failed"]
    assert failed
    assert {float(row["alpha"]) > 0.7 for row in failed} == {True}
    assert {row["failure"] for row in failed} == {"a loss is not finite"}
    assert {row["value"] for row in failed} == {""}
    # Each was tried once more, and its other seed never began.
    first = failed[0]["trial"]
    assert backend.started.count(f"{int(first):04d}-seed0") == 2
    assert f"{int(first):04d}-seed1" not in backend.started


def test_a_search_in_which_nothing_works_ends(tmp_path: Path) -> None:
    backend = Failing()
    backend.limit = -1.0
    with pytest.raises(RunError, match=r"first 3 trials failed.*a loss is not finite"):
        search(tmp_path, backend)


def test_values_that_do_not_go_together_are_a_failed_trial(tmp_path: Path) -> None:
    text = TUNE.replace(
        "[space]", '[space]\n"imagination.trajectories" = { int = [8, 16] }'
    )
    search(tmp_path, text=text)
    failed = [row for row in table(tmp_path) if row["state"] == "failed"]
    assert failed
    assert all("does not divide" in row["failure"] for row in failed)
    assert {int(row["imagination.trajectories"]) % 2 for row in failed} == {1}


def test_what_matters_is_drawn(tmp_path: Path) -> None:
    text = TUNE.replace("trials = 12", "trials = 30").replace(
        "horizon = 10", "pruning = false"
    )
    search(tmp_path, text=text)
    found = json.loads((tmp_path / "out" / "tuning.json").read_text())["importance"]
    assert max(found, key=lambda key: found[key]) == "alpha"
    assert sum(found.values()) == pytest.approx(1)
    picture = (tmp_path / "out" / "importance.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    study = open_journal(read_tuning(tmp_path / "tune.toml"), tmp_path / "out")
    assert importances(study) == found


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    search(tmp_path, limits=Limits(1))
    journal = tmp_path / "out" / "tune.journal"
    journal.write_bytes(b"{nonsense}\n" + journal.read_bytes())
    with pytest.raises(UsageError, match=r"tune.journal is damaged"):
        search(tmp_path)


def test_the_sampler_draws_within_the_space() -> None:
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler)
    int_steps = Dimension("n", "int", (2, 10), step=4)
    lists = Dimension("h", "categorical", ((8, 8), None, True))
    drawn = [study.ask() for _ in range(30)]
    assert {int_steps.suggest(trial) for trial in drawn} == {2, 6, 10}
    assert {lists.suggest(trial) for trial in drawn} == {(8, 8), None, True}
    logs = [Dimension("x", "log", (1e-4, 1.0), log=True).suggest(t) for t in drawn]
    assert np.median(logs) < 0.1


@pytest.mark.slow
def test_a_real_search_survives_a_kill(tmp_path: Path) -> None:
    text = TUNE.replace("trials = 12", "trials = 2").replace("seeds = 2", "seeds = 1")
    path = written(tmp_path, text.replace("total_steps = 100", "total_steps = 60"))
    command = [sys.executable, "-m", "pombu", "tune", str(path), "--workers", "1"]
    out = tmp_path / "out"
    with subprocess.Popen([*command, "--out", str(out)]) as process:
        end = time.monotonic() + 300
        while not (out / "trials" / "0000-seed0" / "metrics.csv").exists():
            assert time.monotonic() < end
            time.sleep(0.2)
        process.kill()
    done = subprocess.run(
        [*command, "--out", str(out), "--json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["trials"] == 2
    steps = [
        r["real_steps"] for r in read_rows(out / "trials/0000-seed0/metrics.csv")[1]
    ]
    assert steps == [20, 40, 60]
    assert tomllib.loads((out / "best.toml").read_text())["seed"] == 1
