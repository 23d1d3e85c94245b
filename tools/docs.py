"""Hooks of the documentation site: generated pages, navigation, links into the source.

Pages link to files of the repository by path, as in
`../../src/pombu/optim/objectives.py#value_loss`, so that they also work where only the
repository is shown. On the site such a link leads to the page that the file became.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import reference

ROOT = reference.ROOT
ROOT_PAGES = {
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put folders of pages into the navigation: `guides/*` stands for the rest."""
    named = set(_strings(config.nav))
    config.nav = _expand(config.nav, named)
    return config


def _strings(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [one for child in children for one in _strings(child)]


def _expand(nav: list[Any], named: set[str]) -> list[Any]:
    entries: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/*"):
            entries += [page for page in _folder(entry[:-2]) if page not in named]
        elif isinstance(entry, dict):
            (title, inside), *_ = entry.items()
            one = inside if isinstance(inside, str) else _expand(inside, named)
            entries.append({title: one})
        else:
            entries.append(entry)
    return entries


def _folder(folder: str) -> list[str]:
    if folder == "api":
        return [f"api/{package}.md" for package in reference.packages()]
    if folder == "results":
        return [page for page in sorted(_results()) if page.endswith(".md")]
    found = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}/{path.name}" for path in found]


def _results() -> dict[str, Path]:
    """Pages about results, and the pictures in them."""
    found: dict[str, Path] = {}
    for path in (ROOT / "results").rglob("*.md"):
        found[path.relative_to(ROOT).as_posix()] = path
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", path.read_text()):
            picture = (path.parent / target).resolve()
            if picture.is_file():
                found[picture.relative_to(ROOT).as_posix()] = picture
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that the code, the root folder and the results give."""
    texts = {
        "reference/commands.md": reference.commands(),
        "reference/config.md": reference.configs(),
        "examples.md": reference.examples(),
        "api/index.md": reference.public_names(),
        **{
            f"api/{package}.md": reference.package_page(package)
            for package in reference.packages()
        },
        **{page: (ROOT / name).read_text() for page, name in ROOT_PAGES.items()},
    }
    for uri, text in texts.items():
        files.append(File.generated(config, uri, content=text))
    for uri, path in _results().items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Lead links to files of the repository to the pages that they became."""
    here = page.file.src_uri

    def replace(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(_home(here)), path))
        found = _page(there, anchor)
        if found is None:
            return match[0] if picture else text
        uri, _, anchor = found.partition("#")
        link = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        return f"{picture}[{text}]({link}{'#' if anchor else ''}{anchor})"

    parts = FENCE.split(markdown)
    return "".join(
        part if number % 2 else LINK.sub(replace, part)
        for number, part in enumerate(parts)
    )


def _home(uri: str) -> str:
    """Where in the repository a page comes from."""
    if uri in ROOT_PAGES or uri.startswith("results/"):
        return ROOT_PAGES.get(uri, uri)
    return f"docs/{uri}"


def _page(path: str, anchor: str) -> str | None:
    """The page that a file of the repository became; None if there is none."""
    mark = f"#{anchor}" if anchor else ""
    if path.startswith("docs/"):
        return path.removeprefix("docs/") + mark
    if path == "README.md":
        return "index.md"
    for page, name in ROOT_PAGES.items():
        if name == path:
            return page + mark
    if path.startswith("results/") and path in _results():
        return path + mark
    if path.startswith("examples/"):
        return f"examples.md#{Path(path).stem}"
    if path.startswith("src/pombu/"):
        return _source_page(path.removeprefix("src/pombu/"), anchor)
    return None


def _source_page(path: str, anchor: str) -> str | None:
    if not (reference.SOURCE / path).exists():
        return f"api/{path}"
    parts = Path(path).with_suffix("").parts
    package, inner = parts[0], ".".join(part for part in parts if part != "__init__")
    return f"api/{package}.md#pombu.{inner}{'.' if anchor else ''}{anchor}"
