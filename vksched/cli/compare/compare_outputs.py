"""Comparison of outputs for `vksched run --compare-with`, with an analysis of differences.

    outputs differ from the reference's --> does the model quantize?  quantized_compare.py
                                     --> was it the onnx evaluator?  onnxruntime, a second reference

Examples: tests/cli/test_cli_check.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import VkschedError
from ..differences import Difference, Tolerance, compare
from ..options import inputs
from .quantized_compare import Again, Steps, compare_steps, quantizing_nodes
from .reference_runtimes import REFERENCE_RUNTIMES, ReferenceRuntime, whole_model

if TYPE_CHECKING:
    from ...importers.onnx.model import Model

_BY_STEP, _BY_OTHER = "right except for one quantization step", "good: onnxruntime gives it, too"


@dataclass(frozen=True)
class ComparedRun:
    """A run to compare. again: runs the model once more and returns values by name."""

    path: str
    model: Model
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    again: Again
    tolerance: Tolerance

    def compare(self, expected: Mapping[str, Any]) -> list[Difference]:
        return compare(self.outputs, expected, self.tolerance)


def check_outputs(kind: str, case: ComparedRun) -> dict[str, Any]:
    """Compare outputs with a reference and return plain data: rows by output, and notes on a
    stepwise comparison and a second reference.

    Raise VkschedError if the reference is not installed or cannot run the model.
    """
    rows, steps = _compare_with(REFERENCE_RUNTIMES[kind], case)
    notes = list(_step_notes(steps)) if steps else []
    if kind == "numpy" and any(d.wrong for d in rows):
        rows, more = _ask_another(case, rows)
        notes += more
    return {
        "checked_by": kind,
        "check": [asdict(d) for d in rows],
        "steps": None if steps is None or isinstance(steps, str) else asdict(steps),
        "check_notes": notes,
    }


def _compare_with(
    reference: ReferenceRuntime, case: ComparedRun
) -> tuple[list[Difference], Steps | str | None]:
    """Return the differences from a reference's outputs and, for a quantized model, the stepwise
    comparison or the reason why it is missing.
    """
    expected = reference.outputs(case.path, case.model, case.inputs, list(case.outputs))
    rows = case.compare(expected)
    if not any(d.wrong for d in rows) or not quantizing_nodes(case.model.nodes):
        return rows, None
    try:
        steps = compare_steps(
            reference, case.model, case.inputs, case.outputs, case.again, case.tolerance
        )
    except VkschedError as error:
        return rows, f"not compared step by step: {inputs.error_text(error)}"
    return _acquitted(rows, _BY_STEP) if steps.acquits else rows, steps


def _acquitted(rows: Sequence[Difference], note: str) -> list[Difference]:
    return [replace(d, wrong="", note=note) if d.wrong else d for d in rows]


def _step_notes(steps: Steps | str) -> list[str]:
    """Return a stepwise comparison as lines of text."""
    if isinstance(steps, str):
        return [steps]
    notes = [f"on equal inputs wrong: {text}" for text in steps.wrong]
    if not notes:
        near = f"; {steps.off[0]}" if steps.off else ""
        notes = [
            f"step by step: outputs and {steps.values} quantized values agree on equal inputs{near}"
        ]
    if steps.parted is not None:
        notes.append(f"the runs part at {steps.parted}; what follows differs by that")
    return notes


def _ask_another(case: ComparedRun, rows: list[Difference]) -> tuple[list[Difference], list[str]]:
    """Run onnxruntime for outputs that differ from the onnx evaluator; return the rows and
    notes.
    """
    from ...importers.onnx.nodes.allow_list import is_doubted
    from ...importers.onnx.nodes.subgraphs import all_nodes

    doubted = sorted({str(n.op_type) for n in all_nodes(case.model.nodes) if is_doubted(n)})
    known = f"the onnx evaluator is wrong in some forms of {', '.join(doubted)}" if doubted else ""
    other = REFERENCE_RUNTIMES["onnxruntime"]
    if not other.is_installed:
        return rows, [
            f"{known}; try pip install onnxruntime and --compare-with onnxruntime"
        ] * bool(known)
    try:
        again, _ = _compare_with(other, case)
    except VkschedError as error:
        return rows, [text for text in (known, inputs.error_text(error)) if text]
    if any(d.wrong for d in again):
        return rows, ["onnxruntime differs from vksched, too"]
    where = _first_difference(case)
    verdict = f"the onnx evaluator is wrong{f' at {where}' if where else ''}, not vksched: "
    return _acquitted(rows, _BY_OTHER), [f"{verdict}onnxruntime gives what vksched gives"]


def _first_difference(case: ComparedRun) -> str:
    """Return the first node that the two references compute differently, or ""."""
    from ...importers.onnx.nodes.cpu_node import describe

    producers = {str(o): describe(node) for node in case.model.nodes for o in node.output if o}
    names = list(producers)
    whole = whole_model(case.model, names)
    try:
        one, other = (
            reference.values(whole, case.inputs, names) for reference in REFERENCE_RUNTIMES.values()
        )
    except VkschedError:
        return ""
    for name in names:
        if any(d.wrong for d in compare({name: one[name]}, {name: other[name]}, case.tolerance)):
            return producers[name]
    return ""


def show_check(report: Mapping[str, Any]) -> None:
    """Print the result of `check_outputs` in a report."""
    columns = "output", f"largest difference from {report['checked_by']}", "relative", ""
    off = inputs.table(*columns)
    off.columns[3].justify = "left"
    for row in report["check"]:
        far = f"{row['largest']:.2g}", f"{row['relative']:.2g}"
        off.add_row(row["output"], *far, row["wrong"] or row["note"] or "good")
    inputs.print_table(off)
    for line in report["check_notes"]:
        click.echo(line)
