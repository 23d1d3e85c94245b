"""Nonsense: every flag of every command, and every public method, is given some.

Refused is one sentence. Accepted is a value that means something there: what takes long
is cut off once it begins, except for PPO's options of zero, with which it trains.
"""

import contextlib
import dataclasses
import importlib
import os
import random
import shutil
import tempfile
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

import pombu
from benchmarks.reliability.trial import Answer, Count, call, command, quiet
from pombu.algorithms import registry
from pombu.cli import COMMANDS, HOMES
from pombu.data import read_logged, write_logged
from pombu.envs import EnvConfig, Episode, load
from pombu.training.callbacks import StopAfter, StopAtReturn

NONSENSE = ("", "nan", "inf", "-1", "0", "1e20", "text", "ünï✓\n", "[1, 2]")
TINY = ["--env", "Point2D", "--horizon", "10", "--preset", "smoke"]
STUDY = """
algorithms = ["metrpo"]
tasks = ["Point2D"]
preset = "smoke"
"""
TUNING = """
algorithm = "metrpo"
task = "Point2D"
preset = "smoke"
total_steps = 20
trials = 2
space = { trajectories = { int = [1, 2] } }
"""


class BegunError(BaseException):
    """Everything that was asked for was accepted, and the work begins."""


def begin(*_: Any, **__: Any) -> Any:
    """In place of work that takes long."""
    raise BegunError


CUT = {
    "train": ("pombu.cli.train.learn",),
    "resume": ("pombu.cli.train.learn",),
    "video": ("pombu.cli.policies.frames",),
    "diagnose": ("pombu.analysis.diagnosis.measure",),
    "model-study": ("pombu.analysis.model_study.study",),
    "calibration-study": ("pombu.analysis.calibration_study.study",),
    "study": ("pombu.studies.study.run_study",),
    "tune": ("pombu.studies.tuning.tune",),
    "reproduce": (
        "pombu.paper.reproduce.reproduce_one",
        "pombu.paper.reproduce.reproduce_all",
    ),
    "bench": ("pombu.bench.suite.run",),
    "doctor": ("pombu.cli.machine.examine",),
}
"""Where the work of a command begins."""

BASES = {
    "train": TINY,
    "resume": ["run"],
    "evaluate": ["run", "--episodes", "1"],
    "video": ["run"],
    "plot": ["run"],
    "diagnose": ["run"],
    "model-study": ["run", "--out", "study"],
    "calibration-study": ["run", "--out", "study"],
    "results": ["run", "--out", "kept"],
    "report": ["run", "--no-video", "--no-calibration"],
    "export": ["run", "new.safetensors"],
    "presets": [],
    "envs": [],
    "check-env": ["Point2D", "--steps", "5"],
    "study": ["study.toml"],
    "tune": ["tuning.toml"],
    "reproduce": ["figure-4"],
    "bench": [],
    "doctor": [],
}
"""Arguments with which each command is content."""


def flags(share: float) -> Count:
    """Give every flag and every argument of every command nonsense."""
    count = Count("nonsense for flags")
    draw = random.Random(3)
    with in_scratch() as run:
        for name, arguments, cut in command_lines():
            # The many options of an algorithm share one reader.
            if draw.random() >= share * (0.8 if name != "train" else 0.4):
                continue
            shutil.copytree(run, "run")
            answer = _cut_off(name, arguments, cut)
            words = " ".join([name, *arguments])
            kind = answer.kind or ("refused" if answer.code else "accepted")
            count.add(kind, f"{words}: {answer.said[-400:]}")
            for made in Path().iterdir():
                if made.is_dir():
                    shutil.rmtree(made)
                elif made.suffix != ".toml":
                    made.unlink()
    return count


