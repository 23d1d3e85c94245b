"""The page in a real browser: it loads, draws, and switches between runs."""

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hand_made import write_run

from pombu.analysis.report.page import script_json
from pombu.cli import main

PATIENCE = 240_000
"""Milliseconds: other tests may be keeping the cores busy."""
HOSTILE = """x</script><script>document.title='hit'</script><img src=x onerror="a">&"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        write_run(folder / "careful-0", 0, alpha=1.5, preset=HOSTILE),
        write_run(folder / "careful-1", 1, alpha=1.5, preset=HOSTILE),
        write_run(folder / "<b>bold", 0, iterations=8, task=HOSTILE),
    ]
    out = folder / "report.html"
    paths = [str(run.path) for run in runs]
    flags = ["--no-video", "--no-calibration", "--out", str(out)]
    assert main(["report", *paths, *flags]) == 0
    return out


class Elements(HTMLParser):
    """Counts the elements that a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def test_names_become_text_and_nothing_else(report: Path) -> None:
    found = Elements(report.read_text()).found
    tags = [tag for tag, _ in found]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert "b" not in tags
    assert not any("onerror" in attributes for _, attributes in found)


def test_the_page_refers_to_no_other_file(report: Path) -> None:
    for _, attributes in Elements(report.read_text()).found:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")


def test_json_in_a_script_cannot_end_it() -> None:
    content = {"name": "</script><!--&", "values": [1.0, float("nan"), float("inf")]}
    text = script_json(content)
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": "</script><!--&", "values": [1.0, None, None]}


def test_without_plotly_one_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["report", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "pip install 'pombu[report]'" in said
    assert said.count("\n") == 1


def test_bad_requests_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert f"{tmp_path} is not a run folder" in capsys.readouterr().err
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--out", "report.pdf"]) == 2
    assert "report.pdf is no .html file" in capsys.readouterr().err


def test_what_cannot_be_measured_is_said_in_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", task="somewhere:outside")
    assert main(["report", str(run.path), "--json"]) == 0
    (reason,) = json.loads(capsys.readouterr().out)["missing"]
    assert "run has no video and no calibration" in reason
    assert "--env somewhere:outside" in reason
    assert "--env somewhere:outside" in (run.path / "report.html").read_text()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield started
        started.close()


def wait_for(page: Any, runs: str, theme: str = "light") -> None:
    selector = f"html[data-runs='{runs}'][data-theme='{theme}']"
    page.wait_for_selector(selector, state="attached", timeout=PATIENCE)


@pytest.mark.browser
def test_it_draws_switches_runs_and_follows_the_theme(
    browser: Any, report: Path
) -> None:
    page = browser.new_page(color_scheme="light", offline=True)
    page.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(report.as_uri(), timeout=PATIENCE)

    def lines() -> int:
        """Lines in the learning curves."""
        return int(page.locator("#chart-0 .scatterlayer .js-line").count())

    def rows() -> int:
        return int(page.locator("section:first-child tbody tr:visible").count())

    wait_for(page, "0 1 2")
    charts = page.locator(".chart")
    assert charts.count() == page.locator(".chart .main-svg:first-child").count() > 10
    # Three runs, the mean of two of them, and two intervals.
    assert lines() == 6
    assert rows() == 3
    legend = page.locator("#chart-0 .legendtext").all_text_contents()
    assert any("x</script><script>" in text for text in legend)

    page.locator("nav input").nth(0).uncheck()
    wait_for(page, "1 2")
    assert lines() == 3
    assert rows() == 2
    page.get_by_text("only", exact=True).nth(1).click()
    wait_for(page, "1")
    assert lines() == 1
    page.locator("#all").click()
    wait_for(page, "0 1 2")
    assert lines() == 6

    def ink() -> str:
        label = "getComputedStyle(document.querySelector('#chart-0 .xtick text')).fill"
        return str(page.evaluate(label))

    light = ink()
    page.emulate_media(color_scheme="dark")
    wait_for(page, "0 1 2", "dark")
    assert brightness(light) < 100 < 180 < brightness(ink())
    assert page.title().endswith(": 3 runs")
    assert complaints == []
    page.close()


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
