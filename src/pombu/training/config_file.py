"""A frozen dataclass as JSON or TOML, and back, checked field by field."""

import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pombu.errors import UsageError

C = TypeVar("C")


def to_json(config: Any) -> dict[str, Any]:
    """A config as a tree that `json` can write."""
    return dataclasses.asdict(config)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of fields by their dotted names, as on the command line."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = list(value) if isinstance(value, tuple) else value
    return found


def to_toml(tree: Mapping[str, Any]) -> str:
    """A tree of fields as TOML. None, which TOML does not have, is the text "None"."""
    return "\n".join(_toml_lines(tree)).lstrip("\n") + "\n"


def _toml_lines(tree: Mapping[str, Any], table: str = "") -> Iterator[str]:
    tables = {key: one for key, one in tree.items() if isinstance(one, Mapping)}
    plain = {key: one for key, one in tree.items() if key not in tables}
    if table and (plain or not tables):
        yield f"\n[{table}]"
    for key, value in plain.items():
        yield f"{_toml_key(key)} = {toml_value(value)}"
    for key, inner in tables.items():
        name = _toml_key(key)
        yield from _toml_lines(inner, f"{table}.{name}" if table else name)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """A value as TOML spells it."""
    if value is None:
        return '"None"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def without_none_texts(value: Any) -> Any:
    """What `to_toml` was given: the text "None" is None, also inside tables."""
    if isinstance(value, dict):
        return {key: without_none_texts(inner) for key, inner in value.items()}
    return None if value == "None" else value


def from_json(kind: type[C], data: Any, where: str = "config") -> C:
    """The config that `to_json` was given.

    A field that an older version did not write takes its default.

    Raises:
        UsageError: A field is missing, unknown or of another type.
    """
    value: C = read_value(kind, data, where)
    return value


def read_value(kind: Any, data: Any, where: str) -> Any:
    """The same for a value of any type that a field may have."""
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, where)
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(options, data, where)
    if origin is typing.Literal and data in options:
        return data
    if origin is tuple and isinstance(data, list | tuple):
        kinds = options[:1] * len(data) if options[-1] is Ellipsis else options
        if len(kinds) == len(data):
            pairs = zip(kinds, data, strict=True)
            return tuple(read_value(k, one, f"{where}[]") for k, one in pairs)
    if origin is dict and isinstance(data, dict):
        return data
    if kind is float and type(data) in (int, float):
        return float(data)
    if origin is None and type(data) is kind:
        return data
    raise UsageError(f"{where} is {data!r}, which is not {in_words(kind)}.")


def _read_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UsageError(f"{where} is {data!r}, which is not an object with fields.")
    kinds = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(data) - set(fields)):
        near = difflib.get_close_matches(unknown[0], fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise UsageError(f"{where}.{unknown[0]} is not a field that pombu knows{hint}")
    if missing := [n for n, f in fields.items() if _required(f) and n not in data]:
        raise UsageError(f"{where}.{missing[0]} is missing.")
    return kind(
        **{n: read_value(kinds[n], one, f"{where}.{n}") for n, one in data.items()}
    )


def _required(field: "dataclasses.Field[Any]") -> bool:
    absent = dataclasses.MISSING
    return field.default is absent and field.default_factory is absent


def _read_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    for option in options:
        try:
            return read_value(option, data, where)
        except UsageError:
            continue
    raise UsageError(
        f"{where} is {data!r}, which is not {' or '.join(map(in_words, options))}."
    )


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "None",
}


def in_words(kind: Any) -> str:
    """A type in words."""
    if kind in _WORDS:
        return _WORDS[kind]
    options = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(repr, options))}"
    if typing.get_origin(kind) is tuple:
        return f"a list, each {in_words(options[0])}"
    return kind.__name__ if isinstance(kind, type) else str(kind)
