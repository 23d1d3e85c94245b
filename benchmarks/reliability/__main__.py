"""Try everything, or some of it, and write down what happened."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARTS = {
    "kills": ("kills:at_every_operation",),
    "algorithms": ("kills:at_random",),
    "flips": ("flips:flipped",),
    "calls": ("calls:flags", "calls:methods"),
    "environments": ("environments:bad_environments",),
}
TARGETS = {
    "kills": 500,
    "algorithms": 11,
    "flips": 1000,
    "calls": 500,
    "environments": 100,
}
"""What a whole trial has at least of each."""
MEANING = {
    "same": "ended like an undisturbed run",
    "recovered": "said so, and gave the right answer",
    "refused": "one sentence, and an exit code or an exception of pombu's own",
    "harmless": "the right answer",
    "accepted": "a sensible result; the value means something here",
    "silent": "another answer without a word",
    "unexpected": "a traceback, or a bug by pombu's own words",
    "hung": "no answer in time",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; or all")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials")
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args(arguments)
    parts = given.parts or list(PARTS)
    file = given.out / "reliability.json"
    found = kept_in(file)
    given.out.mkdir(parents=True, exist_ok=True)
    # Kills fork, and JAX must not have started by then: they come first.
    for part in (one for one in PARTS if one in parts):
        new = {
            "share": given.share,
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "ways": tried(part, given.share),
        }
        # Other parts keep what came of them the last time, or in another process.
        found = {**kept_in(file), part: new}
        found = {name: found[name] for name in PARTS if name in found}
        file.write_text(json.dumps(found, indent=2) + "\n")
        file.with_suffix(".md").write_text(page(found))
    bad = bad_of(found)
    for one in bad:
        print(one)
    print(f"{given.out / 'reliability.md'}: {len(bad)} bad outcomes.")
    return 1 if bad else 0


def kept_in(file: Path) -> dict[str, Any]:
    """What came of the parts that were tried."""
    return json.loads(file.read_text()) if file.exists() else {}


def tried(part: str, share: float) -> dict[str, Any]:
    """What came of every way of a part, by the way's name."""
    import importlib

    found = {}
    for way in PARTS[part]:
        module, _, name = way.partition(":")
        begin = time.monotonic()
        home = importlib.import_module(f"benchmarks.reliability.{module}")
        count = getattr(home, name)(share)
        seconds = round(time.monotonic() - begin)
        found[count.name] = {**count.to_json(), "seconds": seconds}
        print(f"{count.name}: {count.trials} in {seconds} s, {dict(count.outcomes)}")
    return found


def bad_of(found: dict[str, Any]) -> list[str]:
    """What must not happen and did, in words."""
    ways = [way for part in found.values() for way in part["ways"].values()]
    return [one for way in ways for one in way["bad"]]


def page(found: dict[str, Any]) -> str:
    """The counts as a page."""
    lines = [
        "# Reliability",
        "",
        "Runs that were killed, damaged or asked for nonsense, and what came of it. "
        "Written by `python -m benchmarks.reliability`, of which `make test-slow` "
        "tries a part; the parts may have been tried one by one.",
        "",
        "| part | what was tried | trials | outcomes | seconds |",
        "|---|---|---|---|---|",
    ]
    kinds: set[str] = set()
    for part, of_it in found.items():
        for name, way in of_it["ways"].items():
            kinds |= way["outcomes"].keys()
            told = ", ".join(f"{n} {kind}" for kind, n in way["outcomes"].items())
            row = (part, name, way["trials"], told, way["seconds"])
            lines.append(f"| {' | '.join(map(str, row))} |")
    lines += ["", *(f"- **{kind}**: {MEANING[kind]}." for kind in sorted(kinds)), ""]
    if bad := bad_of(found):
        lines += ["What must not happen and did:", "", *(f"- {one}" for one in bad)]
    else:
        lines += ["Nothing was silently wrong, unexpected or hung."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
