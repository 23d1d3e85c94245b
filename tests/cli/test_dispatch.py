"""The command line's manners: quick help, one-line errors, honest exit codes."""

import dataclasses
import os
import resource
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pombu import cli
from pombu.cli.parsing import parse
from pombu.errors import RunError, UsageError

POMBU = [sys.executable, "-m", "pombu"]
Run = Callable[[], int]


@dataclasses.dataclass(frozen=True)
class Inner:
    members: int = 5
    """How many."""


@dataclasses.dataclass(frozen=True)
class Command:
    """Greet.

    Examples:
        pombu greet --alpha 2
    """

    alpha: float = 0.5
    """A weight."""
    loud: bool = False
    """Shout."""
    model: Inner = Inner()

    def run(self) -> int:
        return 0


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Makes `pombu greet` run a function."""

    def add(work: Run) -> None:
        module = types.ModuleType("pombu.cli.greet")
        module.Greet = type("Greet", (Command,), {"run": lambda self: work()})
        monkeypatch.setitem(sys.modules, "pombu.cli.greet", module)
        monkeypatch.setitem(cli.COMMANDS, "greet", "greet")

    return add


def raising(error: BaseException) -> Run:
    def work() -> int:
        raise error

    return work


def test_an_old_flag_is_accepted_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not cli.read("report", ["run", "--no-film"]).video
    assert "--no-film is now --no-video" in capsys.readouterr().err


def test_help_names_every_command_in_under_a_second() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run([*POMBU, "--help"], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Its own time, because other tests may be keeping the cores busy.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert answer.returncode == 0
    assert all(f"\n  {name} " in answer.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"usage: pombu {name}" in said
    assert "Examples:" in said


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pombu.cli import main; main(['--help']);"
        "print(sorted({'jax', 'tyro', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert answer.stdout.splitlines()[-1] == "[]"


def test_no_arguments_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "usage: pombu" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pombu ")


@pytest.mark.parametrize(
    ("name", "hint"), [("trian", "did you mean 'train'?"), ("xyzzy", "pombu --help")]
)
def test_unknown_command(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name]) == 2
    error = capsys.readouterr().err
    assert hint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("no such thing."), 2, "pombu: no such thing."),
        (RunError("the run broke."), 1, "pombu: the run broke."),
        (KeyboardInterrupt(), 130, "pombu: interrupted"),
        (OSError(28, "No space left on device", "x.csv"), 1, "No space left on device"),
        (ZeroDivisionError("by\nzero"), 1, "unexpected ZeroDivisionError: by zero"),
    ],
)
def test_errors_are_one_line(
    error: BaseException,
    code: int,
    said: str,
    install: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POMBU_DEBUG", raising=False)
    install(raising(error))
    assert cli.main(["greet"]) == code
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_debug_shows_the_traceback(
    install: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POMBU_DEBUG", "1")
    install(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["greet"])


def test_a_closed_pipe_is_quiet() -> None:
    with subprocess.Popen(
        [*POMBU, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == cli.PIPE_CLOSED


def test_arguments_reach_the_command() -> None:
    command = parse(Command, "greet", ["--alpha", "2", "--model.members", "3"])
    assert command == Command(alpha=2.0, model=Inner(3))


def test_a_default_is_the_starting_point() -> None:
    default = Command(alpha=7.0, model=Inner(2))
    assert parse(Command, "greet", ["--loud"], default) == dataclasses.replace(
        default, loud=True
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--alpah", "3"], "unrecognized options: --alpah, 3; did you mean --alpha?"),
        (["--alpha", "much"], "--alpha is 'much': it takes a number."),
        (["--alpha"], "missing value for argument '--alpha'"),
        (["--model.membrs", "3"], "did you mean --model.members?"),
    ],
)
def test_usage_errors_are_one_sentence(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(Command, "greet", arguments)
    assert said in str(caught.value)
    assert "`pombu greet --help`" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_flags_help_wraps_at_the_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert cli.main(["train", "--help"]) == 0
    # The source breaks its line in the middle of this.
    assert "`--print-config` wrote. Flags win" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("train --env Point2D --alhpa 3", "--alpha"),
        ("train --env Point2D --model.member 3", "--model.members"),
        ("study x.toml --worker 2", "--workers"),
        ("tune x.toml --trails 2", "--trials"),
    ],
)
def test_a_flag_that_does_not_exist_has_a_near_one(
    command: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command.split()) == 2
    assert f"did you mean {near}?" in capsys.readouterr().err


def test_help_shows_the_examples(
    install: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(Command, "greet", ["--help"])
    assert "pombu greet --alpha 2" in capsys.readouterr().out


def test_compilation_cache_is_on_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cli.use_compilation_cache()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "pombu" / "jax")


def test_compilation_cache_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    cli.use_compilation_cache()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def test_an_unusable_cache_folder_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pombu").write_text("in the way")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cli.use_compilation_cache()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [(None, 0, ""), (3, 3, ""), ("No licence.", 1, "No licence.")],
)
def test_code_that_exits_is_heard(
    code: Any, expected: int, said: str, monkeypatch: Any, capsys: Any
) -> None:
    """As a user's own module may, while it is imported."""

    def leave(arguments: list[str]) -> int:
        raise SystemExit(code)

    monkeypatch.setattr("pombu.cli.dispatch", leave)
    assert cli.main(["doctor"]) == expected
    assert said in capsys.readouterr().err


def test_an_environment_that_exits_is_an_error(
    install: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(raising(SystemExit(0)))
    assert cli.main(["greet"]) == 1
    assert "asked to exit (SystemExit: 0)" in capsys.readouterr().err


def test_code_that_exits_while_flags_are_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment is made to know its horizon, before a run begins."""
    monkeypatch.setattr(cli, "read", lambda *_: raising(SystemExit(0))())
    assert cli.main(["train", "--env", "Point2D"]) == 1
    assert "asked to exit (SystemExit: 0)" in capsys.readouterr().err
    assert cli.main(["train", "--help"]) == 0


def test_a_flag_shows_the_traceback_of_what_was_told(
    install: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POMBU_DEBUG", "")
    install(raising(UsageError("one line\nand another")))
    assert cli.main(["greet"]) == 2
    assert capsys.readouterr().err == "pombu: one line and another\n"
    assert cli.main(["greet", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
