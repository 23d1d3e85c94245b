"""Equations of the documentation: LaTeX in a `math` fence becomes MathML.

GitHub renders the same fences by itself; the site needs no script for them.
"""

from typing import Any

from latex2mathml.converter import convert


def fence(source: str, *_: Any, **__: Any) -> str:
    """One displayed equation."""
    return f'<div class="equation">{convert(source.strip(), display="block")}</div>'
