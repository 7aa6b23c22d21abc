"""The table of docs/reference/onnx-support.md about the ops that are onnxruntime's own."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("onnx")
import onnx_contrib as page
import onnx_page
from tables import read_tables

from vksched.importers.onnx.nodes.contrib_cpu import HOST_OPS
from vksched.importers.onnx.nodes.schemas import CONTRIB_DOMAINS, CONTRIB_OPS
from vksched.importers.onnx.rules import rules

ROWS = page.stored_rows()
BY_NAME = {(row.domain, row.op): (row, here) for row, here in ROWS}


def test_the_page_says_what_runs() -> None:
    wrong = [f"{row.op}: {here!r}, not {row.here!r}" for row, here in ROWS if here != row.here]
    assert not wrong, f"{wrong}; try python scripts/docs/onnx_contrib.py"


def test_the_page_counts_the_rules() -> None:
    counts = onnx_page.rule_counts()
    assert json.loads(page.DATA.read_text("utf-8"))["rules"] == counts, f"write {counts}"


def test_the_page_has_every_rule() -> None:
    ours = {(r.domain, r.op_type) for r in rules() if r.domain in CONTRIB_DOMAINS}
    ours |= {(op.op_domain, op.__name__) for op in HOST_OPS}
    ours |= {("", name) for name in CONTRIB_OPS}
    assert ours <= set(BY_NAME)


def test_what_does_not_run_has_a_reason() -> None:
    for row, here in ROWS:
        assert here.startswith(("y", "no: ")), row.op
    own = {row.op for row, _ in ROWS}
    assert set(page.REASONS) <= own and set(page.LIMITS) <= own


def test_the_page_has_all_ops_of_the_installed_onnxruntime() -> None:
    """Of a newer one than the page has there may be more."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if onnxruntime.__version__ != page.stored_version():
        pytest.skip("the table is of another onnxruntime")
    assert [page.table()] == read_tables(page.DATA, "contrib")
