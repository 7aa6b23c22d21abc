"""Matrix products as loops of native programs.

    small                      rows of b, or dot products of rows: "matmul". The bits of a row do
                               not depend on the number of rows
    b is (n, k), few rows      transpose a | 1 x 1 convolution with weights b | transpose the result
    other                      blocks of the result with numpy's BLAS library: "gemm"

For the second case that library first copies b into blocks, which does not pay for few rows. If the
native loops do not find the library, numpy computes the same blocks. Sources of the loops:
native/cpu_kernels/program/, native/cpu_kernels/conv/. Examples:
tests/ops/native/test_matmul_native.py, tests/ops/native/test_matmul_blocks.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...common.dtypes import FLOAT32, TensorType
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import SHARES
from ...ir.native_program import GEMM, Loop, NativeProgram, one_loop
from ..layout.native_copies import copy_program, dense
from ..lowering import blas, native_kernels
from ..lowering.fused_loop import encode_steps
from .matmul_blocks import divide
from .operands import matrices

PROGRAM_WORK, VECTOR_WORK = 1 << 17, 1 << 20
"""Maximum multiply-adds for which the loop of small products is faster than calling numpy's product
from Python. The second value is for a single row, for which both read the matrix once.
"""
FEW_ROWS, FEW_ROWS_WORK = 8, 1 << 18
"""Maximum rows, and multiply-adds of a row, of products by one (n, k) matrix that the loop of small
products computes: it takes 0.5 to 1.0 of the library's time.
"""
ROWS = range(8, 65)
"""Row counts of the second case: enough rows to fill vectors, and b is read once for all of them.
"""
PIECE = 1 << 19
"""Minimum multiply-adds of a piece, about 20 us."""
UNIT = 16
"""Columns of a piece are a multiple of this number, because several are computed at a time."""


def matmul_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the loops of a product with its bias, or None if numpy computes it."""
    a, b, *bias = inputs
    m, k, _, n = matrices(inputs, attrs)
    batches, of_b = output.size // (m * n), b.size // (k * n)
    transpose_a, transpose_b = attrs.as_bool("transpose_a"), attrs.as_bool("transpose_b")
    if not has_equal_rows(inputs, attrs, batches * m) and output.size * k > PROGRAM_WORK:
        gemv = transpose_b and not transpose_a and not (bias and of_b > 1)
        program = _gemv_program(inputs, output, k, n) if gemv else None
        return program or _product(inputs, output, attrs)
    same = a.shape[:-2] == output.shape[:-2] and of_b in (1, batches)
    if not same or (transpose_a and transpose_b):
        return None
    numbers = (
        *(batches, m, n, k, m * k, *((1, m) if transpose_a else (k, 1))),
        *(k * n if of_b > 1 else 0, *((1, k) if transpose_b else (n, 1)), len(bias)),
    )
    return one_loop("matmul", inputs, output, numbers)


def has_equal_rows(inputs: tuple[TensorType, ...], attrs: Attrs, rows: int = FEW_ROWS) -> bool:
    """Return True if the loop of small products computes some rows times one matrix b, whatever its
    size for fewer rows: each row has the bits that it has alone.
    """
    _, b, *_ = inputs
    k, n = matrices(inputs, attrs)[1::2]
    if rows == 1:
        return n * k <= VECTOR_WORK
    is_plain = attrs.as_bool("transpose_b") and not attrs.as_bool("transpose_a")
    return is_plain and b.size == n * k and rows <= FEW_ROWS and n * k <= FEW_ROWS_WORK


def _product(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return blocks of single matrices, or of all rows of a if b is a single matrix."""
    a, b, *bias = inputs
    m, k, _, n = matrices(inputs, attrs)
    batches, of_b = output.size // (m * n), b.size // (k * n)
    transpose_a, transpose_b = attrs.as_bool("transpose_a"), attrs.as_bool("transpose_b")
    if a.shape[:-2] != output.shape[:-2] or of_b not in (1, batches):
        return None
    if of_b == 1 and not transpose_a:
        batches, m = 1, batches * m
    floats = all(t.dtype == FLOAT32 for t in inputs)
    if not floats or m == n == 1 or not blas.is_in_loops():
        return None
    parts = divide(batches, m, n, k, transpose_b)
    of_a = (m * k, m if transpose_a else k, int(transpose_a))
    by_b = (k * n if of_b > 1 else 0, k if transpose_b else n, int(transpose_b))
    numbers = (batches, m, n, k, *of_a, *by_b, len(bias), *parts)
    operands, pieces = tuple(range(len(inputs))), math.prod(parts)
    return NativeProgram((Loop(GEMM, operands, output.size, numbers, (), pieces, output.size * k),))


def _gemv_program(
    inputs: tuple[TensorType, ...], output: TensorType, k: int, n: int
) -> NativeProgram | None:
    """Return the loops of all matrices in a times one in b, or of one in a times all in b."""
    a, b, *bias = inputs
    rows, of_b = a.size // k, b.size // (k * n)
    wanted = rows * of_b * n
    if any(t.dtype != FLOAT32 for t in inputs) or not native_kernels.conv_epilogue_ops():
        return None
    if rows not in ROWS or wanted != output.size:
        return None
    columns, count = of_b * n, len(inputs)
    each = math.ceil(columns / max(1, min(columns * rows * k // PIECE, SHARES)) / UNIT) * UNIT
    ones, window = (1, 1, 1), (1, 1, rows)
    steps, float_params = encode_steps(1, (), ())
    numbers = (1, k, columns, 1, each, 1, len(bias), *window, *ones, *window, *ones, *ones, 0, 0, 0)
    transposed, product = TensorType((k, rows)), TensorType((columns, rows))
    first = copy_program(a, transposed, transposed.shape, (0, (1, k)), dense(transposed.shape))
    shape = (of_b, rows, n)
    last = copy_program(product, output, shape, (0, (n * rows, 1, rows)), dense(shape))
    if first is None or last is None:
        return None
    conv = Loop(
        "conv",
        (count, *range(1, count)),
        product.size,
        (*numbers, *steps),
        float_params,
        math.ceil(columns / each),
        product.size * k,
    )
    (to_columns,), (to_rows,) = first.loops, last.loops
    return NativeProgram((to_columns, conv, replace(to_rows, operands=(count + 1,))))
