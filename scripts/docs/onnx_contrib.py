"""The part of docs/onnx.md about the ops that are onnxruntime's own.

    python scripts/docs/onnx_contrib.py      # writes it anew; needs onnxruntime

Tests compare its rows with the rules that there are (tests/importers/test_onnx_contrib_page.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vksched.importers.onnx.nodes.contrib_cpu import HOST_OPS
from vksched.importers.onnx.nodes.schemas import CONTRIB_DOMAINS, CONTRIB_OPS, EARLIER, MICROSOFT
from vksched.importers.onnx.rules import find_rule, rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"
TITLE = "## The ops of onnxruntime"
HEAD = """| op | onnxruntime's CPU | here |
| --- | --- | --- |"""
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
        """Whether it runs here, and where it does not the reason."""
        if find_rule(self.domain, self.op) is not None:
            limits = LIMITS.get(self.op)
            return YES if limits is None else f"{YES}, {limits}"
        if any(self.domain == op.op_domain and self.op == op.__name__ for op in HOST_OPS):
            return ON_HOST
        return REASONS.get(self.op, NOWHERE if not self.cpu else "no")

    def __str__(self) -> str:
        domain = self.domain or "ai.onnx"
        name = self.op if domain == MICROSOFT else f"{domain}.{self.op}"
        return f"| {name} | {'y' if self.cpu else ''} | {self.here} |"


def parse_rows(text: str) -> list[tuple[Row, str]]:
    """Returns the rows of a page, each with what it says of the op here."""
    found = []
    start = text.index(HEAD, text.index(TITLE)) + len(HEAD)
    for line in text[start:].strip().splitlines():
        if not line.startswith("|"):
            break
        name, cpu, here = (cell.strip() for cell in line.strip("|").split("|"))
        domain, _, op = name.rpartition(".")
        domain = "" if domain == "ai.onnx" else domain or MICROSOFT
        found.append((Row(domain, op, cpu == "y"), here))
    return found


def kept_section() -> list[str]:
    """Returns the lines of the part that the page has."""
    text = PAGE.read_text("utf-8")
    start = text.index(TITLE)
    end = text.find("\n## ", start)
    return text[start : end if end >= 0 else None].rstrip().splitlines()


def known_rows() -> Iterator[Row]:
    """Yields the ops that the installed onnxruntime declares, by domain and name."""
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


def section() -> list[str]:
    """Returns the lines of the part, from what is installed."""
    import onnxruntime

    rows = list(known_rows())
    own = [row for row in rows if row.cpu]
    running = [row for row in own if row.here.startswith(YES)]
    text = _TEXT.format(
        title=TITLE, version=onnxruntime.__version__, running=len(running), own=len(own)
    )
    return [*text.splitlines(), "", *HEAD.splitlines(), *map(str, rows)]


_TEXT = """{title}

onnxruntime {version} has ops of its own. Exporters write some, its optimizer writes others,
also into the default domain below the opset that has the op in ONNX. What its CPU provider runs is
meant to run here: {running} of {own} do. Those without a domain below are of com.microsoft.
Those of com.microsoft.nchwc are what `ORT_ENABLE_ALL` saves. Their weights lie in blocks of 8 or 16
channels, by the processor that saved them. Where shapes do not tell which, this machine's are
taken, with a warning.

- **onnxruntime's CPU**: whether its CPU provider has a kernel.
- **here**: y, or the reason."""


def main() -> None:
    text = PAGE.read_text("utf-8")
    made = "\n".join(section())
    if TITLE in text:
        text = text.replace("\n".join(kept_section()), made)
    else:
        at = text.index("## The tests of the onnx package")
        text = f"{text[:at]}{made}\n\n{text[at:]}"
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
