"""OUT/README.md: every item of the paper, ours beside the paper's, what is missing."""

import json
from pathlib import Path
from typing import Any

from pombu.studies.artifacts import markdown_table
from pombu.studies.outputs import LINE
from pombu.studies.reproductions import PAGES, Profile, find, names

SUMMARY = "writes OUT/README.md from the items that were done in OUT"
DEFAULT: Profile = "fast"


def reproduce(profile: Profile, out: Path) -> dict[str, Any]:
    """Write the page; the profile makes no difference."""
    items = [name for name in names() if name not in PAGES]
    lines = read_lines(out)
    done = [(n, line, at) for n in items for line, at in lines if line["item"] == n]
    rows = [
        (name, line["profile"], line["says"] + _note(line), f"[{folder}]({folder})")
        for name, line, folder in done
    ]
    left = [name for name in items if all(name != one for one, *_ in done)]
    table = markdown_table(("item", "profile", "what came out", "folder"), rows)
    parts = [OPENING, table]
    parts += [_section(name, line, folder, out) for name, line, folder in done]
    parts += [_missing(left), _pages(out)]
    (out / "README.md").write_text("\n\n".join(filter(None, parts)) + "\n")
    return {"done": sorted({name for name, *_ in done}), "missing": left}


OPENING = """# Results

Written by `pombu reproduce overview --out results` from the files in the folders
below: each holds its pictures (PNG and PDF), its data, its settings (config.json), the
versions it ran with, and where it has a folder `runs`, the files to draw it again from.
Returns are means and standard deviations over seeds of the last three evaluations, each
of 20 stochastic episodes (2 in smoke); in brackets the paper's own numbers, at its full
scale."""


def read_lines(out: Path) -> list[tuple[dict[str, Any], str]]:
    """The lines of items that were done, some at several sizes, with their folders."""
    return [
        (json.loads(path.read_text()), path.parent.relative_to(out).as_posix())
        for path in sorted(out.rglob(LINE))
    ]


def _section(name: str, line: dict[str, Any], folder: str, out: Path) -> str:
    missing = "\n".join(f"- {what}" for what in line["missing"])
    picture = f"{folder}/{name}.png"
    last = folder.rpartition("/")[2]
    parts = [
        f"## {last if last.startswith(name) else name}",
        f"{find(name).summary.split(' (')[0]}.",
        f"![{name}]({picture})" if (out / picture).exists() else "",
        f"Without a whole run at this profile:\n\n{missing}" if missing else "",
        f"Again: `{line['command']}`",
    ]
    return "\n\n".join(filter(None, parts))


def _note(line: dict[str, Any]) -> str:
    return f" ({line['note']})" if line.get("note") else ""


def _missing(names: list[str]) -> str:
    if not names:
        return ""
    rows = "\n".join(
        f"- {name}: {find(name).summary}; `pombu reproduce {name}`" for name in names
    )
    return f"## Not done yet\n\n{rows}"


def _pages(out: Path) -> str:
    pages = [path for path in out.glob("*.md") if path.name != "README.md"]
    found = (
        path.relative_to(out).as_posix() for path in (*pages, *out.glob("*/README.md"))
    )
    rows = "\n".join(f"- [{name}]({name})" for name in sorted(found))
    return f"## More\n\n{rows}" if rows else ""
