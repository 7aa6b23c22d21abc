"""What the site makes of docstrings: lines that explain a parameter or field become a list.

    copies: how many runs ...           - **copies**: how many runs ...
        Where the model ...      -->      Where the model ...
    timeout_s: how long ...             - **timeout_s**: how long ...

mkdocs.yml names this file as an extension of griffe, which reads the docstrings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

NAMED = re.compile(r"([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*): +(?=\S)")
"""What opens a line that explains one name or several."""
TAG = re.compile(r"(`[^`]*`)|<(?=\w)")
"""Code, or what a browser would take for a tag."""


def as_list(text: str) -> str:
    """Return a docstring with the lines that explain names as items of a list."""
    out: list[str] = []
    inside = False  # of an item
    for line in text.splitlines():
        if not line.startswith("    "):  # code is as it stands
            line = TAG.sub(lambda tag: tag[1] or "&lt;", line)
        found = NAMED.match(line)
        if found:
            if not inside and out and out[-1]:
                out.append("")
            out.append(f"- **{found[1]}**: {line[found.end() :]}")
            inside = True
        elif inside and line.strip():
            out.append(f"    {line.strip()}")
        else:
            out.append(line)
            inside = False
    return "\n".join(out)


class Lists(griffe.Extension):
    """Rewrites each docstring as griffe finds it."""

    def on_instance(self, *, obj: griffe.Object, **more: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_list(obj.docstring.value)
