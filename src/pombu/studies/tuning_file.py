"""`tune.toml`: which options to search, in which ranges, and by which objective."""

import dataclasses
import difflib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, get_args, runtime_checkable

from pombu.algorithms import registry
from pombu.envs import EnvConfig, resolve
from pombu.errors import UsageError
from pombu.studies.study import Job, OverrideError, require_trusted
from pombu.studies.study_file import (
    COMMON_KEYS,
    KeyReader,
    Keys,
    NotAcceptedError,
    Values,
    frozen,
    load_toml,
)
from pombu.training.config_file import flat

Kind = Literal["uniform", "log", "int", "categorical"]
Objective = Literal["final", "area"]
KINDS: tuple[str, ...] = get_args(Kind)
EXAMPLES = (
    "{ uniform = [0.0, 1.0] }, { log = [1e-5, 1e-2] }, { int = [2, 8] } or "
    "{ categorical = [true, false] }"
)
ENV = "env."
MOST_SEED = 2**32


@runtime_checkable
class Suggests(Protocol):
    """What a trial of Optuna is asked for."""

    def suggest_float(
        self, name: str, low: float, high: float, *, log: bool = False
    ) -> float:
        """A number."""

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """A whole number."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """One of the choices."""


@dataclass(frozen=True)
class Dimension:
    """One option's values to search."""

    key: str
    """The option's dotted name."""
    kind: Kind
    values: tuple[Any, ...]
    """Both ends, or all choices."""
    log: bool = False
    step: int = 1

    def suggest(self, trial: Suggests) -> Any:
        """The value that a trial has; the same again if it has one already."""
        low, high = self.values[0], self.values[-1]
        if self.kind == "categorical":
            # Optuna takes plain values alone, so a list is its own text there.
            names = [json.dumps(v) if isinstance(v, tuple) else v for v in self.values]
            return self.values[names.index(trial.suggest_categorical(self.key, names))]
        if self.kind == "int":
            return trial.suggest_int(self.key, low, high, step=self.step, log=self.log)
        return trial.suggest_float(self.key, low, high, log=self.log)


@dataclass(frozen=True)
class Pruning:
    """When a trial is given up before its end."""

    use: bool = True
    warmup: float = 0.25
    """Share of a run's real steps before which none is given up."""


@dataclass(frozen=True)
class Tuning:
    """A search for options. Its fields are the keys of a tuning file."""

    algorithm: str
    """As in `pombu train --algo`."""
    task: str
    """As in `pombu train --env`."""
    space: tuple[Dimension, ...]
    """A table of options and the values to search:
    `"policy.learning_rate" = { log = [1e-5, 1e-2] }`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of every trial: a list, or how many to take from 0 on."""
    preset: str = "fast"
    """Where the values come from that are not searched."""
    total_steps: int | None = None
    """Real steps of every run; left out, what the preset plans."""
    objective: Objective = "final"
    """What is to be high: `final`, the mean of a run's last three evaluations, or
    `area`, the mean of all of them, each weighing the real steps since the one before.
    """
    trials: int | None = None
    """How many trials to have in all."""
    minutes: float | None = None
    """After so long no trial begins, and those that run are saved and stopped; the same
    command goes on with them."""
    startup_trials: int = 8
    """Trials that are drawn at random before others are learned from; none is given
    up before so many are complete."""
    sampler_seed: int = 0
    """Seed of what is drawn."""
    pruning: Pruning = Pruning()
    """`false`, or a table: `warmup = 0.25`."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment's options. Each is a key of the file: `horizon = 1000`."""
    overrides: Values = field(default_factory=dict)
    """A table of options that hold for every run: `updates = 20`."""
    out: str | None = None
    """Folder for everything; left out, `runs/` and the file's name."""

    def job(self, values: Mapping[str, Any], seed: int) -> Job:
        """The run that a seed of a trial with these values is."""
        options = {**flat(self.overrides), **values}
        env = {key: value for key, value in options.items() if key.startswith(ENV)}
        named = {key.removeprefix(ENV): value for key, value in env.items()}
        return Job(
            algorithm=self.algorithm,
            env=dataclasses.replace(self.env, id=self.task, **named),
            seed=seed,
            preset=self.preset,
            total_steps=self.total_steps,
            overrides=tuple(
                (key, frozen(value))
                for key, value in sorted(options.items())
                if key not in env
            ),
        )

    @property
    def definition(self) -> dict[str, Any]:
        """What its trials depend on, flat; how many there are to be does not count."""
        content = dataclasses.asdict(self)
        for name in ("trials", "minutes", "out"):
            del content[name]
        content["space"] = {one["key"]: one for one in content["space"]}
        # As JSON has it, for that is what it is compared with later.
        found: dict[str, Any] = json.loads(json.dumps(flat(content)))
        return found


def read_tuning(path: Path, trusted: Collection[str] = ()) -> Tuning:
    """Read a tuning file.

    Nothing of a task outside pombu is run unless it is among the trusted ones.

    Raises:
        UsageError: It cannot be read or used; names the line and the key.
    """
    text, content = load_toml(path)
    reader = KeyReader(path, text, _KEYS)
    values = reader.values(content, ("algorithm", "task", "space"))
    task = values["task"]
    require_trusted([task], trusted)
    values["space"] = tuple(_dimensions(values["space"], reader))
    tuning = Tuning(**values)
    if not tuning.space:
        reader.fail("space", "it is empty: name options to search.")
    if tuning.trials is None and tuning.minutes is None:
        raise UsageError(
            f"{path} sets no end: add trials = 40, or minutes = 600, or both."
        )
    _try_out(tuning, reader)
    return tuning


