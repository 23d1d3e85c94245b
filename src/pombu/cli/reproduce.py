"""`pombu reproduce`: the paper's experiments, one command each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pombu.errors import UsageError
from pombu.studies.reproductions import Profile, find, names


@dataclass(frozen=True)
class Command:
    """Repeat one of the paper's experiments and write its pictures and data.

    Every reproduction leaves PNG and PDF pictures, the data behind them, its settings
    (config.json) and the versions it ran with (versions.json) in its folder. Without a
    name, the reproductions are listed.

    Examples:
        pombu reproduce
        pombu reproduce appendix-c
        pombu reproduce figure-1 --profile smoke --out try/figure-1
        pombu reproduce figure-scatter --json
    """

    name: Annotated[str, tyro.conf.Positional] = ""
    """Which experiment, such as figure-1; empty lists them."""
    profile: Profile | None = None
    """paper: the paper's scale; fast: smaller; smoke: seconds, for a first look. Each
    experiment has its own default, shown in the list."""
    out: Path | None = None
    """Folder to write to; reproductions/NAME if not given."""
    json: bool = False
    """Print the headline numbers as one JSON object."""

    def run(self) -> int:
        """List the reproductions, or run one."""
        if not self.name:
            return self._list()
        item = find(self.name)
        out = self.out or Path("reproductions") / self.name
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot write to {out} ({error.strerror}); choose another folder with "
                "--out."
            ) from None
        numbers = item.reproduce(self.profile or item.default, out)
        if self.json:
            print(json.dumps({"out": str(out), "numbers": numbers}))
        else:
            print(f"wrote {out}")
        return 0

    def _list(self) -> int:
        items = [find(name) for name in names()]
        if self.json:
            table = {
                i.name: {"summary": i.summary, "default": i.default} for i in items
            }
            print(json.dumps(table))
        else:
            for item in items:
                print(f"{item.name:<18}{item.summary} [default: {item.default}]")
        return 0
