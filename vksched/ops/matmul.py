"""Matrix multiplication: batched, broadcast, with transposed operands and an optional bias."""

from __future__ import annotations

import math

import numpy as np

from ..errors import DTypeError, ShapeError, UnsupportedOp
from ..types import (
    FLOAT16,
    FLOAT32,
    INT32,
    UINT32,
    NDArray,
    Shape,
    TensorType,
    broadcast_shapes,
    contiguous_strides,
)
from .host import HostKernel
from .layout import reshape
from .op import OUTPUT, Attrs, Call, Dispatch, Kernel, Limits, Op, Work, register
from .strides import LOOP_STEPS, MAX_DISPATCHES, broadcast_strides, collapse, pad, peel
from .tensor import Tensor, TensorLike, apply, as_tensor, register_method
from .variants import chosen

_BATCH_AXES = 4
"""Batch axes that fit into the push constants; a batch with more is several dispatches."""
BIAS_PER_COLUMN, BIAS_PER_ROW = 1, 2
"""The values of HAS_BIAS in shaders/include/matmul.glsl."""
DISPATCH_FLOPS = 1e11
"""Of one dispatch on a GPU, as drivers kill what takes seconds."""
MAX_CUTS = 256
FILLS_A_DEVICE = 64
"""Groups that keep a GPU busy."""
TALLEST_TILE = 64
"""Rows of the largest tile of a group."""
PART_K = LOOP_STEPS
"""Steps along k of one dispatch; a longer k is several."""


def _matrices(inputs: tuple[TensorType, ...], attrs: Attrs) -> tuple[int, int, int, int]:
    """Returns m, k of a and k, n of b, after transposition."""
    a, b = inputs[0].shape[-2:], inputs[1].shape[-2:]
    m, k = reversed(a) if attrs.as_bool("transpose_a") else a
    k_of_b, n = reversed(b) if attrs.as_bool("transpose_b") else b
    return m, k, k_of_b, n


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    a, b = inputs[:2]
    if a.dtype not in (FLOAT32, INT32, UINT32) or any(t.dtype != a.dtype for t in inputs):
        raise DTypeError(
            "[matmul] expected operands all float32, all int32 or all uint32, "
            f"got {' and '.join(t.dtype for t in inputs)}; try vs.cast"
        )
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(f"[matmul] expected matrices, got {a.shape} and {b.shape}")
    m, k, k_of_b, n = _matrices(inputs, attrs)
    if k != k_of_b:
        raise ShapeError(
            f"[matmul] expected the inner sizes to be equal, got {k} of {a.shape} and {k_of_b} of "
            f"{b.shape}; try transpose_a or transpose_b"
        )
    if len(inputs) > 2 and inputs[2].shape != (n,):
        raise ShapeError(f"[matmul] expected a bias of shape ({n},), got {inputs[2].shape}")
    return TensorType((*broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2]), m, n), a.dtype)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    a = np.swapaxes(inputs[0], -1, -2) if attrs.as_bool("transpose_a") else inputs[0]
    b = np.swapaxes(inputs[1], -1, -2) if attrs.as_bool("transpose_b") else inputs[1]
    product = np.matmul(a, b)
    if len(inputs) > 2:
        product += inputs[2]
    return np.asarray(product)