def _dimensions(table: Values, reader: KeyReader, prefix: str = "") -> Iterator[Any]:
    """The dimensions of a table and of the tables in it."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        if not isinstance(value, dict):
            reader.fail(f"space.{key}", f"it is {value!r}, and it must be {EXAMPLES}.")
        if any(isinstance(inner, dict) for inner in value.values()):
            yield from _dimensions(value, reader, f"{key}.")
        else:
            yield _dimension(key, value, reader)


def _dimension(key: str, table: Values, reader: KeyReader) -> Dimension:
    def fail(reason: str) -> NoReturn:
        reader.fail(f"space.{key}", reason)

    kinds = [name for name in KINDS if isinstance(table.get(name), list)]
    allowed = {*kinds, *(("log", "step") if kinds == ["int"] else ())}
    unknown = [name for name in table if name not in allowed]
    if len(kinds) != 1 or unknown:
        wrong = (unknown or ["it"])[0]
        near = difflib.get_close_matches(wrong, KINDS, n=1)
        hint = f" (did you mean {near[0]}?)" if near and near[0] != wrong else ""
        fail(f"it is {table!r}{hint}, and it must be {EXAMPLES}.")
    kind: Any = kinds[0]
    values, log, step = table[kind], table.get("log"), table.get("step", 1)
    if kind == "categorical":
        choices = tuple(map(frozen, values))
        if len(choices) < 2 or len({repr(one) for one in choices}) < len(choices):
            fail(f"categorical is {values!r}, and it must be different choices.")
        return Dimension(key, kind, choices)
    number: Any = int if kind == "int" else (int, float)
    is_pair = len(values) == 2 and all(
        isinstance(v, number) and not isinstance(v, bool) and math.isfinite(v)
        for v in values
    )
    if not is_pair or values[0] >= values[1]:
        what = "whole numbers" if kind == "int" else "numbers"
        fail(f"{kind} is {values!r}, and it must be two {what}, the lower one first.")
    is_log = kind == "log" or bool(log)
    if is_log and values[0] <= 0:
        fail(f"its lower end is {values[0]}, and on a log scale it must be above 0.")
    if kind != "int":
        return Dimension(key, kind, tuple(map(float, values)), kind == "log")
    if not isinstance(log, bool | None) or type(step) is not int or step < 1:
        fail(f"it is {table!r}: log must be true or false, and step 1 or more.")
    if is_log and step != 1:
        fail("log and step do not go together: leave one of them out.")
    return Dimension(key, kind, tuple(values), is_log, step)


def _try_out(tuning: Tuning, reader: KeyReader) -> None:
    """Make the config at the ends of every range, to find what is not accepted."""
    searched = {one.key for one in tuning.space}
    options = [f"{ENV}{name}" for name in EnvConfig().options]
    for table, keys in (("space", searched), ("overrides", flat(tuning.overrides))):
        for key in keys:
            if key.startswith(ENV) and key not in options:
                reader.fail(f"{table}.{key}", f"there are {', '.join(options)}.")
            if table == "overrides" and key in searched:
                reader.fail(f"{table}.{key}", "it is searched too: leave one out.")
    seed = tuning.seeds[0]
    try:
        tuning.job({}, seed).config()
    except OverrideError as error:
        reader.fail(f"overrides.{error.key}", str(error))
    for one in tuning.space:
        for value in one.values:
            try:
                tuning.job({one.key: value}, seed).config()
            except UsageError as error:
                known = one.key in (*options, *registry.options(tuning.algorithm))
                tried = f"with {value!r}: " if known else ""
                reader.fail(f"space.{one.key}", f"{tried}{error}")


def _name(check: Any) -> Any:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise NotAcceptedError
        check(value)
        return value

    return read


def _objective(value: Any) -> Any:
    if value not in get_args(Objective):
        raise NotAcceptedError
    return value


def _whole(least: int, below: int) -> Any:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value < below:
            raise NotAcceptedError
        return value

    return read


def _read_minutes(value: Any) -> float:
    """A time limit."""
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise NotAcceptedError
    return float(value)


def _space(value: Any) -> Values:
    if not isinstance(value, dict):
        raise NotAcceptedError
    return value


def _pruning(value: Any) -> Pruning:
    if isinstance(value, bool):
        return Pruning(value)
    if not isinstance(value, dict) or set(value) - {"warmup"}:
        raise NotAcceptedError
    warmup = value.get("warmup", Pruning.warmup)
    if type(warmup) not in (int, float) or not 0 <= warmup < 1:
        raise NotAcceptedError
    return Pruning(True, float(warmup))


_KEYS: Keys = {
    "algorithm": ("a name", _name(registry.find)),
    "task": ("a name", _name(resolve)),
    **COMMON_KEYS,
    "objective": ("'final' or 'area'", _objective),
    "trials": ("a whole number from 1 on", _whole(1, 10**6)),
    "minutes": ("a number above 0", _read_minutes),
    "startup_trials": ("a whole number from 1 on", _whole(1, 10**6)),
    "sampler_seed": ("a whole number from 0 on", _whole(0, MOST_SEED)),
    "pruning": ("true, false or a table with warmup = 0 to 1", _pruning),
    "space": ("a table of options and their ranges", _space),
}
