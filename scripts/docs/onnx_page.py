"""Tables of docs/reference/onnx-support.md: which ONNX tests pass, and which device ran them.

`python scripts/checks/onnx_backend.py --write` writes them to
docs/reference/data/onnx-support.json, and tests/onnxruntime_api/test_onnx_backend.py compares each
row with its own results.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_contrib
from onnx_contrib import DATA
from tables import Table, read_tables, write_tables

from vksched.importers.onnx.nodes.cpu_node import PART
from vksched.importers.onnx.rules import rules

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))
import onnx_cases as cases
from onnx_cases import FOLDERS, BackendCase, Outcome

SETS = {
    "cpu": ("cpu",),
    "vulkan:0": ("vulkan:0",),
    "two devices": ("vulkan:0", "vulkan:1"),
}
"""The sets of devices of the page, by the names of their columns."""
SHOWN = 120
"""Characters of an error of the evaluator."""
PLACES = ("device", "part", "host", "none")
Results = Mapping[str, Mapping[str, Outcome]]
"""Of each test, by its name, the outcomes by set of devices."""


@dataclass(frozen=True)
class Row:
    """One op, or one kind of tests that are not about one op.

    tests: those that count. passed: by set of devices. places: tests by where vulkan:0 computed
    them. plain: node tests of float32, int32 and bool alone; plain_on_device: the number of these
    that the device computed.
    """

    op: str
    tests: int
    passed: Mapping[str, int]
    places: Mapping[str, int]
    plain: int
    plain_on_device: int

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        passed = (str(self.passed[name]) for name in SETS)
        places = (str(self.places[place] or "") for place in PLACES)
        plain = f"{self.plain_on_device} of {self.plain}" if self.plain else ""
        return (self.op, str(self.tests), *passed, *places, plain)


COLUMNS = ("op", "tests", *SETS, *PLACES, "32-bit")


def stored_rows(path: Path = DATA) -> dict[str, Row]:
    """Return the rows of the stored table by op."""
    found: dict[str, Row] = {}
    (table,) = read_tables(path, "tests")
    for op, tests, *rest in table.rows:
        on_device, _, plain = rest[-1].partition(" of ")
        passed = {name: int(cell) for name, cell in zip(SETS, rest, strict=False)}
        places = dict(zip(PLACES, (int(c or 0) for c in rest[len(SETS) : -1]), strict=True))
        found[op] = Row(op, int(tests), passed, places, int(plain or 0), int(on_device or 0))
    return found


def make_row(op: str, chosen: Sequence[BackendCase], results: Results) -> Row:
    """Return the row of some tests, of which only those that the evaluator passes count."""
    counted = [case for case in chosen if cases.expected_to_pass(case)]
    outcomes = [results[case.name] for case in counted]
    on_device = [o["vulkan:0"].where if "vulkan:0" in o else "" for o in outcomes]
    plain = [w for c, w in zip(counted, on_device, strict=True) if c.kind == "node" and c.is_plain]
    return Row(
        op,
        len(counted),
        {name: sum(name in o and o[name].error is None for o in outcomes) for name in SETS},
        {place: on_device.count(place) for place in PLACES},
        len(plain),
        plain.count("device"),
    )


def total_of(rows: Iterable[Row]) -> Row:
    """Return the sum of rows."""
    rows = list(rows)
    return Row(
        "all",
        sum(r.tests for r in rows),
        {name: sum(r.passed[name] for r in rows) for name in SETS},
        {place: sum(r.places[place] for r in rows) for place in PLACES},
        sum(r.plain for r in rows),
        sum(r.plain_on_device for r in rows),
    )


def only(row: Row, sets: Iterable[str]) -> Row:
    """Return a row with what can be found with some sets of devices alone."""
    sets = set(sets)
    if "vulkan:0" in sets:
        places, plain_on_device = row.places, row.plain_on_device
    else:
        places, plain_on_device = dict.fromkeys(PLACES, 0), 0
    passed = {name: row.passed[name] if name in sets else 0 for name in SETS}
    return dataclasses.replace(row, passed=passed, places=places, plain_on_device=plain_on_device)


# -- the data --------------------------------------------------------------------------------------


def write_data(results: Results, path: Path = DATA) -> None:
    """Write the tables from the outcomes of all tests on all sets of devices."""
    by_op: dict[str, list[BackendCase]] = {}
    for case in cases.load_cases().values():
        by_op.setdefault(case.op, []).append(case)
    names = sorted(by_op, key=lambda op: (op in FOLDERS, op.lower()))
    rows = [make_row(op, by_op[op], results) for op in names]
    fails = sorted(cases.read_reference().fails.items())
    not_counted = tuple((f"`{n}`", _escaped(error[:SHOWN])) for n, error in fails)
    tables = {
        "contrib": read_tables(path, "contrib"),
        "tests": [Table(COLUMNS, tuple(r.cells() for r in (*rows, total_of(rows))))],
        "not_on_device": [Table(("op", "reason", "tests"), tuple(_reasons(by_op, results)))],
        "not_counted": [Table(("test", "error of the evaluator"), not_counted)],
    }
    write_tables(
        path,
        tables,
        onnx=onnx.__version__,
        opset=onnx.defs.onnx_opset_version(),
        onnxruntime=onnx_contrib.stored_version(path),
        rules=rule_counts(),
    )


def _reasons(
    by_op: Mapping[str, Sequence[BackendCase]], results: Results
) -> list[tuple[str, str, str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for op, chosen in sorted(by_op.items()):
        for case in chosen:
            if case.kind != "node" or not case.is_plain or not cases.expected_to_pass(case):
                continue
            outcome = results[case.name]["vulkan:0"]
            if outcome.where == "device":
                continue
            why = "; ".join(_reason(op, name, reason) for name, reason in outcome.why.items())
            text = why or "nothing to compute: a view, or the same in every run"
            found.setdefault((op, text), []).append(case.name.removeprefix("test_"))
    return [
        (op, _escaped(text), ", ".join(f"`{name}`" for name in names))
        for (op, text), names in found.items()
    ]


def _reason(op: str, node: str, reason: str) -> str:
    """Return a reason with the op that it is of, where the text does not say so."""
    if node == PART.removeprefix("onnx."):
        return "more than one result"
    return reason if node == op else f"{node}: {reason}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def rule_counts() -> dict[str, int]:
    """Return the number of rules by domain."""
    domains = sorted({r.domain for r in rules()} - {"vksched"})  # made by other rules
    return {d: sum(r.domain == d for r in rules()) for d in domains}
