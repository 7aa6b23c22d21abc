"""Rows that a GEMV workgroup computes at a time, and the bit-identity of rows.

A row of x has the same bits in a call of any number of rows up to MAX_GEMV_ROWS, so that a sequence
decodes to the same tokens alone and in a batch. The kernels of a family add the products of a row
in the same order, by the same multiply-adds:

    gemv 1, 2, 4, 8             float32 rows
    gemv 1 dot to gemv 8 dot    rows quantized to 8 bits, by integer dot products
    gemv_mixed 2, 4, 1          float16 rows, by subgroups
    gemv_mixed dot 2, 4         the same by dot products of two values
    gemv_cpu 1, 2, 4            float32 rows, on CPU drivers

All variants of a call of few rows are of one family, that of the call with one row: measured, or
the best guess. So a measurement chooses a family for all numbers of rows, or a kernel of a family
for one of them. Calls without a GEMV kernel (rows that are too long for a CPU driver) have no
family. Examples: tests/ops/test_gemv_rows.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ...common.dtypes import TensorType
from ...ir.op import SCRATCH, Call, Dispatch
from ...topology.limits import Limits
from ..linalg.matmul_kernels import MAX_GEMV_ROWS
from ..lowering.strides import LOOP_STEPS
from ..lowering.variants import choose
from ..lowering.vec4 import has_subgroup_kernels, launch_run
from .gguf_formats import format_of
from .quant_layout import RUN

GEMV = {"gemv 1": 1, "gemv 2": 2, "gemv 4": 4, "gemv 8": 8}
"""Variants for GPUs: rows of a workgroup."""
DOT = {f"{name} dot": rows for name, rows in GEMV.items()}
"""The same for 8-bit activations, on devices with integer dot products."""
ROWS = {"gemv_cpu 1": 1, "gemv_cpu 2": 2, "gemv_cpu 4": 4}
"""Variants for CPU drivers: rows of a subgroup."""
GEMV_LOCAL = (32, 4)
"""Invocations of a workgroup: along k, and along vec4s of columns."""
WITH_DOT = ("q8_0", "q4_0", "q4_K", "q6_K")
"""Formats with integer dot product kernels."""
Q8_RUN_WORDS = 12
"""Words of a quantized run of x: values, the scale, sums of both halves, and padding."""
UNPACK_FLOPS = 4.0
"""Operations that unpack a weight once for all rows. On a CPU they, not the bytes, bound few rows:
without them one row and four rows would have one estimate, and share one calibrated factor.
"""
_USUAL_REGISTERS = {2: 0, 4: 127, 8: 200}
_REGISTERS = {4: {"q2_K": 150, "q3_K": 150, "q6_K": 150, "mxfp4": 130}}
"""Registers that several rows need, and of formats that need more: measured with the compilers of
Intel (4 rows) and AMD (8 rows).
"""


def rows_at_a_time(rows: int, format: str, limits: Limits) -> int:
    """Return the rows of a workgroup on a GPU: the least power of two that holds `rows`, or fewer
    if registers would spill.
    """
    count = min(1 << (rows - 1).bit_length(), MAX_GEMV_ROWS)
    while count > 1 and limits.registers < _REGISTERS.get(count, {}).get(
        format, _USUAL_REGISTERS[count]
    ):
        count //= 2
    return count


def members(family: dict[str, int], rows: int) -> tuple[str, ...]:
    """Return the variants of up to `rows` rows, the largest first."""
    return tuple(reversed([name for name, count in family.items() if count <= rows]))


def family_of(variant: str) -> str:
    """Return the family of a variant: its name without the number of rows."""
    return " ".join(word for word in variant.split() if not word.isdigit())


def in_one_family(
    op: str, names: tuple[str, ...], one_row: Call, variants: Callable[[Call], tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the variants of a call of few rows that are of the family of one row, or all of them
    if none is.

    Parameters
    ----------
    names
        Variants of the call.
    one_row
        The same call with one row; `variants` returns its variants.
    """
    family = family_of(choose(op, variants, one_row).variant)
    return tuple(name for name in names if family_of(name) == family) or names


def with_one_row(call: Call, columns: int) -> Call:
    """Return a call with one row of x and of its result, which has so many columns."""
    x, *others = call.inputs
    ones = (1,) * (x.rank - 1)
    return replace(
        call,
        inputs=(TensorType((*ones, x.shape[-1]), x.dtype), *others),
        output=TensorType((*ones, columns), call.output.dtype),
        variant="",
    )


def rows_of(call: Call) -> int:
    """Return the rows of x, the first operand."""
    return math.prod(call.inputs[0].shape[:-1])


def has_rows(call: Call) -> bool:
    """Return True if a CPU driver supports the subgroup kernels for a call."""
    n, k, limits = call.output.shape[-1], call.inputs[0].shape[-1], call.limits
    across = -(-n // (4 * limits.subgroup_size))
    fits = k <= LOOP_STEPS * RUN and across <= limits.max_groups[1]
    return fits and has_subgroup_kernels(limits, (4, 8))


def q8_row_words(call: Call) -> int:
    """Return the words of a row of x that is quantized for a device."""
    return call.inputs[0].shape[-1] // RUN * Q8_RUN_WORDS


def quantize_activations(call: Call) -> Dispatch:
    """Return the dispatch that quantizes x, in the order of the values in the weight's words."""
    runs = call.inputs[0].size // RUN
    groups, constants = launch_run(runs, call.limits)
    push = ("runs", runs), ("by_entries", int(format_of(call.attrs["format"]).low == 8))
    return Dispatch("quantize_activations", (0, SCRATCH), groups, push, constants)
