"""What the pages hold: fenced blocks with their directives, and links.

A comment right above a block tells how to run it, and readers never see it:

- `<!-- smoke: "HalfCheetah" => "Point2D"; 20_000 => 200 -->` runs it with these texts
  replaced, at a size for tests;
- `<!-- slow -->` leaves it to `make test-slow`;
- `<!-- not run: why -->` leaves it out.

`<!-- before` ... `-->` is Python to run first, for names that the page takes for
granted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]
)
FENCE = re.compile(
    r"(?P<above>(?:^<!--(?:(?!-->).)*-->\n+)*)"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    code: str
    directives: tuple[str, ...]

    @property
    def slow(self) -> bool:
        return "slow" in self.directives

    @property
    def runs(self) -> bool:
        return not any(one.startswith("not run:") for one in self.directives)

    def program(self) -> str:
        """The code to run: with what the page takes for granted, at smoke size."""
        code = self.code
        before = ""
        for directive in self.directives:
            if directive.startswith("smoke:"):
                for change in directive.removeprefix("smoke:").split(";"):
                    old, new = (text.strip() for text in change.split("=>"))
                    assert old in code, f"{self.page}:{self.line} has no {old}"
                    code = code.replace(old, new)
            elif directive.startswith("before\n"):
                before += directive.removeprefix("before\n") + "\n"
        return before + code


def blocks(page: Path) -> Iterator[Block]:
    """The page's fenced blocks in order."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("code")),
            language=found["language"],
            code=found["code"],
            directives=tuple(one.strip() for one in COMMENT.findall(found["above"])),
        )


def links(page: Path) -> list[str]:
    """Where the page's links lead, those inside code left out."""
    text = FENCE.sub("", page.read_text())
    return LINK.findall(re.sub(r"`[^`\n]*`(?!\])", "", text))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
