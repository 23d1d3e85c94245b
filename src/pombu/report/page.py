"""The page: sections, a switch per run, and everything they need, in one file.

Whatever comes from a run is escaped where it is put in. Besides, the page's policy
names its own two scripts by their hashes, so that a browser runs no others.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from pombu._version import __version__
from pombu.errors import UsageError
from pombu.report.charts import Chart
from pombu.report.entries import Entry, Experiment, entries_of
from pombu.report.sections import Section

_SCRIPT_ENDS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def plotly_source() -> str:
    """Plotly's JavaScript.

    Raises:
        UsageError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(
            "A report needs plotly: install it with `pip install 'pombu[report]'`."
        ) from error
    return str(get_plotlyjs())


def render(experiments: Sequence[Experiment], sections: Sequence[Section]) -> str:
    """The whole page."""
    entries = entries_of(experiments)
    plotly, script = plotly_source(), _resource("page.js")
    drawn = [chart for section in sections for chart in section.charts]
    tasks = ", ".join(dict.fromkeys(entry.curve.task for entry in entries))
    runs = "1 run" if len(entries) == 1 else f"{len(entries)} runs"
    return Template(_resource("page.html")).substitute(
        title=html.escape(f"{tasks}: {runs}"),
        subtitle=html.escape("; ".join(one.label for one in experiments)),
        style=_resource("page.css"),
        hashes=f"{_hash(plotly)} {_hash(script)}",
        switches="\n".join(map(_switch, entries)),
        sections="\n".join(_section_html(sections)),
        version=html.escape(__version__),
        charts=script_json([_chart_json(chart) for chart in drawn]),
        plotly=plotly,
        script=script,
    )


def script_json(content: Any) -> str:
    """JSON that cannot end the script element it stands in; NaN becomes null."""
    text = json.dumps(_finite(content), allow_nan=False)
    for character, escaped in _SCRIPT_ENDS.items():
        text = text.replace(character, escaped)
    return text


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def _chart_json(chart: Chart) -> dict[str, Any]:
    return {"traces": chart.traces, "layout": chart.layout}


def _section_html(sections: Sequence[Section]) -> list[str]:
    parts, number = [], 0
    for section in sections:
        cards = []
        for chart in section.charts:
            cards.append(_card(chart, number))
            number += 1
        grid = f'<div class="grid">{"".join(cards)}</div>' if cards else ""
        text = f'<p class="quiet">{html.escape(section.text)}</p>'
        parts.append(
            f"<section><h2>{html.escape(section.title)}</h2>"
            f"{text if section.text else ''}{grid}{section.html}</section>"
        )
    return parts


def _card(chart: Chart, number: int) -> str:
    title = html.escape(chart.title)
    return (
        f'<div class="card{" wide" if chart.wide else ""}"><h3>{title}</h3>'
        f'<div class="chart" id="chart-{number}" role="img" aria-label="{title}">'
        "</div></div>"
    )


def _switch(entry: Entry) -> str:
    name = html.escape(entry.name)
    return (
        f'<span class="switch"><label><input type="checkbox" value="{entry.number}" '
        f'checked><span class="dot" style="background:{entry.colour}"></span>{name}'
        f'</label><button type="button" data-only="{entry.number}" '
        f'aria-label="Only {name}">only</button></span>'
    )


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _resource(name: str) -> str:
    return (files("pombu.report") / name).read_text(encoding="utf-8")