def _host(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """One product of matrices where b is one, as numpy makes one for each matrix of a batch."""
    a = np.swapaxes(inputs[0], -1, -2) if attrs.as_bool("transpose_a") else inputs[0]
    b = np.swapaxes(inputs[1], -1, -2) if attrs.as_bool("transpose_b") else inputs[1]
    if b.ndim > 2 and b.size == math.prod(b.shape[-2:]):
        b = b.reshape(b.shape[-2:])
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and out.flags.c_contiguous:
        np.matmul(a.reshape(-1, a.shape[-1]), b, out=out.reshape(-1, out.shape[-1]))
    else:
        np.matmul(a, b, out=out)
    if len(inputs) > 2:
        out += inputs[2]


def _matrix_strides(shape: Shape, transposed: bool) -> tuple[int, int]:
    """Returns the strides of rows and columns, after transposition."""
    row, column = contiguous_strides(shape)[-2:]
    return (column, row) if transposed else (row, column)


def _fold(call: Call) -> tuple[Shape, Shape, Shape, int]:
    """Returns the shapes of a and b, the batch and m, with a's batch made rows where b has none."""
    a, b, batch = call.inputs[0].shape, call.inputs[1].shape, call.output.shape[:-2]
    m = call.output.shape[-2]
    if math.prod(b[:-2]) == 1 and not call.attrs.as_bool("transpose_a"):
        rows = math.prod(batch) * m
        return (rows, a[-1]), b[-2:], (), rows
    return a, b, batch, m


def product(call: Call, bias_rows: int = 0, result_row: int = 0) -> tuple[Dispatch, ...]:
    """Returns the dispatches of a product, for matmul and for ops that are one inside.

    bias_rows: operand 2 has this many values, those of whole matrices, one for each row of all
        matrices in turn; 0: it has one for each column.
    result_row: words from row to row of a result of which this product computes some columns.
    """
    if call.output.size == 0:
        return ()
    call = chosen("matmul", variants, call)  # of the product inside another op none is set
    n, k = call.output.shape[-1], _matrices(call.inputs, call.attrs)[1]
    a, b, batch, m = _fold(call)
    a_row, a_column = _matrix_strides(a, call.attrs.as_bool("transpose_a"))
    b_row, b_column = _matrix_strides(b, call.attrs.as_bool("transpose_b"))
    given = [
        *(tuple(_batch_strides(shape, batch)) for shape in (a, b)),
        tuple(s * m * (result_row or n) for s in contiguous_strides(batch)),
    ]
    sizes, strides = collapse(batch, given)
    inner = _inner_axes(sizes, 2.0 * m * n * min(k, PART_K), call.limits)
    shifts = [(at_a, at_b, out) for at_a, at_b, out in peel(sizes, strides, inner)]
    sizes, strides = sizes[:inner], tuple(s[:inner] for s in strides)
    parts = range(0, max(k, 1), PART_K)
    if len(shifts) * len(parts) > MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[matmul] broadcasting to {batch} needs {len(shifts) * len(parts)} dispatches, "
            f"over {MAX_DISPATCHES}; try expand"
        )
    batches = math.prod(sizes)
    rows = _rows_of_dispatch(m, 2.0 * n * min(k, PART_K) * batches, batches, call.limits)
    layout = (
        *(("batches", batches), ("n", n)),
        *(("a_row", a_row), ("a_column", a_column), ("b_row", b_row), ("b_column", b_column)),
        ("batch_sizes", pad(sizes, 3, 1)),
        ("a_batch", pad(strides[0], 4)),
        ("b_batch", pad(strides[1], 4)),
        *(("result_row", result_row or n), ("bias_rows", bias_rows)),
    )
    shader, tile, constants = _algorithm(call, a_column == 1, b_column == 1)
    most = call.limits.max_groups
    groups = (
        min(-(-n // tile[0]), most[0]),
        min(-(-min(m, rows) // tile[1]), most[1]),
        min(batches, most[2]),
    )
    has_bias = len(call.inputs) > 2
    bias = BIAS_PER_ROW if bias_rows else BIAS_PER_COLUMN
    return tuple(
        Dispatch(
            shader,
            (0, 1, 2 if has_bias else 0, OUTPUT),
            groups,
            (*layout, ("m", min(rows, m - row)), ("k", min(PART_K, k - start))),
            (*constants, ("HAS_BIAS", bias * (has_bias and start == 0)), ("ADDS", int(start > 0))),
            shifts=(
                at_a + start * a_column + row * a_row,
                at_b + start * b_row,
                out // (result_row or n) % bias_rows + row if bias_rows else 0,
                out + row * (result_row or n),
            ),
            barrier=start > 0,
        )
        for start in parts
        for at_a, at_b, out in shifts
        for row in range(0, m, rows)
    )


def _inner_axes(sizes: tuple[int, ...], flops: float, limits: Limits) -> int:
    """Returns how many batch axes one dispatch covers: fewer on a GPU where it would take long."""
    inner = min(len(sizes), _BATCH_AXES)
    while (
        inner > 0
        and not limits.software
        and flops * math.prod(sizes[:inner]) > DISPATCH_FLOPS
        and math.prod(sizes[inner - 1 :]) <= MAX_CUTS
    ):
        inner -= 1
    return inner


def _rows_of_dispatch(m: int, flops_per_row: float, batches: int, limits: Limits) -> int:
    """Returns the rows that one dispatch computes: all but where a GPU would take long."""
    if limits.software or batches > 1 or m * flops_per_row <= DISPATCH_FLOPS:
        return m
    tiles = max(1, int(DISPATCH_FLOPS / flops_per_row / TALLEST_TILE))
    return tiles * TALLEST_TILE


LOCAL = (16, 8)
"""Columns and rows of invocations in a group of `matmul_tiled`, the shader's default."""
VEC4, REGISTER = "vec4", "register"
BLOCKS = {f"tiled {LOCAL[0]}x{LOCAL[1]} b{block}": block for block in (8, 4)}
"""Variants of `matmul_tiled`: an invocation computes a square of this many values a side. The tiles
of the larger one take 12.2 KiB of shared memory, of the 16 that every device has.
"""


def variants(call: Call) -> tuple[str, ...]:
    """Shared memory on GPUs; on CPU drivers, where it is plain memory, registers alone."""
    if call.output.size == 0:
        return ()
    if call.limits.software:
        return (VEC4, REGISTER) if _in_fours(call) else (REGISTER,)
    _, _, batch, m = _fold(call)
    large, small = BLOCKS
    rows, columns = LOCAL[1] * BLOCKS[large], LOCAL[0] * BLOCKS[large]
    groups = -(-m // rows) * -(-call.output.shape[-1] // columns) * math.prod(batch)
    return (large, small) if groups >= FILLS_A_DEVICE else (small, large)


def _algorithm(
    call: Call, a_along_k: bool, b_along_n: bool
) -> tuple[str, tuple[int, int], tuple[tuple[str, int], ...]]:
    """Returns the shader, the columns and rows that one group computes, and its constants."""
    # products and sums of uint32 have the bits of those of int32
    dtype = FLOAT32 if call.output.dtype == FLOAT32 else INT32
    if call.variant in BLOCKS:
        block = BLOCKS[call.variant]
        along = (("A_ALONG_K", int(a_along_k)), ("B_ALONG_N", int(b_along_n)))
        tile = (LOCAL[0] * block, LOCAL[1] * block)
        return f"matmul_tiled_{dtype}", tile, (("BLOCK", block), *along)
    if call.variant == VEC4:
        return "matmul_vec4", (8 * 8, 8), (("B_ALONG_N", int(b_along_n)),)
    return f"matmul_register_{dtype}", (8 * 8, 4 * 8), ()


def _in_fours(call: Call) -> bool:
    """Whether `matmul_vec4` can read a and b in steps of four words."""
    if call.output.dtype not in (FLOAT32, FLOAT16):
        return False
    n, k = call.output.shape[-1], _matrices(call.inputs, call.attrs)[1]
    a, b, batch, _ = _fold(call)
    a_row, a_column = _matrix_strides(a, call.attrs.as_bool("transpose_a"))
    b_row, b_column = _matrix_strides(b, call.attrs.as_bool("transpose_b"))
    steps = [k, a_row, *((b_row, n) if b_column == 1 else (b_column,))]
    steps += [step for shape in (a, b) for step in _batch_strides(shape, batch)]
    return a_column == 1 and 1 in (b_row, b_column) and all(step % 4 == 0 for step in steps)


def _batch_strides(shape: Shape, batch: Shape) -> tuple[int, ...]:
    """Returns the strides from matrix to matrix, 0 along broadcast axes."""
    step = math.prod(shape[-2:])
    return tuple(s * step for s in broadcast_strides(shape[:-2], batch))


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    k = _matrices(inputs, attrs)[1]
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(2.0 * k * output.size, float(moved))


SHADERS = (
    "matmul_vec4",
    *(f"matmul_{kind}_{dtype}" for kind in ("tiled", "register") for dtype in (FLOAT32, INT32)),
)
register(
    Op(
        "matmul",
        _infer,
        _reference,
        Kernel(SHADERS, product, variants=variants),
        work=_work,
        host=HostKernel(_host),
    )
)


def matmul(
    a: TensorLike,
    b: TensorLike,
    bias: TensorLike | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """a @ b (+ bias), as numpy.matmul, for float32, int32 and uint32 (which wrap).

    a: (..., m, k), b: (..., k, n), bias: (n,) -> (..., m, n); leading axes broadcast. transpose_a,
    transpose_b: the operand's last two axes are read the other way round, at no cost. An operand of
    rank 1 is a row (a) or a column (b), and its axis is left out of the result.
    """
    left = as_tensor(a, like=b if isinstance(b, Tensor) else None)
    right = as_tensor(b, like=left)
    if left.rank == 0 or right.rank == 0:
        raise ShapeError(
            f"[matmul] expected operands with axes, got {left.type} and {right.type}; try vs.mul"
        )
    for operand, transposed in ((left, transpose_a), (right, transpose_b)):
        if operand.rank == 1 and transposed:
            raise ShapeError(f"[matmul] expected a matrix to transpose, got {operand.type}")
    row, column = left.rank == 1, right.rank == 1
    if not (row or column):
        return _apply(left, right, bias, transpose_a, transpose_b, name)
    left = left.reshape((1, left.shape[0])) if row else left
    right = right.reshape((right.shape[0], 1)) if column else right
    product = _apply(left, right, bias, transpose_a, transpose_b, None)
    shape = list(product.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return reshape(product, shape, name=name)


def _apply(
    a: Tensor,
    b: Tensor,
    bias: TensorLike | None,
    transpose_a: bool,
    transpose_b: bool,
    name: str | None,
) -> Tensor:
    inputs = (a, b) if bias is None else (a, b, as_tensor(bias, like=a))
    attrs = {"transpose_a": bool(transpose_a), "transpose_b": bool(transpose_b)}
    return apply("matmul", inputs, attrs, name)


register_method("matmul", matmul)
