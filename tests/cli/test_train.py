"""`pombu train`, `resume`, `evaluate` and `presets`, with the real algorithm."""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pombu.cli import main
from pombu.cli.train import last_value, parse_train
from pombu.training import checkpoint
from pombu.training.metrics import deterministic, read_rows

ROOT = Path(__file__).resolve().parents[2]

SMALL = [
    *("--env", "Point2D", "--preset", "smoke", "--seed", "3", "--iterations", "4"),
    *("--model.reinitialise-every", "3", "--total-steps", "240"),
]
"""Of the preset's sizes, so that its programs are compiled once for many tests."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    assert main(["train", *SMALL, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def rows(folder: Path) -> list[dict[str, float]]:
    return [deterministic(row) for row in read_rows(folder / "metrics.csv")[1]]


def test_flags_reach_the_config(trained: Path) -> None:
    spec = json.loads((trained / "config.json").read_text())
    assert spec["seed"] == 3
    assert spec["preset"] == "smoke"
    assert spec["config"]["env"]["id"] == "pombu/Point2D-v0"
    assert spec["config"]["iterations"] == 4
    assert spec["config"]["model"]["reinitialise_every"] == 3
    assert [row["real_steps"] for row in rows(trained)] == [60, 120, 180, 240]


def test_environment_flags_reach_the_environment() -> None:
    flags = ["--horizon", "7", "--observation-noise", "0.1", "--alive-bonus", "1"]
    command = parse_train(["--env", "Ant", "--alpha", "2", "--beta", "3", *flags])
    assert command.config.env.horizon == 7
    env = command.environment
    assert (env.id, env.horizon, env.observation_noise) == ("pombu/Ant-v0", 7, 0.1)
    assert env.alive_bonus == 1.0
    assert (command.config.alpha, command.config.beta) == (2.0, 3.0)
    command = parse_train(["--model.hidden", "16", "8", "--value.minibatch", "40"])
    assert command.config.model.hidden == (16, 8)
    assert command.config.value.minibatch == 40


def test_the_horizon_chooses_the_paper_s_table() -> None:
    flags = ["--env", "Ant", "--preset", "paper"]
    assert parse_train([*flags, "--horizon", "1000"]).config.alpha == 0.25
    assert parse_train(flags).config.alpha == 0.5


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_nothing(
    trained: Path, tmp_path: Path, kills: int
) -> None:
    folder = tmp_path / "killed"
    moments = random.Random(kills)
    for _ in range(kills):
        arguments = ["resume", str(folder)]
        if not folder.exists():
            arguments = ["train", *SMALL, "--out", str(folder)]
        kill_midway(arguments, lines=moments.randint(1, 12), delay=moments.random() / 5)
    assert main(["resume", str(folder)]) == 0
    assert rows(folder) == rows(trained)
    for file in ("checkpoints/000004/state.safetensors", "evaluation.json"):
        assert (folder / file).read_bytes() == (trained / file).read_bytes()


@pytest.mark.slow
def test_signs_of_life_come_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing compiled yet: a line within 10 s, a finished stage within 30 s."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    flags = ["--env", "HalfCheetah", "--preset", "fast", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "pombu", "train", *flags]
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert time.monotonic() - start < 10
        while " took " not in process.stdout.readline():
            pass
        assert time.monotonic() - start < 30
        process.kill()


def kill_midway(arguments: list[str], lines: int, delay: float) -> None:
    """SIGKILL the command after it has printed some lines, unless it ends before."""
    command = [sys.executable, "-m", "pombu", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        time.sleep(delay)
        process.kill()


def test_a_finished_run_can_be_given_more_steps(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(run), "--total-steps", "300", "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert summary["finished"]
    assert summary["real_steps"] == 300
    assert "iteration 5" in captured.err
    assert rows(run)[:4] == rows(trained)


def test_a_run_can_be_resumed_with_fewer_steps_and_another_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    flags = "train --env Point2D --preset smoke --total-steps 240 --max-minutes 1e-4"
    assert main([*flags.split(), "--out", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "of 240 real steps" in said
    assert f"`pombu resume {folder}`" in said
    ask = ["--total-steps", "120", "--evaluation-share", "0", "--json"]
    assert main(["resume", str(folder), *ask]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["finished"], summary["real_steps"]) == (True, 120)
    assert summary["evaluation"]["random"]["episodes"] == 5
    first, *others = read_rows(folder / "metrics.csv")
    assert "return_real" in first
    assert others
    assert not any("return_real" in row for row in others)
    spec = json.loads((folder / "config.json").read_bytes())
    assert (spec["evaluation_share"], spec["total_steps"]) == (0.0, 120)


def test_evaluate_is_repeatable(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for _ in range(2):
        assert main(["evaluate", str(trained), "--episodes", "3", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert len(answers[0]["returns"]) == 3
    assert answers[0]["iteration"] == 4


def test_evaluate_says_what_it_measured(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--checkpoint", "best", "--stochastic", "--episodes", "2"]
    assert main(["evaluate", str(trained), *flags]) == 0
    said = capsys.readouterr().out
    assert "over 2 episodes of pombu/Point2D-v0 with sampled actions" in said


def test_presets_are_listed_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--json", "--env", "Ant"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"paper", "fast", "smoke"} <= set(answer)
    assert answer["paper"]["env"]["id"] == "pombu/Ant-v0"
    assert main(["presets"]) == 0
    assert "model.members" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --env Pont2D", "did you mean 'Point2D'?"),
        ("train --preset fastest", "fastest"),
        ("train --algo pombo", "did you mean pombu?"),
        ("train --model.membrs 3", "did you mean --model.members?"),
        ("train --alpha much", "--alpha is 'much': it takes a number"),
        ("train --seed 1.5", "--seed is '1.5': it takes a whole number"),
        ("train --horizon abc", "--horizon is 'abc': it takes None or a whole number"),
        ("train --model.members 0", "pombu: model.members is 0"),
        ("train --env Point2D --data no.npz", "There is no file or folder no.npz"),
        ("train --env my_env.py:make", "give the module, my_env:make."),
        ("train --alpha -1", "alpha is -1.0"),
        ("train --horizon 0", "horizon is 0"),
        ("train --seed -1 --env Point2D", "seed is -1"),
        ("train --max-minutes 0 --env Point2D", "a finite number above 0"),
        ("train --total-steps -5 --env Point2D", "total_steps is -5"),
        (
            "train --algo ppo --env Point2D --total-steps 999999 "
            "--final-learning-rate 0",
            "PPO's learning rate falls to 0 within",
        ),
        ("resume nowhere", "nowhere is not a run folder"),
        ("evaluate nowhere", "nowhere is not a run folder"),
        ("resume", "pombu resume needs PATH: the run folder"),
        ("presets --preset fastest", "fastest"),
        ("check-env Point2D --seed=-1", "seed is -1"),
        ("check-env Point2D --seed 5000000000", "seed is 5000000000"),
        ("results --out=", "out is '.': name a folder"),
        ("results --out ..", "out is '..': name a folder"),
    ],
)
def test_bad_requests_are_one_line_and_leave_nothing(
    arguments: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert said in error.lower() or said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_folder_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SMALL, "--out", str(trained)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_a_refused_request_leaves_the_config_as_it_was(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "config.json").read_bytes()
    refused = ["--total-steps", "99999", "--max-minutes", "0"]
    assert main(["resume", str(trained), *refused]) == 2
    assert main(["resume", str(trained), "--total-steps", "0"]) == 2
    assert "total_steps is 0" in capsys.readouterr().err
    assert (trained / "config.json").read_bytes() == before


@pytest.mark.parametrize("command", ["video", "diagnose", "evaluate"])
def test_a_seed_is_a_whole_number_from_zero_on(
    command: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(trained), "--seed=-1"]) == 2
    assert "seed is -1: it must be a whole number" in capsys.readouterr().err


def test_nothing_is_kept_beside_a_page_without_a_name(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for out in ("", ".", "..", "/"):
        assert main(["results", str(trained), f"--out={out}"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_best_checkpoint_is_not_guessed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one does not tell its return, another may only seem to be the best."""
    every = checkpoint.paths(run)
    file = every[0] / "manifest.json"
    file.write_bytes(file.read_bytes()[:-9])
    for flags in ([], ["--checkpoint", "best"]):
        code = main(["evaluate", str(run), "--episodes", "1", *flags])
        assert code == len(flags) // 2
    said = capsys.readouterr().err
    others = ", ".join(path.name for path in every[1:])
    assert f"{file} is damaged" in said
    assert f"Other checkpoints: {others};" in said


