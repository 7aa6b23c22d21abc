"""Copies as loops of native programs (native/cpu_kernels/program/copies.cpp), for types with one
32-bit word per element. Examples: tests/ops/native/test_native_programs.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...common.dtypes import (
    FLOAT32,
    INT32,
    UINT32,
    Shape,
    TensorType,
    contiguous_strides,
)
from ...ir.cpu_kernel import SHARES
from ...ir.native_program import Loop, NativeProgram
from ..lowering.strides import collapse, pad

AXES = 6
"""Maximum number of axes of a copy, after axes are merged."""
PIECE = 1 << 15
"""Words per piece, about 10 us."""
WORDS = (FLOAT32, INT32, UINT32)

Lie = tuple[int, tuple[int, ...]]
"""Layout of an operand of a copy: its first word, and the stride along each axis in words."""


def copy_program(
    operand: TensorType, output: TensorType, shape: Shape, x: Lie, result: Lie, fill: int = 0
) -> NativeProgram | None:
    """Return the loop that copies elements of a shape from an operand to a result.

    Parameters
    ----------
    fill
        Word for the other elements of the result.
    """
    sizes, (of_x, of_result) = collapse(shape, (x[1], result[1]))
    if not moves_words((operand, output)) or len(sizes) > AXES:
        return None
    size, filled = math.prod(shape), output.size > math.prod(shape)
    numbers = (
        *(*pad(sizes, AXES, 1), *pad(of_x, AXES), *pad(of_result, AXES)),
        *(x[0], result[0], output.size if filled else 0, fill),
    )
    pieces = 1 if filled else max(1, min(size // PIECE, 2 * SHARES))
    loop = Loop("copy", (0,), output.size, numbers, (), pieces, size)
    return NativeProgram((loop,))


def dense(shape: Shape) -> Lie:
    """Return the layout of a contiguous value."""
    return 0, contiguous_strides(shape)


def concat_program(
    inputs: Sequence[TensorType], output: TensorType, axis: int
) -> NativeProgram | None:
    """Return the loop that concatenates values along an axis."""
    if not moves_words(inputs):
        return None
    lines = math.prod(output.shape[:axis])
    numbers = (lines, *(t.size // lines for t in inputs))
    return NativeProgram((Loop("concat", tuple(range(len(inputs))), output.size, numbers),))


def gather_program(
    inputs: tuple[TensorType, ...], output: TensorType, axis: int
) -> NativeProgram | None:
    """Return the loop that gathers lines of a table along an axis."""
    table, indices = inputs
    if not moves_words((table,)):
        return None
    outer, inner = math.prod(table.shape[:axis]), math.prod(table.shape[axis + 1 :])
    is_long = int(indices.dtype not in WORDS)
    numbers = (outer, table.shape[axis], inner, indices.size, is_long)
    return NativeProgram((Loop("gather", (0, 1), output.size, numbers),))


def moves_words(types: Sequence[TensorType]) -> bool:
    """Return True if native programs can copy values of these types."""
    return all(t.dtype in WORDS for t in types)
