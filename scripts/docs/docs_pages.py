"""Build the pages of the site: docs/, with a table in place of each marker.

    python scripts/docs/docs_pages.py build/pages

A marker is a line `<!-- table: NAME -->`. The tables come from the op declarations, and from
measured data in docs/performance/data, docs/reference/data and benchmarks/data. `make docs` runs
this before it builds the site.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("report", "workloads", "overheads", "suites")
sys.path[:0] = [str(ROOT), *(str(ROOT / "benchmarks" / name) for name in FOLDERS)]

from tables import Table, read_tables  # noqa: E402 - beside this file

DOCS = ROOT / "docs"
ONNX = DOCS / "reference" / "data" / "onnx-support.json"
SHADERS = ROOT / "benchmarks" / "data" / "shaders.json"
MARKER = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)


def _stored(path: Path, name: str) -> Callable[[], str]:
    return lambda: "\n\n".join(table.as_markdown() for table in read_tables(path, name))


def _ops() -> str:
    from vksched.testing import support_matrix

    return support_matrix.ops_table()


def _functions() -> str:
    from vksched.testing import support_matrix

    return support_matrix.functions_table()


def _onnx_rules() -> str:
    counts = json.loads(ONNX.read_text("utf-8"))["rules"]
    rows = ((domain or "ai.onnx (default)", str(count)) for domain, count in counts.items())
    return Table(("domain", "ops with a rule"), tuple(rows), numeric=True).as_markdown()


def _performance() -> str:
    import plots

    return plots.performance_tables(DOCS)


def _hardware() -> str:
    from hardware import hardware_table

    return hardware_table(DOCS / "performance" / "data" / "hardware").as_markdown()


def _card_predictions() -> str:
    from card_model import predictions_as_markdown

    return predictions_as_markdown(DOCS / "performance" / "data" / "card-predictions.json")


TABLES: dict[str, Callable[[], str]] = {
    "ops": _ops,
    "op-functions": _functions,
    "onnx-rules": _onnx_rules,
    "onnxruntime-ops": _stored(ONNX, "contrib"),
    "onnx-tests": _stored(ONNX, "tests"),
    "onnx-not-on-device": _stored(ONNX, "not_on_device"),
    "onnx-not-counted": _stored(ONNX, "not_counted"),
    "shader-loops": _stored(SHADERS, "loops"),
    "shader-coopmat": _stored(SHADERS, "coopmat"),
    "shader-variants": _stored(SHADERS, "variants"),
    "shader-intel": _stored(SHADERS, "intel"),
    "performance": _performance,
    "hardware": _hardware,
    "card-predictions": _card_predictions,
}


def markers(text: str) -> list[str]:
    """Return the names of the tables of a page."""
    return MARKER.findall(text)


def filled(text: str) -> str:
    """Return a page with its tables."""
    return MARKER.sub(lambda found: TABLES[found[1]](), text)


def build(target: Path) -> None:
    """Write all pages and pictures to a folder, which is replaced."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target)
    for page in target.rglob("*.md"):
        text = page.read_text("utf-8")
        if markers(text):
            page.write_text(filled(text), "utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
