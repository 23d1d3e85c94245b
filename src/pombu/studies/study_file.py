"""`study.toml`: a grid of algorithms, tasks, seeds and overrides."""

import dataclasses
import difflib
import itertools
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from pombu.algorithms import registry
from pombu.envs import EnvConfig, resolve
from pombu.errors import SEEDS, UsageError
from pombu.studies.study import Job, OverrideError, require_trusted
from pombu.training.config_file import flat, from_json, in_words

Values = Mapping[str, Any]
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Study:
    """A grid of runs. Its fields are the keys of a study file."""

    algorithms: tuple[str, ...]
    """Names as in `pombu train --algo`."""
    tasks: tuple[str, ...]
    """Names as in `pombu train --env`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A list, or how many to take from 0 on."""
    preset: str = "fast"
    """Where the values come from that are not overridden."""
    total_steps: int | None = None
    """Real steps of every run; left out, what the preset plans."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment's options. Each is a key of the file: `horizon = 1000`. The id is
    not used, for `tasks` has those."""
    overrides: Values = field(default_factory=dict)
    """A table of options that hold for every run: `alpha = 0.75`."""
    grid: Values = field(default_factory=dict)
    """A table of options with lists of values, each of which is run:
    `alpha = [0.0, 0.5]`."""
    out: str | None = None
    """Folder for the runs; left out, `runs/` and the file's name."""
    skip: tuple[str, ...] = ()
    """Folders, such as `results`, whose runs need not be done again; one that does not
    exist holds none."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Shares of the study by name, each with some of its `algorithms`, `tasks` or
    `seeds`, or fewer `total_steps`; left out, they are the study's."""

    def part(self, name: str | None) -> "Study":
        """The share with this name; the whole study without one.

        Raises:
            UsageError: There is no such part.
        """
        if name is None:
            return self
        if name not in self.parts:
            known = ", ".join(self.parts) or "none"
            raise UsageError(
                f"the study has no part {name!r}; there are {known}: name one of them, "
                "or leave --part out."
            )
        return dataclasses.replace(self, **self.parts[name], parts={})

    def jobs(self) -> list[Job]:
        """Every combination, seeds last: the first seed of all comes before the
        second of any, so that an unfinished study already compares."""
        grid = flat(self.grid)
        return [
            Job(
                algorithm=algorithm,
                env=dataclasses.replace(self.env, id=task),
                seed=seed,
                preset=self.preset,
                total_steps=self.total_steps,
                # Sorted: the order of lines must not name another folder.
                overrides=tuple(
                    (key, frozen(value))
                    for key, value in sorted(
                        {
                            **flat(self.overrides),
                            **dict(zip(grid, values, strict=True)),
                        }.items()
                    )
                ),
            )
            for seed in self.seeds
            for task in self.tasks
            for algorithm in self.algorithms
            for values in itertools.product(*grid.values())
        ]


def read_study(path: Path, trusted: Collection[str] = ()) -> Study:
    """Read a study file.

    Nothing of a task outside pombu is run unless it is among the trusted ones.

    Raises:
        UsageError: It cannot be read or used; names the line and the key.
    """
    text, content = load_toml(path)
    reader = KeyReader(path, text, _KEYS)
    study = Study(**reader.values(content, ("algorithms", "tasks")))
    require_trusted(study.tasks, trusted)
    _try_out(study, reader)
    return study


def read_out(path: Path) -> str | None:
    """The folder that a study file names for its runs.

    Raises:
        UsageError: The file cannot be read.
    """
    _, content = load_toml(path)
    out = content.get("out")
    return out if isinstance(out, str) else None


def load_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """A file's text and what it holds.

    Raises:
        UsageError: It cannot be read; names the line and the key.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(
            f"{path} cannot be read ({reason}): give the path of a study file."
        ) from None
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is no valid TOML: {error}{_key_at(text, error)}."
        ) from None


def _key_at(text: str, error: tomllib.TOMLDecodeError) -> str:
    """The key on the line that a parser complains about, if it names one with a key."""
    number = re.search(r"line (\d+)", str(error))
    lines = text.splitlines()[int(number[1]) - 1 :][:1] if number else []
    key = _KEY.match(lines[0]) if lines else None
    return f", key {_plain_key(key[1])}" if key else ""


Keys = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""What each key of a file accepts, in words, and how its value is read."""