def test_no_checkpoint_no_evaluation(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checkpoints")
    assert main(["evaluate", str(run)]) == 1
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_a_damaged_policy_is_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "checkpoints" / "000004" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["evaluate", str(run)]) == 1
    assert f"{file} is damaged" in capsys.readouterr().err


def change(run: Path, **changes: object) -> None:
    path = run / "config.json"
    content = json.loads(path.read_text())
    content["config"]["env"] |= changes
    path.write_text(json.dumps(content))


def test_a_config_cannot_run_code_unasked(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run.parent)
    (run.parent / "trap.py").write_text("open('sprung', 'w').close()\n")
    # A run of version 0.1 has no checksums: its changed config is taken as it is.
    old = shutil.copytree(ROOT / "tests" / "fixtures" / "pombu-0.1", run.parent / "old")
    cases = {
        run: "env.id = 'trap:make' (was 'pombu/Point2D-v0')",
        old: "if you trust it, add --env trap:make",
    }
    for path, message in cases.items():
        change(path, id="trap:make")
        for command in ("resume", "evaluate"):
            assert main([command, str(path)]) == 2
            assert message in capsys.readouterr().err
    assert not (run.parent / "sprung").exists()


def test_another_environment_s_checkpoint_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run, horizon=20)
    assert main(["resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert "env.horizon = 20 (was None)" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "value"),
    [([], None), (["--env", "a", "--env=b"], "b"), (["--env"], None)],
)
def test_last_value(arguments: list[str], value: str | None) -> None:
    assert last_value(arguments, "--env") == value


def test_what_to_train_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    said = capsys.readouterr().err
    assert "name an environment, as in `pombu train --env HalfCheetah`" in said
    assert said.count("\n") == 1
