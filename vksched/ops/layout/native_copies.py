"""Copies as steps of native programs (native/cpu_kernels/program/copies.cpp): of values of one word
each, as float32 has. Examples: tests/ops/native/test_native_programs.py.
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
"""Of a copy, behind those that may be merged."""
PIECE = 1 << 15
"""Words that one piece copies, some 10 us."""
WORDS = (FLOAT32, INT32, UINT32)

Lie = tuple[int, tuple[int, ...]]
"""The first word of what is copied, and the words from one element to the next along each axis."""


def copy_program(
    operand: TensorType, output: TensorType, shape: Shape, x: Lie, result: Lie, fill: int = 0
) -> NativeProgram | None:
    """Return the loop that copies elements of a shape from an operand to a result.

    fill: the word of all elements of the result that are not copied.
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
    """Return how all elements of a value lie."""
    return 0, contiguous_strides(shape)


def concat_program(
    inputs: Sequence[TensorType], output: TensorType, axis: int
) -> NativeProgram | None:
    """Return the loop that puts values beside each other along an axis."""
    if not moves_words(inputs):
        return None
    lines = math.prod(output.shape[:axis])
    numbers = (lines, *(t.size // lines for t in inputs))
    return NativeProgram((Loop("concat", tuple(range(len(inputs))), output.size, numbers),))


def gather_program(
    inputs: tuple[TensorType, ...], output: TensorType, axis: int
) -> NativeProgram | None:
    """Return the loop that takes lines of a table, which lie along an axis, by their numbers."""
    table, indices = inputs
    if not moves_words((table,)):
        return None
    outer, inner = math.prod(table.shape[:axis]), math.prod(table.shape[axis + 1 :])
    is_long = int(indices.dtype not in WORDS)
    numbers = (outer, table.shape[axis], inner, indices.size, is_long)
    return NativeProgram((Loop("gather", (0, 1), output.size, numbers),))


def moves_words(types: Sequence[TensorType]) -> bool:
    """Whether native programs copy values of some types."""
    return all(t.dtype in WORDS for t in types)
