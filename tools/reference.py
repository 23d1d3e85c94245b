"""Pages that are written by the code they describe: commands, configs, modules."""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import itertools
import os
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pombu.algorithms import registry
from pombu.cli import COMMANDS, main
from pombu.envs import EnvConfig
from pombu.errors import range_of

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "pombu"
EXAMPLES = ROOT / "examples"
WIDTH = 88
TASK = "HalfCheetah"


def commands() -> str:
    """Every command with its own help."""
    parts = [
        "# Commands\n\nEvery command explains itself with `--help`; this page is what "
        "they say. Those with `--json` print one JSON object for other programs, "
        "errors are one sentence on standard error, and the exit code is 0 for "
        "success, 1 for a run that failed, 2 for a bad request and 130 after Ctrl-C."
        f"\n\n```text\n{help_text([])}\n```"
    ]
    for name, summary in COMMANDS.items():
        parts.append(f"## {name}\n\n`pombu {name}`: {summary}.")
        if name == "train":
            parts.append(
                "The options below are those of POMBU; "
                "[Config fields](config.md) lists those of every algorithm."
            )
        parts.append(f"```text\n{help_text([name])}\n```")
    return "\n\n".join(parts) + "\n"


def help_text(arguments: list[str]) -> str:
    """What `pombu ... --help` prints on a terminal of fixed width."""
    earlier = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=str(WIDTH), NO_COLOR="1")
    box = io.StringIO()
    try:
        with contextlib.redirect_stdout(box):
            code = main([*arguments, "--help"])
    finally:
        for name, value in earlier.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    if code:
        raise RuntimeError(f"pombu {' '.join(arguments)} --help ended with {code}")
    return fold(re.sub(r"\x1b\[[\d;]*m", "", box.getvalue()).rstrip())


def fold(text: str) -> str:
    """Break the long lines of a description; boxes are narrow already."""
    lines = text.splitlines()
    return "\n".join(
        part
        for line in lines
        for part in (textwrap.wrap(line, WIDTH) if len(line) > WIDTH else [line])
    )


def configs() -> str:
    """Every field of every config, with the values of the presets."""
    env_flags = [f"`--{name.replace('_', '-')}`" for name in EnvConfig().options]
    parts = [
        "# Config fields\n\nEvery field is a flag of `pombu train` "
        "(`--model.members 3`), a keyword of an agent in Python (`alpha=0.75`, or "
        "`model=replace(config.model, members=3)`) and a line of `config.json` in the "
        "run folder. The text is each field's own docstring; the values are those of "
        f"{TASK} at 200 steps, and `pombu presets --env ENV` prints them for any task."
        "\n\n## The environment\n\n"
        f"{inspect.getdoc(EnvConfig)}\n\n"
        f"Flags: `--env` for the id, and {', '.join(env_flags)}. A study file has the "
        "options under their own names.\n\n"
        "| field | type | default | meaning |\n|---|---|---|---|"
    ]
    meanings = field_docs(EnvConfig)
    for field in dataclasses.fields(EnvConfig):
        kind = type_name(typing.get_type_hints(EnvConfig)[field.name])
        kind += _accepted(EnvConfig, field.name)
        default = value_text(field.default)
        parts[0] += (
            f"\n| `{field.name}` | {kind} | {default} | {cell(meanings[field.name])} |"
        )
    for name, entry in registry.ALGORITHMS.items():
        kind = registry.config_type(name)
        columns = [registry.preset(name, one, TASK) for one in registry.PRESETS]
        heads = " | ".join(f"`{one}`" for one in registry.PRESETS)
        table = [f"| flag | {heads} | meaning |", "|---" * (len(columns) + 2) + "|"]
        for path, hint, meaning, accepted in fields_of(kind):
            values = " | ".join(value_text(dig(one, path)) for one in columns)
            flag = ".".join(path).replace("_", "-")
            table.append(
                f"| `--{flag}`<br>{type_name(hint)}{accepted} | {values} | "
                f"{cell(meaning)} |"
            )
        parts.append(
            f"## {name}\n\n{entry.summary[0].upper()}{entry.summary[1:]}: "
            f"`{kind.__name__}`.\n\n" + "\n".join(table)
        )
    return "\n\n".join(parts) + "\n"


