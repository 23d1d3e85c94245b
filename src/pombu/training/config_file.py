"""A frozen dataclass as JSON, and back, checked field by field."""

import dataclasses
import types
import typing
from collections.abc import Mapping
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


def from_json(kind: type[C], data: Any, where: str = "config") -> C:
    """The config that `to_json` was given.

    A field that an older version did not write takes its default.

    Raises:
        UsageError: A field is missing, unknown or of another type.
    """
    value: C = _read(kind, data, where)
    return value


def _read(kind: Any, data: Any, where: str) -> Any:
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
            return tuple(_read(k, one, f"{where}[]") for k, one in pairs)
    if origin is dict and isinstance(data, dict):
        return data
    if kind is float and type(data) in (int, float):
        return float(data)
    if origin is None and type(data) is kind:
        return data
    raise UsageError(f"{where} is {data!r}, which is not {_spell(kind)}.")


def _read_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UsageError(f"{where} is {data!r}, which is not an object with fields.")
    kinds = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(data) - set(fields)):
        raise UsageError(f"{where}.{unknown[0]} is not a field that pombu knows.")
    if missing := [n for n, f in fields.items() if _required(f) and n not in data]:
        raise UsageError(f"{where}.{missing[0]} is missing.")
    return kind(**{n: _read(kinds[n], one, f"{where}.{n}") for n, one in data.items()})


def _required(field: "dataclasses.Field[Any]") -> bool:
    absent = dataclasses.MISSING
    return field.default is absent and field.default_factory is absent


def _read_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    for option in options:
        try:
            return _read(option, data, where)
        except UsageError:
            continue
    raise UsageError(
        f"{where} is {data!r}, which is not {' or '.join(map(_spell, options))}."
    )


def _spell(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
