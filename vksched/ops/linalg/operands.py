"""The operands of a matrix product: memory layout and packing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...common.dtypes import FLOAT16, Shape, TensorType
from ...ir.attrs import Attrs
from ...ir.op import Call, Dispatch
from ...ir.precision import precision_attrs
from ...topology.limits import Limits
from ..lowering.strides import broadcast_strides, spread

FP16_B, BF16_B = "fp16_b_", "bf16_b_"
"""Prefixes in the names of shaders that read b as float16 and as bfloat16."""


def matrices(inputs: tuple[TensorType, ...], attrs: Attrs) -> tuple[int, int, int, int]:
    """Return (m, k) of a and (k, n) of b, after transposition."""
    a, b = inputs[0].shape[-2:], inputs[1].shape[-2:]
    m, k = reversed(a) if attrs.as_bool("transpose_a") else a
    k_of_b, n = reversed(b) if attrs.as_bool("transpose_b") else b
    return m, k, k_of_b, n


def product_attrs(call: Call, transpose_a: bool, transpose_b: bool) -> Attrs:
    """Return the attributes of a product inside another op's call, with the same precision."""
    flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return Attrs({**flags, **precision_attrs(call.attrs)})


def fp16_weights(call: Call) -> str:
    """Return the prefix of shaders that read 16-bit weights without unpacking, or ""."""
    if call.inputs[1].dtype != FLOAT16 or call.output.dtype == FLOAT16:
        return ""
    return BF16_B if call.attrs.get("format") == "bf16" else FP16_B


def batch_strides(shape: Shape, batch: Shape, step: int) -> tuple[int, ...]:
    """Return the strides from matrix to matrix; 0 along broadcast axes."""
    return tuple(s * step for s in broadcast_strides(shape, batch))


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand in memory: contiguous matrices of lines.

    `along` is the length of a line, which runs along k if `along_k`, else along the rows or columns
    of the result. `batch` holds the leading axes.
    """

    number: int
    batch: Shape
    lines: int
    along: int
    along_k: bool

    @property
    def is_vec4_aligned(self) -> bool:
        """Return True if the operand can be read as vec4, also along k."""
        return self.along % 4 == 0 and (self.along_k or self.lines % 4 == 0)

    @property
    def padded(self) -> tuple[int, int]:
        """Return the number of lines and their length, once packed."""
        return self.lines if self.along_k else round_up_to_vec4(self.lines), round_up_to_vec4(
            self.along
        )

    def strides(self, packed: bool) -> tuple[int, int, int]:
        """Return the strides between rows (or columns), along k, and between matrices."""
        lines, along = self.padded if packed else (self.lines, self.along)
        return (along, 1, lines * along) if self.along_k else (1, along, lines * along)


def round_up_to_vec4(size: int) -> int:
    """Return the next multiple of four."""
    return -(-size // 4) * 4


def operands_of(call: Call) -> tuple[Operand, Operand, Shape, int]:
    """Return a, b, the batch and m; a batch of a is folded into its rows if b has none."""
    a, b, batch = call.inputs[0].shape, call.inputs[1].shape, call.output.shape[:-2]
    m = call.output.shape[-2]
    if math.prod(b[:-2]) == 1 and not call.attrs.as_bool("transpose_a"):
        m = math.prod(batch) * m
        a, b, batch = (m, a[-1]), b[-2:], ()
    return (
        Operand(0, a[:-2], a[-2], a[-1], not call.attrs.as_bool("transpose_a")),
        Operand(1, b[:-2], b[-2], b[-1], call.attrs.as_bool("transpose_b")),
        batch,
        m,
    )


def pack_operand(operand: Operand, target: int, limits: Limits) -> Dispatch:
    """Return the dispatch that packs an operand into `target`."""
    lines, along = operand.padded
    count = math.prod(operand.batch)
    push = (
        ("matrices", count),
        *(("rows", operand.lines), ("columns", operand.along)),
        *(("padded_rows", lines), ("padded_columns", along)),
    )
    groups = spread(count * lines * along // 4, limits)
    return Dispatch("matmul_pack", (operand.number, target), groups, push)
