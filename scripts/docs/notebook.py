"""Runs a notebook's cells in this process, and makes a page of it: no kernel, no Jupyter needed.

    python scripts/docs/notebook.py examples/tour.ipynb --write           # with what its cells show
    python scripts/docs/notebook.py examples/tour.ipynb --html tour.html  # a page, for screenshots

A cell shows the value of its last expression as notebooks do: `_repr_html_`, else `_repr_svg_`,
else its text.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import html
import io
import json
from pathlib import Path
from typing import Any

TEXT, SVG, HTML = "text/plain", "image/svg+xml", "text/html"
FORMS = {HTML: "_repr_html_", SVG: "_repr_svg_"}
STYLE = """
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; max-width: 1180px; margin: 16px auto }
pre { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; margin: 0; white-space: pre-wrap }
.code { background: #f5f6f7; border-left: 3px solid #5f7a99; padding: 8px 12px; margin: 12px 0 6px }
.out { padding: 4px 15px 10px; }
"""


def run_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook with what its cells show now.

    Raises:
        Exception: what a cell raised, with the cell's number in its traceback.
    """
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell["execution_count"] = number
            cell["outputs"] = _run_cell("".join(cell["source"]), names, f"<cell {number}>")
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = number
    return notebook


def _run_cell(source: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    written = io.StringIO()
    value = None
    with contextlib.redirect_stdout(written):
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    out: list[dict[str, Any]] = []
    if written.getvalue():
        text = written.getvalue().splitlines(keepends=True)
        out.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        shown: dict[str, Any] = {TEXT: repr(value).splitlines(keepends=True)}
        for form, method in FORMS.items():
            if hasattr(value, method):
                shown[form] = getattr(value, method)()
        out.append({"output_type": "execute_result", "data": shown, "metadata": {}})
    return out


def as_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as HTML; of each output what a notebook would show."""
    parts = [f"<!DOCTYPE html><meta charset=utf-8><title>tour</title><style>{STYLE}</style>"]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_markdown(source))
            continue
        parts.append(f'<div class="code"><pre>{html.escape(source)}</pre></div>')
        for output in cell["outputs"]:
            parts.append(f'<div class="out">{_shown(output)}</div>')
    return "\n".join(parts)


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"<pre>{html.escape(''.join(output['text']))}</pre>"
    data = output["data"]
    return next(
        ("".join(data[form]) for form in FORMS if form in data),
        f"<pre>{html.escape(''.join(data[TEXT]))}</pre>",
    )


def _markdown(source: str) -> str:
    from markdown_it import MarkdownIt  # it comes with rich

    return str(MarkdownIt().render(source))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--html", type=Path, metavar="FILE.html")
    parser.add_argument("--write", action="store_true", help="Write what cells show into the file.")
    args = parser.parse_args()
    done = run_notebook(args.notebook)
    if args.write:
        args.notebook.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if args.html is not None:
        args.html.write_text(as_page(done), "utf-8")


if __name__ == "__main__":
    main()
