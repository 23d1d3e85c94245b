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
    "kills": ("kills:at_every_operation", "kills:at_random"),
    "flips": ("flips:flipped",),
    "calls": ("calls:flags", "calls:methods"),
    "environments": ("environments:bad_environments",),
}
TARGETS = {"kills": 500, "flips": 1000, "calls": 500, "environments": 100}
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
    parser.add_argument("parts", nargs="*", help="all by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials")
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args(arguments)
    parts = given.parts or list(PARTS)
    # Kills fork, and JAX must not have started by then: they come first.
    counts: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        if part in parts:
            counts[part] = tried(part, given.share)
    found = {
        "command": " ".join(["python -m benchmarks.reliability", *sys.argv[1:]]),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "parts": counts,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "reliability.json").write_text(json.dumps(found, indent=2) + "\n")
    (given.out / "reliability.md").write_text(page(found))
    bad = bad_of(found)
    for one in bad:
        print(one)
    print(f"{given.out / 'reliability.md'}: {len(bad)} bad outcomes.")
    return 1 if bad else 0


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
    ways = [way for part in found["parts"].values() for way in part.values()]
    return [one for way in ways for one in way["bad"]]


def page(found: dict[str, Any]) -> str:
    """The counts as a page."""
    lines = [
        "# Reliability",
        "",
        "Runs that were killed, damaged or asked for nonsense, and what came of it. "
        f"Written by `{found['command']}` with Python {found['python']} on "
        f"{found['cores']} cores; `make test-slow` tries a part of it.",
        "",
        "| what was tried | trials | outcomes | seconds |",
        "|---|---|---|---|",
    ]
    kinds: set[str] = set()
    for ways in found["parts"].values():
        for name, way in ways.items():
            kinds |= way["outcomes"].keys()
            told = ", ".join(f"{n} {kind}" for kind, n in way["outcomes"].items())
            lines.append(f"| {name} | {way['trials']} | {told} | {way['seconds']} |")
    bad = bad_of(found)
    lines += ["", *(f"- **{kind}**: {MEANING[kind]}." for kind in sorted(kinds)), ""]
    if bad:
        lines += ["What must not happen and did:", "", *(f"- {one}" for one in bad)]
    else:
        lines += ["Nothing was silently wrong, unexpected or hung."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
