"""The table of docs/reference/onnx-support.md about the ops that are onnxruntime's own.

    python scripts/docs/onnx_contrib.py      # writes it anew; needs onnxruntime

Tests compare its rows with the rules that there are (tests/importers/test_onnx_contrib_page.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tables import Table, read_tables, write_tables

from vksched.importers.onnx.nodes.contrib_cpu import HOST_OPS
from vksched.importers.onnx.nodes.schemas import CONTRIB_DOMAINS, CONTRIB_OPS, EARLIER, MICROSOFT
from vksched.importers.onnx.rules import find_rule, rules

DATA = Path(__file__).resolve().parents[2] / "docs" / "reference" / "data" / "onnx-support.json"
COLUMNS = ("op", "onnxruntime's CPU", "here")
YES, ON_HOST, NOWHERE = "y", "y, on the host", "no: onnxruntime's CPU has none either"

GENERATION = "no: it is a loop of generation around a whole decoder; try the decoder in a loop"
REASONS = {
    "AttnLSTM": "no: an LSTM that attends to a memory in each step; try one made of plain ops",
    "BeamSearch": GENERATION,
    "GreedySearch": GENERATION,
    "Sampling": GENERATION,
    "SparseToDenseMatMul": "no: a sparse tensor as an operand; try a dense one",
    "WhisperBeamSearch": GENERATION,
}
"""Why ops have no rule that onnxruntime's CPU provider runs."""
LIMITS = {
    "GatedDeltaNet": "without captured states",
    "GroupQueryAttention": "caches of floats or int8, which do not slide",
    "MatMulFpQ4": "blk_quant_type 0 and 1",
    "MatMulNBits": "without weight_prepacked",
    "MultiHeadAttention": "without cache_indirection",
    "QMoE": "quant_type int of 2, 4 and 8 bits",
    "VarlenCausalConvWithState": "without captured states",
}
"""What of an op does not run here that does on onnxruntime's CPU."""


@dataclass(frozen=True)
class Row:
    """One op. cpu: whether onnxruntime's CPU provider runs it."""

    domain: str
    op: str
    cpu: bool

    @property
    def here(self) -> str:
        """Return if it runs here, or else the reason."""
        if find_rule(self.domain, self.op) is not None:
            limits = LIMITS.get(self.op)
            return YES if limits is None else f"{YES}, {limits}"
        if any(self.domain == op.op_domain and self.op == op.__name__ for op in HOST_OPS):
            return ON_HOST
        return REASONS.get(self.op, NOWHERE if not self.cpu else "no")

    def cells(self) -> tuple[str, str, str]:
        """Return the cells of the table."""
        domain = self.domain or "ai.onnx"
        name = self.op if domain == MICROSOFT else f"{domain}.{self.op}"
        return name, "y" if self.cpu else "", self.here


def stored_rows(path: Path = DATA) -> list[tuple[Row, str]]:
    """Return the rows of the stored table, each with its last cell."""
    found = []
    (table,) = read_tables(path, "contrib")
    for name, cpu, here in table.rows:
        domain, _, op = name.rpartition(".")
        domain = "" if domain == "ai.onnx" else domain or MICROSOFT
        found.append((Row(domain, op, cpu == "y"), here))
    return found


def stored_version(path: Path = DATA) -> str:
    """Return the version of onnxruntime that the stored table is of."""
    return str(json.loads(path.read_text("utf-8"))["onnxruntime"])


def known_rows() -> Iterator[Row]:
    """Yield the ops that the installed onnxruntime declares, by domain and name."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    kernels = {
        (kernel.domain, kernel.op_name)
        for kernel in state.get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider"
    }
    names = {(schema.domain, schema.name) for schema in state.get_all_operator_schema()}
    known = {(d, op) for d, op in names if d in CONTRIB_DOMAINS}
    known |= {("", op) for op in (*CONTRIB_OPS, *EARLIER)}
    known |= {(r.domain, r.op_type) for r in rules() if r.domain in CONTRIB_DOMAINS}
    for domain, op in sorted(known):
        yield Row(domain, op, (domain, op) in kernels)


def table() -> Table:
    """Return the table of the installed onnxruntime."""
    return Table(COLUMNS, tuple(row.cells() for row in known_rows()))


def main() -> None:
    import onnxruntime

    stored = json.loads(DATA.read_text("utf-8"))
    values = {key: value for key, value in stored.items() if not isinstance(value, list)}
    values["onnxruntime"] = onnxruntime.__version__
    tables = {key: read_tables(DATA, key) for key in stored if key not in values}
    write_tables(DATA, {**tables, "contrib": [table()]}, **values)


if __name__ == "__main__":
    main()