@contextlib.contextmanager
def in_scratch() -> Iterator[Path]:
    """Work in a folder of its own, beside which there is a finished run."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        run, inside = Path(scratch) / "finished", Path(scratch) / "inside"
        inside.mkdir()
        (inside / "study.toml").write_text(STUDY)
        (inside / "tuning.toml").write_text(TUNING)
        flags = [*TINY, "--algo", "metrpo", "--total-steps", "20", "--out", str(run)]
        answer = command(["train", *flags])
        if answer.code or answer.kind:
            raise RuntimeError(answer.said)
        os.chdir(inside)
        try:
            yield run
        finally:
            os.chdir(before)


def command_lines() -> Iterator[tuple[str, list[str], bool]]:
    """Command, arguments, and whether its work is cut off."""
    for name in COMMANDS:
        base = BASES[name]
        for flag in _flags_of(name):
            for value in NONSENSE:
                yield name, [*base, f"{flag}={value}"], True
        # An option that is not one, and each argument without a flag.
        yield name, [*base, "--nonsense"], True
        for at in range(len(base)):
            if not base[at].startswith("--") and (at == 0 or base[at - 1][:2] != "--"):
                for value in (one for one in NONSENSE if one != "-1"):
                    yield name, [*base[:at], value, *base[at + 1 :]], True
    for algo in ("pombu", "ppo"):
        base = [*TINY, "--algo", algo, "--total-steps", "20", "--out", "out"]
        for option in registry.options(algo):
            for value in NONSENSE:
                flag = f"--{option.replace('_', '-')}"
                cut = algo != "ppo" or value != "0"
                yield "train", [*base, f"{flag}={value}"], cut


def _flags_of(name: str) -> Iterator[str]:
    home = importlib.import_module(f"pombu.cli.{HOMES.get(name, name)}")
    yield from _fields_of(getattr(home, "".join(map(str.capitalize, name.split("-")))))


def _fields_of(kind: Any) -> Iterator[str]:
    hints = typing.get_type_hints(kind, include_extras=False)
    for field in dataclasses.fields(kind):
        inner = hints.get(field.name)
        if dataclasses.is_dataclass(inner):
            yield from _fields_of(inner)
        elif "Positional" not in str(field.type) and field.name not in ("config", "id"):
            yield f"--{field.name.replace('_', '-')}"


def _cut_off(name: str, arguments: list[str], cut: bool) -> Answer:
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet())
        for place in CUT.get(name, ()) if cut else ():
            stack.enter_context(mock.patch(place, begin))
        try:
            return command([name, *arguments])
        except BegunError:
            return Answer(0)
        finally:
            # `pombu bench` turns it off.
            jax.config.update("jax_enable_compilation_cache", True)


ARRAYS = (
    None,
    "text",
    object(),
    {},
    [],
    [None, None],
    np.full(2, np.nan),
    np.full(2, np.inf),
    np.zeros((2, 5)),
    np.zeros((0, 2)),
    np.zeros((2, 2, 2)),
    np.array(["a", "b"]),
    np.zeros(2, complex),
    np.zeros(2, object),
    np.full(2, 1e300),
)
NUMBERS = (None, float("nan"), float("inf"), -1, 0, 1e20, "text", object(), [1], True)
THINGS = (None, "", "text", "no_module:make", 3, float("nan"), object(), [], {}, b"raw")
GOOD = np.array([0.1, -0.1], np.float32)


def methods(share: float) -> Count:
    """Give every argument of every public method nonsense."""
    count = Count("nonsense for methods")
    with in_scratch() as run, mock.patch("pombu.agent.agents.learn", begin):
        agent = pombu.METRPO.load(run)
        other = pombu.POMBU(EnvConfig("Point2D", 10), "smoke") if share >= 1 else None
        calls = list(method_calls(agent, other, run))
        for name, function, value in calls[:: max(round(1 / share), 1)]:
            with quiet():
                try:
                    answer = call(lambda f=function, v=value: f(v))
                except BegunError:
                    answer = Answer(0)
            kind = answer.kind or ("refused" if answer.code else "accepted")
            count.add(kind, f"{name}({value!r:.60}): {answer.said[-400:]}")
    return count


def method_calls(
    agent: Any, other: Any, run: Path
) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """Name, call, and what it is given."""
    task, free = load("Point2D"), Path("made")

    def episode(**changed: Any) -> Episode:
        given = {
            "observations": np.zeros((3, 2), np.float32),
            "actions": np.zeros((2, 2), np.float32),
            "rewards": np.zeros(2, np.float32),
            "terminated": False,
        }
        return Episode(**{**given, **changed})

    def logged(value: Any) -> Any:
        arrays = {name: np.zeros((2, 2)) for name in ("actions", "next_observations")}
        ends = dict.fromkeys(("rewards", "terminations", "truncations"), np.zeros(2))
        np.savez("logged.npz", observations=np.asarray(value), **arrays, **ends)
        return read_logged("logged.npz", task)

    over: dict[str, tuple[tuple[Any, ...], Callable[[Any], Any]]] = {
        "METRPO.predict": (ARRAYS, agent.predict),
        "METRPO.predict_next": (ARRAYS, lambda x: agent.predict_next(x, GOOD)),
        "METRPO.predict_next action": (ARRAYS, lambda x: agent.predict_next(GOOD, x)),
        "METRPO.imagine": (ARRAYS, lambda x: agent.imagine(x, 2)),
        "METRPO.imagine steps": (NUMBERS[1:], lambda x: agent.imagine(GOOD, x)),
        "METRPO.value": (ARRAYS, agent.value),
        "METRPO.q_value": (ARRAYS, lambda x: agent.q_value(x, GOOD)),
        "METRPO.evaluate": (NUMBERS, agent.evaluate),
        "METRPO.evaluate seed": (NUMBERS, lambda x: agent.evaluate(1, x)),
        "METRPO.learn": (NUMBERS, agent.learn),
        "METRPO.learn callback": (THINGS, lambda x: agent.learn(20, x)),
        "METRPO.learn out": (THINGS, lambda x: agent.learn(20, out=x)),
        "METRPO.save": (THINGS, agent.save),
        "METRPO.load": (THINGS, pombu.METRPO.load),
        "METRPO.load env": (THINGS, lambda x: pombu.METRPO.load(run, env=x)),
        "METRPO.load checkpoint": (
            THINGS,
            lambda x: pombu.METRPO.load(run, checkpoint=x),
        ),
        "METRPO env": (THINGS, pombu.METRPO),
        "METRPO preset": (THINGS, lambda x: pombu.METRPO("Point2D", x)),
        "METRPO seed": (NUMBERS, lambda x: pombu.METRPO("Point2D", "smoke", x)),
        "METRPO config": (THINGS, lambda x: pombu.METRPO("Point2D", config=x)),
        "METRPO data": (THINGS, lambda x: pombu.METRPO("Point2D", "smoke", data=x)),
        "METRPO model": (THINGS, lambda x: pombu.METRPO("Point2D", model=x)),
        "METRPO model.members": (
            NUMBERS,
            lambda x: pombu.METRPO("Point2D", "smoke", **{"model.members": x}),
        ),
        "METRPO observe": (THINGS, agent.observe),
        "PPO.propose": ((None,), lambda x: pombu.PPO("Point2D", "smoke").propose()),
        "EnvConfig": (THINGS, EnvConfig),
        "EnvConfig horizon": (NUMBERS, lambda x: EnvConfig("Point2D", horizon=x)),
        "EnvConfig noise": (
            NUMBERS,
            lambda x: EnvConfig("Point2D", observation_noise=x),
        ),
        "preset": (THINGS, lambda x: pombu.preset(x, "smoke", "Point2D")),
        "preset name": (THINGS, lambda x: pombu.preset("metrpo", x, "Point2D")),
        "preset task": (THINGS, lambda x: pombu.preset("metrpo", "smoke", x)),
        "StopAfter": (NUMBERS, StopAfter),
        "StopAtReturn": (NUMBERS, StopAtReturn),
        "read_logged": (THINGS, lambda x: read_logged(x, task)),
        "read_logged observations": (ARRAYS, logged),
        "write_logged": (THINGS, lambda x: write_logged(free, x)),
        "q_uncertainty": (ARRAYS, lambda x: pombu.q_uncertainty(x, x, 0.9)),
    }
    if other is not None:
        over |= {
            "POMBU.q_uncertainty": (ARRAYS, lambda x: other.q_uncertainty(x, GOOD)),
            "POMBU.q_uncertainty rollouts": (
                NUMBERS,
                lambda x: other.q_uncertainty(GOOD, GOOD, x),
            ),
            "POMBU.q_interval": (ARRAYS, lambda x: other.q_interval(x, GOOD)),
            "POMBU.q_value rollouts": (
                NUMBERS,
                lambda x: other.q_value(GOOD, GOOD, x),
            ),
            "POMBU.observe observations": (
                ARRAYS,
                lambda x: other.observe(episode(observations=x)),
            ),
            "POMBU.observe rewards": (
                ARRAYS,
                lambda x: other.observe(episode(rewards=x)),
            ),
        }
    for name, (values, function) in over.items():
        for value in values:
            yield name, function, value
