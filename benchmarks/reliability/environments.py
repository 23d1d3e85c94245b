"""Environments that go wrong, or are odd: at making, reset, step or close.

Each is trained in by the command line. Either the run ends with finite numbers, or one
sentence says what was wrong.
"""

import contextlib
import itertools
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.reliability.trial import Answer, Count, command, quiet
from pombu.training.metrics import deterministic, read_rows

HERE = "benchmarks.reliability.environments"
STEPS = 5
"""Of an episode."""

Fault = Callable[[Any], Any]
"""Takes what a right environment gives and gives, or does, something else."""


class OddError(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


def raises(error: BaseException) -> Fault:
    def fault(given: Any) -> Any:
        raise error

    return fault


def prints(given: Any) -> Any:
    print("[bold]noise[/bold]\n" * 3)
    return given


FAULTS: dict[str, Fault] = {
    "raises ValueError": raises(ValueError("the cable came loose")),
    "raises an error of several lines": raises(RuntimeError("one\ntwo\n\tthree [x]")),
    "raises an error without words": raises(KeyError()),
    "raises an error that has no words": raises(OddError()),
    "raises AssertionError": raises(AssertionError()),
    "raises StopIteration": raises(StopIteration()),
    "raises RecursionError": raises(RecursionError("too deep")),
    "raises MemoryError": raises(MemoryError()),
    "exits with 0": raises(SystemExit(0)),
    "exits with words": raises(SystemExit("bye")),
    "prints": prints,
    "gives None": lambda given: None,
    "gives a number": lambda given: 3,
    "gives an empty tuple": lambda given: (),
    "gives a list": list,
}
"""At reset, step and close."""

OBSERVATIONS: dict[str, Fault] = {
    "None": lambda seen: None,
    "NaN": lambda seen: seen * np.nan,
    "inf": lambda seen: seen + np.inf,
    "one entry less": lambda seen: seen[:1],
    "one entry more": lambda seen: np.append(seen, 1.0),
    "a scalar": lambda seen: 1.0,
    "a matrix": lambda seen: np.tile(seen, (3, 1)),
    "text": lambda seen: "north",
    "a dict": lambda seen: {"position": seen},
    "a ragged list": lambda seen: [[1.0], [2.0, 3.0]],
    "objects": lambda seen: seen.astype(object),
    "complex numbers": lambda seen: seen + 1j,
    "whole numbers": lambda seen: seen.astype(int),
    "float64": lambda seen: seen.astype(np.float64),
    "a list of numbers": lambda seen: seen.tolist(),
    "huge ones": lambda seen: seen * 1e30,
    "beyond float32": lambda seen: seen.astype(np.float64) * 1e300,
    "large ones": lambda seen: seen * 3000,
    "constant ones": lambda seen: np.zeros(2, np.float32),
    "an empty array": lambda seen: np.zeros(0, np.float32),
}
"""As the observation of every reset or step."""

REWARDS: dict[str, Any] = {
    "None": None,
    "NaN": math.nan,
    "inf": math.inf,
    "text": "much",
    "an array": np.ones(3),
    "huge": 1e30,
    "beyond float32": 1e300,
    "whole": 1,
    "a bool": True,
    "complex": 1j,
    "constant": 0.0,
}

ENDS: dict[str, tuple[Any, Any]] = {
    "one-step episodes": (True, False),
    "one-step time limits": (False, True),
    "both ends": (True, True),
    "None": (None, None),
    "text": ("no", "no"),
    "arrays": (np.zeros(2, bool), np.zeros(2, bool)),
    "numbers": (0.0, 1),
    "never": (False, False),
}

SPACES: dict[str, tuple[Any, Any]] = {
    "none at all": (None, None),
    "no observations": (spaces.Box(-1, 1, (0,)), None),
    "scalar observations": (spaces.Box(-1, 1, ()), None),
    "discrete observations": (spaces.Discrete(4), None),
    "text observations": (spaces.Text(4), None),
    "other observations": (spaces.Box(-1, 1, (7,)), None),
    "no actions": (None, spaces.Box(-1, 1, (0,))),
    "scalar actions": (None, spaces.Box(-1, 1, ())),
    "discrete actions": (None, spaces.Discrete(4)),
    "unbounded actions": (None, spaces.Box(-np.inf, np.inf, (2,))),
    "actions of one value": (None, spaces.Box(1.0, 1.0, (2,))),
    "whole actions": (None, spaces.Box(0, 4, (2,), np.int64)),
    "choices of actions": (None, spaces.MultiBinary(3)),
    "no space": (3, "box"),
}

PLACES = ("reset", "step", "close")


class Odd(gymnasium.Env[Any, Any]):
    """A point that moves; the fault is that of the module."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        _NOW.get("make", lambda env: None)(self)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.steps = 0
        seen = _NOW.get("observe reset", _same)(self.position.copy())
        return _NOW.get("reset", _same)((seen, {}))

    def step(self, action: Any) -> Any:
        self.steps += 1
        move = np.resize(np.ravel(np.asarray(action, np.float32)), 2)
        self.position = self.position + 0.1 * move
        seen = _NOW.get("observe step", _same)(self.position.copy())
        reward = _NOW.get("reward", -float(np.abs(self.position).sum()))
        ends = _NOW.get("ends", (False, self.steps >= STEPS))
        given = (seen, reward, *ends, {})
        # An environment may work for a while.
        late = self.steps < _NOW.get("from", 1)
        return given if late else _NOW.get("step", _same)(given)

    def close(self) -> None:
        _NOW.get("close", _same)(None)


def _same(given: Any) -> Any:
    return given


_NOW: dict[str, Any] = {}


def make(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """What the command line is given."""
    return gymnasium.wrappers.TimeLimit(Odd(render_mode), STEPS)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way of being odd, by name."""
    for (name, fault), place in itertools.product(FAULTS.items(), PLACES):
        yield f"{place} {name}", {place: fault}
    for name in ("raises ValueError", "exits with 0", "gives None"):
        yield f"making {name}", {"make": FAULTS[name]}
        yield f"third step {name}", {"step": FAULTS[name], "from": 3}
    for (name, fault), place in itertools.product(OBSERVATIONS.items(), PLACES[:2]):
        yield f"{place} observes {name}", {f"observe {place}": fault}
    for name in ("huge ones", "large ones", "constant ones", "whole numbers"):
        both = dict.fromkeys(("observe reset", "observe step"), OBSERVATIONS[name])
        yield f"observes {name} always", both
    for name, reward in REWARDS.items():
        yield f"rewards are {name}", {"reward": reward}
    for name, ends in ENDS.items():
        yield f"ends are {name}", {"ends": ends}
    for name, (seen, acted) in SPACES.items():
        yield f"spaces: {name}", {"make": _spaces(name, seen, acted)}


def _spaces(name: str, seen: Any, acted: Any) -> Fault:
    def fault(env: Any) -> None:
        if name == "none at all":
            del env.observation_space, env.action_space
        if seen is not None:
            env.observation_space = seen
        if acted is not None:
            env.action_space = acted

    return fault


def bad_environments(share: float) -> Count:
    """Train in each, with the check and without it."""
    count = Count("odd environments")
    every = [(case, check) for case in cases() for check in (False, True)]
    step = max(round(1 / share), 1)
    with tempfile.TemporaryDirectory() as scratch:
        for (name, odd), check in every[::step]:
            _NOW.clear()
            _NOW.update(odd)
            out = Path(scratch) / "run"
            answer = _train(out, check)
            count.add(outcome(answer, out), f"{name}, {check=}: {answer.said[-400:]}")
            shutil.rmtree(out, ignore_errors=True)
    _NOW.clear()
    return count


def outcome(answer: Answer, run: Path) -> str:
    """What a training counts as: a finished one must have learned from numbers."""
    if answer.kind:
        return answer.kind
    if answer.code:
        return "refused"
    if not (run / "metrics.csv").exists():
        return "silent"
    _, rows = read_rows(run / "metrics.csv")
    numbers = [value for row in rows for value in deterministic(row).values()]
    return "accepted" if numbers and np.isfinite(numbers).all() else "silent"


def _train(out: Path, check: bool) -> Answer:
    # metrpo has a model, a policy and the fewest programs to compile.
    flags = ["--env", f"{HERE}:make", "--algo", "metrpo", "--preset", "smoke"]
    flags += ["--total-steps", "10", "--out", str(out)]
    with quiet(), contextlib.suppress(FileNotFoundError):
        return command(["train", *flags, *([] if check else ["--no-check"])])
