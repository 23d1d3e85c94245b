"""`pombu results`: a results page from runs, with everything needed to check it."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Annotated

import tyro

from pombu.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Command:
    """Keep the files of runs for others to check, and write a page about them.

    There is a section for every task, with the paper's numbers where it has some. A
    file `remarks.md` in the folder is repeated on the page.

    Examples:
      pombu results runs/cheetah-0 runs/cheetah-1 --out results/halfcheetah
      pombu results --out results/halfcheetah
      pombu results runs/own-* --out results/own-environments
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders to add; none writes the page again from what was kept."""
    out: Path = Path("results/halfcheetah")
    """Folder for the kept files; the page is written beside it."""
    title: str | None = None
    """The page's heading; None takes the folder's name."""
    up_to: int | None = None
    """Real steps at which longer runs are cut, to be compared with shorter ones."""
    json: bool = False
    """Print one JSON object with the page's path and the kept runs."""

    def run(self) -> int:
        """Keep, draw, write."""
        from pombu.analysis.results_page import keep, write_page
        from pombu.paper.published import published_for

        if self.up_to is not None and self.up_to < 1:
            raise UsageError(f"up_to is {self.up_to}: it must be at least 1.")
        kept = keep(self.runs, self.out)
        if not kept:
            raise UsageError(
                f"{self.out} keeps no run yet: name the run folders to add."
            )
        title = self.title or self.out.name
        command = f"pombu results --out {shlex.quote(str(self.out))}"
        if self.title is not None:
            command += f" --title {shlex.quote(self.title)}"
        if self.up_to is not None:
            command += f" --up-to {self.up_to}"
        page = write_page(self.out, title, command, published_for, self.up_to)
        if self.json:
            print(json.dumps({"page": str(page), "runs": [str(run) for run in kept]}))
        else:
            runs = "a run" if len(kept) == 1 else f"{len(kept)} runs"
            print(f"The page is {page}; it speaks of {runs}.")
        return 0