class KeyReader:
    """Checks a file's content key by key, so that what is wrong has a line."""

    def __init__(self, path: Path, text: str, keys: Keys) -> None:
        self.path = path
        self.keys = keys
        self.lines = key_lines(text)

    def values(self, content: Values, required: Collection[str]) -> dict[str, Any]:
        """Every key's value as the field that it becomes; those of `EnvConfig` as one,
        called `env`."""
        for key in content:
            if key not in self.keys:
                near = difflib.get_close_matches(key, self.keys, n=1)
                hint = f"did you mean {near[0]}?" if near else "leave it out."
                known = ", ".join(self.keys)
                self.fail(key, f"it is unknown; there are {known}: {hint}")
        for key in required:
            if key not in content:
                raise UsageError(f"{self.path} has no key {key}: add {key} = ... .")
        values = {key: self.value(key, value) for key, value in content.items()}
        if "parts" in values:
            values["parts"] = self.parts(values["parts"], values)
        options = {key: values.pop(key) for key in _OPTIONS if key in values}
        return {**values, "env": self.environment(options)}

    def value(self, key: str, value: Any, name: str = "") -> Any:
        """A key's value as the field that it becomes; `name` is how it is written."""
        accepted, read = self.keys[key]
        try:
            return read(value)
        except NotAcceptedError:
            self.fail(name or key, f"it is {value!r}, and {accepted} is accepted.")
        except UsageError as error:
            self.fail(name or key, str(error))

    def parts(self, tables: Values, whole: Values) -> dict[str, dict[str, Any]]:
        """Every part's fields, which the whole study must have."""
        found: dict[str, dict[str, Any]] = {}
        for part, table in tables.items():
            if not isinstance(table, dict) or set(table) - set(_PART_KEYS):
                accepted = ", ".join(_PART_KEYS)
                self.fail(
                    f"parts.{part}",
                    f"it is {table!r}, and a table of {accepted} is accepted.",
                )
            fields = {
                key: self.value(key, value, f"parts.{part}.{key}")
                for key, value in table.items()
            }
            for key, value in fields.items():
                due = whole.get(key, getattr(Study, key, None))
                inside = due is None or (
                    value <= due if isinstance(value, int) else set(value) <= set(due)
                )
                if not inside:
                    self.fail(f"parts.{part}.{key}", f"the study's own {key} is {due}.")
            found[part] = fields
        return found

    def environment(self, options: Values) -> EnvConfig:
        """The environment's options, each by itself, so that a wrong one has a line."""
        env = EnvConfig()
        for key, value in options.items():
            try:
                env = dataclasses.replace(env, **{key: value})
            except UsageError as error:
                self.fail(key, str(error))
        return env

    def fail(self, key: str, reason: str) -> NoReturn:
        """Say what is wrong with a key, and on which line it stands."""
        names = (key, key.rpartition(".")[0], key.partition(".")[0])
        line = next((self.lines[name] for name in names if name in self.lines), None)
        where = f"{self.path}, line {line}" if line else str(self.path)
        raise UsageError(f"{where}, key {key}: {reason}") from None


def _try_out(study: Study, reader: KeyReader) -> None:
    """Make one seed of every combination, to find what does not fit together."""
    for key, values in flat(study.grid).items():
        if not isinstance(values, list) or not values:
            reader.fail(f"grid.{key}", f"it is {values!r}, and a list is accepted.")
    for job in study.jobs():
        if job.seed != study.seeds[0]:
            break
        try:
            job.config()
        except OverrideError as error:
            table = "grid" if error.key in flat(study.grid) else "overrides"
            reader.fail(f"{table}.{error.key}", str(error))


class NotAcceptedError(Exception):
    """A value is of another kind."""


def _names(check: Callable[[str], object]) -> Callable[[Any], tuple[str, ...]]:
    def read(value: Any) -> tuple[str, ...]:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names:
            raise NotAcceptedError
        for name in names:
            if not isinstance(name, str):
                raise NotAcceptedError
            check(name)
        return tuple(dict.fromkeys(names))

    return read


def _seeds(value: Any) -> tuple[int, ...]:
    if type(value) is int and 0 < value <= MOST_SEEDS:
        return tuple(range(value))
    if not isinstance(value, list) or not value:
        raise NotAcceptedError
    if any(type(seed) is not int or not 0 <= seed < SEEDS for seed in value):
        raise NotAcceptedError
    return tuple(dict.fromkeys(value))


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise NotAcceptedError
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise NotAcceptedError
    return value


def _folders(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise NotAcceptedError
    return tuple(map(_word, names))


def _preset(value: Any) -> str:
    name = _word(value)
    if name not in registry.PRESETS:
        raise NotAcceptedError
    return name


def _table(value: Any) -> Values:
    if not isinstance(value, dict):
        raise NotAcceptedError
    return value


def _option(key: str) -> tuple[str, Callable[[Any], Any]]:
    """What an option of the environment accepts, in words, and how it is read."""
    kind = get_type_hints(EnvConfig)[key]
    kinds = [one for one in get_args(kind) or (kind,) if one is not type(None)]
    # Its type alone: what values it may have is for the whole config to say.
    alone = dataclasses.make_dataclass("alone", [(key, kind)])

    def read(value: Any) -> Any:
        try:
            return getattr(from_json(alone, {key: value}, "the file"), key)
        except UsageError:
            raise NotAcceptedError from None

    return " or ".join(map(in_words, kinds)), read


_OPTIONS = tuple(EnvConfig().options)
_PART_KEYS = ("algorithms", "tasks", "seeds", "total_steps")
COMMON_KEYS: Keys = {
    "seeds": (
        f"a list of whole numbers from 0 to {SEEDS - 1}, or how many, up to "
        f"{MOST_SEEDS},",
        _seeds,
    ),
    "preset": (f"one of {', '.join(registry.PRESETS)}", _preset),
    "total_steps": ("a whole number from 1 on", _count),
    **{key: _option(key) for key in _OPTIONS},
    "overrides": ("a table of options", _table),
    "out": ("the name of a folder", _word),
}
"""Keys of every file about many runs."""
_KEYS: Keys = {
    "algorithms": ("a list of names", _names(registry.find)),
    "tasks": ("a list of names", _names(resolve)),
    **COMMON_KEYS,
    "grid": ("a table of options with lists of values", _table),
    "skip": ("a list of folders", _folders),
    "parts": ("a table of parts", _table),
}


_KEY = re.compile(r"\s*([\w.\-\"' ]+?)\s*=")
_HEADER = re.compile(r"\s*\[{1,2}([^\[\],=]*[^\[\],=\d\s])\]{1,2}\s*(#|$)")


def key_lines(text: str) -> dict[str, int]:
    """The line on which each key of a TOML text stands, by its dotted name."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        # A line of a nested array begins like a table, too.
        if header := _HEADER.match(line):
            table = _plain_key(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            name = _plain_key(key[1])
            found.setdefault(f"{table}.{name}" if table else name, number)
    return found


def _plain_key(key: str) -> str:
    return re.sub(r"[\"'\s]", "", key)


def frozen(value: Any) -> Any:
    """A value of a file as a config has it: lists become tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value
