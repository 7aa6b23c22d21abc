"""HTML export: a timeline as one self-contained page with its data, style and script.

    page/page.html + page/page.css + page/*.js + page_data.py --> one self-contained file

Examples: tests/viz/test_page.py, in a browser.
"""

from __future__ import annotations

import html
import re
from functools import cache
from importlib import resources

from ..svg import clean
from .page_data import as_script, page_data
from .timeline_types import TimelineValue

SCRIPTS = ("model", "look", "canvas", "shapes", "panel", "keys", "main")
"""Parts of the page's script; each may use the earlier ones."""


def as_page(timeline: TimelineValue) -> str:
    """Return a timeline as the text of an HTML file."""
    parts = {
        "title": html.escape(clean(timeline.title)),
        "style": _read("page.css"),
        "data": as_script(page_data(timeline)),
        "script": "\n".join(_read(f"{name}.js") for name in SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def as_frame(timeline: TimelineValue, height: int = 480) -> str:
    """Return a timeline as an element for a notebook: the whole page in a frame of its own.

    height: in pixels.
    """
    page = html.escape(clean(as_page(timeline)), quote=True)
    title = html.escape(clean(timeline.title), quote=True)
    return (
        f'<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height}px;border:1px solid #888"></iframe>'
    )


@cache
def _read(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text("utf-8")