def fields_of(
    kind: type[Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, str, str]]:
    """Path, type, docstring and range of every field, those of parts included."""
    hints = typing.get_type_hints(kind)
    meanings = field_docs(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if hint is EnvConfig:
            continue
        if dataclasses.is_dataclass(hint):
            yield from fields_of(typing.cast(type[Any], hint), (*path, field.name))
        else:
            accepted = _accepted(kind, field.name)
            yield (*path, field.name), hint, meanings[field.name], accepted


def _accepted(kind: type[Any], name: str) -> str:
    """The range of a number, to be written after its type."""
    allowed = range_of(kind, name)
    return f" in {allowed.interval}" if allowed else ""


def field_docs(kind: type[Any]) -> dict[str, str]:
    """The string under each field of a dataclass; a field without one is an error."""
    found = {
        name.target.id: inspect.cleandoc(doc.value.value)
        for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__))
        for name, doc in itertools.pairwise(_body(base))
        if isinstance(name, ast.AnnAssign)
        and isinstance(name.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
    names = [field.name for field in dataclasses.fields(kind)]
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{kind.__name__} does not explain {', '.join(missing)}.")
    return found


def _body(kind: type[Any]) -> list[ast.stmt]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return typing.cast(ast.ClassDef, tree.body[0]).body


def dig(config: Any, path: tuple[str, ...]) -> Any:
    """A field of a part."""
    for name in path:
        config = getattr(config, name)
    return config


def type_name(hint: Any) -> str:
    """A type as a reader would write it."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{one}`" for one in typing.get_args(hint))
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    return text.replace("typing.", "").replace("NoneType", "None").replace("|", "or")


def value_text(value: Any) -> str:
    """A value as a flag would give it."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def examples() -> str:
    """The examples folder as a page."""
    parts = [
        "# Examples\n\nEach file is a whole program; the tests run every one of them."
    ]
    for path in sorted(EXAMPLES.glob("*.*")):
        language = {".py": "python", ".toml": "toml"}.get(path.suffix)
        if language:
            parts.append(
                f"## {path.name} {{#{path.stem}}}\n\n"
                f"```{language}\n{path.read_text().rstrip()}\n```"
            )
    return "\n\n".join(parts) + "\n"


def packages() -> list[str]:
    """The packages of the package, in the order of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| ((?:`[\w./]+`(?:, )?)+) \|", text, flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([\w/]+)(?:\.py)?`", row)]
    return [name.rstrip("/") for name in names]


def modules_of(package: str) -> list[str]:
    """The dotted names of a package's modules; a package comes before what it holds."""
    single = SOURCE / f"{package}.py"
    paths = [single] if single.exists() else sorted((SOURCE / package).rglob("*.py"))
    names = []
    for path in paths:
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(names)


def package_page(package: str) -> str:
    """One package's part of the API reference."""
    parts = [f"# pombu.{package}"]
    for name in modules_of(package):
        options = "" if defines(name) else "\n    options:\n      members: false"
        parts.append(f"::: {name}{options}")
    return "\n\n".join(parts) + "\n"


def defines(module: str) -> bool:
    """Whether a module has functions or classes of its own, as few packages do."""
    path = SOURCE.parent / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(file.read_text()).body)


PUBLIC = (
    "pombu",
    "pombu.envs",
    "pombu.data.logged",
    "pombu.uncertainty",
    "pombu.uncertainty.tabular",
    "pombu.agent.numpy_policy",
)
"""The modules whose exported names are the documented interface."""


def documented() -> dict[str, list[str]]:
    """The names of the documented interface, by the first module that exports them."""
    found: dict[str, list[str]] = {}
    seen: set[int] = set()
    for module in map(importlib.import_module, PUBLIC):
        names = getattr(module, "__all__", None) or {*vars(module), *module._LATER}
        things = {name: getattr(module, name) for name in sorted(names, key=str.lower)}
        found[module.__name__] = [
            name
            for name, thing in things.items()
            if id(thing) not in seen
            and (hasattr(module, "__all__") or is_own(thing))
            and not inspect.ismodule(thing)
        ]
        seen |= {id(things[name]) for name in found[module.__name__]}
    return found


def is_own(thing: Any) -> bool:
    """Whether pombu defines it."""
    return str(getattr(thing, "__module__", "")).startswith("pombu.")


def public_names() -> str:
    """The front page of the API reference: the documented interface."""
    from pombu.agent import agents

    parts = []
    for module, names in documented().items():
        rows = []
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            if not is_own(thing):  # data, which its module's page explains
                rows.append(f"| `{module}.{name}` | a constant |")
                continue
            made = thing.__module__ == agents.__name__  # from the registry
            home = f"{thing.__module__}.{'Agent' if made else thing.__qualname__}"
            summary = (inspect.getdoc(thing) or "").splitlines()[0]
            page = f"{thing.__module__.split('.')[1]}.md"
            rows.append(f"| [`{module}.{name}`]({page}#{home}) | {cell(summary)} |")
        heading = f"## {module}\n\n| name | what it is |\n|---|---|\n"
        parts.append(heading + "\n".join(rows))
    return (
        "# API reference\n\n"
        "The names below are the interface: they change only with an entry in the "
        "[changelog](../changelog.md). What `import pombu` offers is imported when it "
        "is first used, so the import itself is quick and free of JAX. The other pages "
        "of this section show the source by the packages of the "
        "[architecture](../architecture.md); what is not listed here is internal and "
        "may change.\n\n" + "\n\n".join(parts) + "\n"
    )
