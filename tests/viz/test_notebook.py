"""The notebook of the examples: every cell runs, and plans, reports and timelines are pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from notebook import as_page, run_notebook

ROOT = Path(__file__).parent.parent.parent
TOUR = ROOT / "examples" / "tour.ipynb"


@pytest.fixture(scope="module")
def tour() -> dict[str, Any]:
    return run_notebook(TOUR)


def shown(tour: dict[str, Any], source: str) -> dict[str, Any]:
    """What the cell shows whose last line is that."""
    cell = next(c for c in tour["cells"] if "".join(c["source"]).splitlines()[-1] == source)
    found: dict[str, Any] = cell["outputs"][-1]["data"]
    return found


def test_every_cell_runs_and_plans_reports_and_timelines_are_pictures(tour: dict[str, Any]) -> None:
    assert "<svg" in shown(tour, "run.plan")["text/html"]
    assert "explain()" in shown(tour, "run.plan")["text/html"]
    assert shown(tour, "run.plan")["image/svg+xml"].startswith("<?xml")
    assert "<svg" in shown(tour, "run.report()")["text/html"]
    for source in ("run.plan.timeline()", "vs.timeline(run.trace)"):
        assert shown(tour, source)["text/html"].startswith("<iframe")
        assert "<svg" in shown(tour, source)["image/svg+xml"]
    printed = [o for c in tour["cells"] for o in c.get("outputs", ()) if o.get("name") == "stdout"]
    assert "".join(printed[0]["text"]) == "(256, 256) 1.0\n"


def test_the_file_is_a_notebook_without_results(tour: dict[str, Any]) -> None:
    """Results would be old with the next change; whoever opens the notebook runs it."""
    plain = json.loads(TOUR.read_text("utf-8"))
    assert (plain["nbformat"], plain["nbformat_minor"]) == (4, 4)
    for cell in plain["cells"]:
        assert cell.keys() >= {"cell_type", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    assert as_page(tour).count("<iframe") == 2


def test_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "metadata": {}, "source": text} for text in ("x = 1", "x / 0")]
    (tmp_path / "bad.ipynb").write_text(json.dumps({"cells": cells}))
    with pytest.raises(ZeroDivisionError) as error:
        run_notebook(tmp_path / "bad.ipynb")
    assert "<cell 2>" in str(error.traceback[-1].path)
