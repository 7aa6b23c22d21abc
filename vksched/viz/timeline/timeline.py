"""Timeline: a plan or recorded runs over time, as a value that draws itself.

Examples: tests/viz/test_view_make.py, tests/viz/test_view_files.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...common.errors import VkschedError
from ..svg import framed
from .html_export import as_frame, as_page
from .png_export import save_png
from .svg_export import as_svg
from .timeline_types import TimelineValue

ENDS = ".html, .svg or .png"
LARGEST = 8_000_000
"""Maximum characters of a page in a notebook; a larger one becomes a still picture."""


class Timeline(TimelineValue):
    """A plan or recorded runs over time. A notebook displays it automatically."""

    __slots__ = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as a page (.html), which opens without a network, or as a picture
        (.svg; .png, which needs matplotlib).

        Raises
        ------
        VkschedError
            The name has another suffix, or the file cannot be written.
        """
        target = Path(path)
        end = target.suffix.lower()
        if end not in (".html", ".svg", ".png"):
            raise VkschedError(f"[timeline] expected a name that ends in {ENDS}, got {str(path)!r}")
        try:
            if end == ".png":
                save_png(self, target)
            else:
                text = as_page(self) if end == ".html" else as_svg(self)
                target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise VkschedError(
                f"[timeline] cannot write {target}: {error.strerror or error}"
            ) from error

    def _repr_html_(self) -> str:
        page = as_frame(self)
        if len(page) <= LARGEST:
            return page
        text = f'The page has {len(page):,} characters; try save("runs.html").'
        return framed(as_svg(self), "why this is a still picture", text)

    def _repr_svg_(self) -> str:
        return as_svg(self)
