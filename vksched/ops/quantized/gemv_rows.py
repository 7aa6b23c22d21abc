"""Rows of a GEMV workgroup on a GPU, by the registers that a quantization format needs."""

from __future__ import annotations

from ...ir.op import Call

_REGISTERS = {"q2_K": 150, "q3_K": 150, "q6_K": 150, "mxfp4": 130}
"""Registers that four rows of a format need, measured with Intel's compiler; other formats need
127.
"""


def several_rows(call: Call) -> str:
    """Return the GEMV variant of a GPU for several rows that spills no registers."""
    needed = _REGISTERS.get(str(call.attrs["format"]), 0)
    return "gemv 4" if needed <= call.limits.registers else "gemv 2"
