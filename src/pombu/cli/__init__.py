"""The `pombu` command: finds a subcommand, runs it, and reports errors in one line.

Nothing heavy is imported until a subcommand needs it, so `pombu --help` stays quick. A
subcommand `check-env` is the frozen dataclass `CheckEnv` of the module that `HOMES`
names: its fields are the flags, its docstring the help, and `run()` the work. A command
whose flags depend on one another has a function `parse_NAME(arguments)` there.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from pombu import __version__
from pombu.errors import PombuError, RunError, UsageError
from pombu.parallel import use_compilation_cache

COMMANDS = {
    "train": "train a policy and keep everything about it in a run folder",
    "resume": "go on with an interrupted run, bit for bit",
    "evaluate": "measure a trained policy on real episodes",
    "video": "record a video of a trained policy",
    "plot": "draw learning curves",
    "diagnose": "compare a run's learned dynamics with the real one",
    "model-study": "compare models by their error on the episodes of stored runs",
    "calibration-study": "score the uncertainties of stored runs, stage by stage",
    "results": "keep runs for others to check, and write a page about them",
    "report": "write one HTML page about one or more runs",
    "export": "write a policy that runs without JAX",
    "presets": "list the presets and their values",
    "envs": "list the tasks",
    "check-env": "compare an environment with its contract",
    "study": "run many trainings, here or on a Ray cluster",
    "tune": "search for good options",
    "reproduce": "repeat the paper's experiments",
    "bench": "measure speed on this machine",
    "doctor": "show what is installed, and what is missing",
}

HOMES = {
    **dict.fromkeys(("evaluate", "export", "video"), "policies"),
    **dict.fromkeys(("plot", "report", "results"), "analyses"),
    **dict.fromkeys(("diagnose", "model-study", "calibration-study"), "analyses"),
    **dict.fromkeys(("envs", "presets", "check-env"), "lists"),
    **dict.fromkeys(("study", "tune", "reproduce"), "experiments"),
    **dict.fromkeys(("doctor", "bench"), "machine"),
    "resume": "train",
}
"""The module of a command, where it is not called like the command."""

INTERRUPTED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--debug" in arguments:
        arguments.remove("--debug")
        os.environ["POMBU_DEBUG"] = "1"
    debug = bool(os.environ.get("POMBU_DEBUG"))
    try:
        code = dispatch(arguments)
        sys.stdout.flush()
        return code
    except PombuError as error:
        if debug:
            traceback.print_exc()
        return fail(" ".join(str(error).split()), error.exit_code)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except SystemExit as stop:
        if isinstance(stop.code, int | None):
            return stop.code or 0
        return fail(str(stop.code), 1)
    except BrokenPipeError:
        # The reader (such as `head`) went away; keep the interpreter's own closing
        # flush from complaining about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        if debug:
            raise
        return fail(unexpected(error), 1)


def dispatch(arguments: list[str]) -> int:
    """Hand the arguments to the subcommand that they name."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"pombu {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise UsageError(unknown(name))
    use_compilation_cache()
    try:
        code: int = read(name, rest).run()
    except SystemExit as stop:
        if {"-h", "--help"} & set(rest):
            raise
        # Nothing else of pombu ends by it, but code that pombu was asked to use.
        raise RunError(
            f"the program was asked to exit (SystemExit: {stop.code}), as an "
            "environment's code may do: it has to raise an error instead."
        ) from stop
    return code


def read(name: str, arguments: list[str]) -> Any:
    """The command of this name, with its flags."""
    from pombu.cli.parsing import parse

    module = importlib.import_module(f"pombu.cli.{HOMES.get(name, name)}")
    words = name.split("-")
    own = getattr(module, f"parse_{'_'.join(words)}", None)
    if own is not None:
        return own(arguments)
    return parse(getattr(module, "".join(map(str.capitalize, words))), name, arguments)


def overview() -> str:
    """The text of `pombu --help`."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: pombu COMMAND [OPTIONS]",
            "",
            "Model-based reinforcement learning that knows how much it does not know.",
            "",
            *lines,
            "",
            "`pombu COMMAND --help` explains a command and gives examples;",
            "`--debug` shows the traceback of an error, an environment's own included.",
            "",
            "  pombu train --env HalfCheetah --preset fast --out runs/cheetah",
            "  pombu evaluate runs/cheetah --episodes 20",
        ]
    )


def unknown(name: str) -> str:
    """What to say about a command that does not exist."""
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else "`pombu --help` lists them."
    return f"there is no command '{name}': {hint}"


def unexpected(error: Exception) -> str:
    """One line for an exception that no part of pombu has put into words."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    text = " ".join(str(error).split())
    return (
        f"unexpected {type(error).__name__}: {text} (a bug in pombu: "
        "set POMBU_DEBUG=1 for the traceback and please report it)"
    )


def fail(sentence: str, code: int) -> int:
    """Print one line of error and give the exit code back."""
    print(f"pombu: {sentence}", file=sys.stderr)
    return code
