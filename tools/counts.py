"""Count what a reader of the source meets: files, lines, names, and who imports whom.

python -m tools.counts [FOLDER]
"""

import ast
import re
import statistics
import sys
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "pombu"
SEPARATE = ("paper", "bench")
"""Packages that nothing else imports; the limit on lines leaves them out."""


def module_name(path: Path, source: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: set[str]) -> set[str]:
    """The modules of the package that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found & known


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """The longest path of modules, each of which imports the next."""

    @cache
    def below(module: str) -> tuple[str, ...]:
        # A module that is on its way already would be a cycle, which ends the chain.
        if module in under_way:
            return ()
        under_way.add(module)
        chains = [below(other) for other in sorted(graph[module])]
        under_way.remove(module)
        return (module, *max(chains, key=len, default=()))

    under_way: set[str] = set()
    return list(max(map(below, sorted(graph)), key=len))


def definitions(path: Path) -> int:
    """Functions and classes of a file that no underscore hides."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        for node in ast.parse(path.read_text()).body
    )


def exported(path: Path) -> set[str]:
    """What a file lists in `__all__`, or, without one, passes on as `X as X`."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def documented(source: Path) -> set[str]:
    """The names of the API reference: `import pombu` and every module's `__all__`."""
    stubs = [*source.glob("*.pyi")]
    listed = [p for p in source.rglob("*.py") if "\n__all__ = [" in p.read_text()]
    files = [source / "__init__.py", *stubs, *listed]
    return set().union(*map(exported, files)) - {"__version__"}


def files_of_a_transition(source: Path) -> int:
    """Files on the walk of one transition, which ARCHITECTURE.md lists by number."""
    page = source.parent.parent / "ARCHITECTURE.md"
    text = page.read_text() if page.exists() else ""
    return len(set(re.findall(r"^\d+\. \[`([\w/.]+)`\]", text, flags=re.MULTILINE)))


def counts(source: Path) -> dict[str, str]:
    """Every count with its name."""
    paths = {module_name(path, source): path for path in source.rglob("*.py")}
    lines = {name: len(p.read_text().splitlines()) for name, p in paths.items()}
    # A package's own file passes names on, so that it is no link of a chain.
    graph = {
        name: imports(path, set(paths)) - {name}
        for name, path in paths.items()
        if path.name not in ("__init__.py", "__main__.py")
    }
    graph = {name: others & set(graph) for name, others in graph.items()}
    importers = {name: [n for n in graph if name in graph[n]] for name in graph}
    chain = longest_chain(graph)
    single = sorted(name for name, users in importers.items() if len(users) == 1)
    outside = sum(
        n
        for name, n in lines.items()
        if name.split(".")[1:2] and name.split(".")[1] not in SEPARATE
    )
    loose = [p.stem for p in source.glob("*.py") if not p.stem.startswith("_")]
    longest = max(lines, key=lambda name: lines[name])
    return {
        "files": str(len(paths)),
        "lines": str(sum(lines.values())),
        f"lines outside {' and '.join(SEPARATE)}": str(outside),
        "loose modules": f"{len(loose)} ({', '.join(sorted(loose))})",
        "longest import chain": f"{len(chain)} ({' > '.join(chain)})",
        "modules with one importer": f"{len(single)} ({', '.join(single)})",
        "names of the API reference (`import pombu` and every `__all__`)": str(
            len(documented(source))
        ),
        "definitions without an underscore, most of them internal": str(
            sum(map(definitions, paths.values()))
        ),
        "files from env.step to the policy update": str(files_of_a_transition(source)),
        "median file": str(statistics.median(lines.values())),
        "longest file": f"{lines[longest]} ({longest})",
    }


def main() -> None:
    """Print the counts of the source, or of another tree's `src/pombu`."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    for name, count in counts(source.resolve()).items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
