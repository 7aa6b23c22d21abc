"""Matrix multiplication: batched, broadcasting, with transposed operands and an optional bias."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product as all_of

import numpy as np

from ...common.dtypes import (
    FLOAT16,
    FLOAT32,
    INT32,
    UINT32,
    NDArray,
    Shape,
    TensorType,
    broadcast_shapes,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Flag
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece
from ...ir.op import Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, register_method
from ...ir.vjp import VjpContext, VjpResult, gradient, sum_to
from ..elementwise.binary import mul
from ..elementwise.epilogue import with_epilogue
from ..elementwise.select import cast
from ..layout.reshape import reshape, transpose
from .matmul_blocks import blocks, divide, examples
from .matmul_kernels import (
    lower_product,
    pack,
    product,
    product_scratch,
    step_cost,
    takes_fp16,
    variants,
)
from .matmul_native import matmul_program
from .matmul_shaders import SHADERS
from .operands import matrices

__all__ = ["SHADERS", "matmul", "pack", "product", "step_cost"]
"""The builder, and helpers for ops that contain a matrix product."""


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    a, b = inputs[:2]
    if a.dtype not in (FLOAT32, INT32, UINT32) or any(t.dtype != a.dtype for t in inputs):
        raise DTypeError(
            "[matmul] expected operands all float32, all int32 or all uint32, "
            f"got {' and '.join(t.dtype for t in inputs)}; try vs.cast"
        )
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(f"[matmul] expected matrices, got {a.shape} and {b.shape}")
    m, k, k_of_b, n = matrices(inputs, attrs)
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


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    a, b, out_of_rows = _matrices(inputs, attrs, out)
    np.matmul(a, b, out=out_of_rows)
    if len(inputs) > 2:
        out += inputs[2]


def _matrices(
    inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    """Return the operands and the result for numpy.matmul.

    A batch of a is folded into one matrix if b is a single matrix, because numpy multiplies each
    matrix of a batch separately.
    """
    a = _transposed(inputs[0], attrs, "transpose_a")
    b = _transposed(inputs[1], attrs, "transpose_b")
    if b.ndim > 2 and b.size == math.prod(b.shape[-2:]):
        b = b.reshape(b.shape[-2:])
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and out.flags.c_contiguous:
        rows = math.prod(a.shape[:-1])  # reshape(-1) is ambiguous if k or n is 0
        return a.reshape(rows, a.shape[-1]), b, out.reshape(rows, out.shape[-1])
    return a, b, out


def _transposed(x: NDArray, attrs: Attrs, name: str) -> NDArray:
    return np.swapaxes(x, -1, -2) if attrs.as_bool(name) else x


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split the result into blocks along the longest batch axis, the rows and the columns."""
    a, b, result = _matrices(inputs, attrs, out)
    lead, (m, n) = result.shape[:-2], result.shape[-2:]
    axis = max(range(len(lead)), key=lead.__getitem__, default=0)
    transpose_b, back = attrs.as_bool("transpose_b"), axis - result.ndim
    parts = divide(math.prod(lead), m, n, a.shape[-1], transpose_b)
    batch = examples(lead[axis] if lead else 1, parts)
    for some, (rows, columns) in all_of(batch, blocks(m, n, parts)):
        of_a, of_b = (
            _slice_axis(a, back, some)[..., rows, :],
            _slice_axis(b, back, some)[..., columns],
        )
        bias = [shift[columns] for shift in inputs[2:]]
        operands = (
            _transposed(of_a, attrs, "transpose_a"),
            _transposed(of_b, attrs, "transpose_b"),
            *bias,
        )
        yield operands, _slice_axis(result, back, some)[..., rows, columns]


def _slice_axis(x: NDArray, axis: int, some: slice) -> NDArray:
    """Return a slice along an axis, counted from the end; x may lack the axis or broadcast."""
    if x.ndim < -axis or x.shape[axis] == 1 or axis > -3:
        return x
    whole = slice(None)
    return x[tuple([some if at == x.ndim + axis else whole for at in range(x.ndim)])]


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    k = matrices(inputs, attrs)[1]
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(2.0 * k * output.size, float(moved))


register(
    with_epilogue(
        Op(
            "matmul",
            _infer,
            _reference,
            Kernel(
                SHADERS,
                lower_product,
                scratch=product_scratch,
                variants=variants,
                takes_fp16=takes_fp16,
            ),
            attrs={"transpose_a": Flag(), "transpose_b": Flag()},
            operands=(2, 3),
            work=_work,
            roundable_operands=(0, 1),
            cpu=CpuKernel(_cpu, _cut),
            native_program=matmul_program,
        )
    )
)


@gradient("matmul")
def _gradient(call: VjpContext) -> VjpResult:
    """Return grad @ b^T for a and a^T @ grad for b, transposed if the operand is transposed."""
    (a, b), g = call.inputs[:2], call.grad
    transpose_a, transpose_b = call.attrs.as_bool("transpose_a"), call.attrs.as_bool("transpose_b")
    if transpose_a:
        of_a = _product_gradient(b, g, transpose_b, True, a.shape)
    else:
        of_a = _product_gradient(g, b, False, not transpose_b, a.shape)
    if transpose_b:
        of_b = _product_gradient(g, a, True, transpose_a, b.shape)
    else:
        of_b = _product_gradient(a, g, not transpose_a, False, b.shape)
    return (of_a, of_b, *(sum_to(g, bias.shape) for bias in call.inputs[2:]))


def _product_gradient(
    left: Tensor, right: Tensor, transpose_l: bool, transpose_r: bool, shape: Shape
) -> Tensor:
    """Return left @ right, summed over the axes along which an operand was broadcast.

    For an operand without a batch, e.g. the weight of a linear layer, the batch is folded into the
    inner axis of a single product, unless this copies more elements than a batched product would
    write. `shape` is the shape of the operand.
    """
    rows, columns = shape[-2:]
    inner = left.shape[-2] if transpose_l else left.shape[-1]
    batch = math.prod(broadcast_shapes("matmul", left.shape[:-2], right.shape[:-2]))
    copied = left.size * (not transpose_l) + right.size * transpose_r
    if batch != 1 and math.prod(shape[:-2]) == 1 and copied <= batch * rows * columns:
        lines = (
            reshape(_swap_last(t) if swap else t, (batch * inner, size))
            for t, swap, size in ((left, not transpose_l, rows), (right, transpose_r, columns))
        )
        return reshape(matmul(*lines, transpose_a=True), shape)
    if inner == 1:  # no sum: an elementwise op, which can be fused
        product_grad = mul(
            reshape(left, (*left.shape[:-2], rows, 1)),
            reshape(right, (*right.shape[:-2], 1, columns)),
        )
    else:
        product_grad = matmul(left, right, transpose_a=transpose_l, transpose_b=transpose_r)
    return sum_to(product_grad, shape)


def _swap_last(x: Tensor) -> Tensor:
    return transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def matmul(
    a: TensorLike,
    b: TensorLike,
    bias: TensorLike | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Multiply matrices: a @ b (+ bias), as numpy.matmul.

    The types are float16, float32, and int32 and uint32, which wrap. float16 is converted to
    float32 if the other operand is float32.

    Parameters
    ----------
    a : Tensor
        (..., m, k), or (..., k, m) if `transpose_a`; (k,) is a row.
    b : Tensor
        (..., k, n), or (..., n, k) if `transpose_b`; (k,) is a column. Leading axes broadcast.
    bias : Tensor, optional
        (n,).
    transpose_a, transpose_b : bool
        Read the last two axes of an operand in reverse order, at no cost.

    Returns
    -------
    Tensor
        (..., m, n), without m or n for an operand of rank 1.
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
    inputs = [a, b] if bias is None else [a, b, as_tensor(bias, like=a)]
    if {t.dtype for t in inputs} == {FLOAT16, FLOAT32}:  # e.g. float16 weights
        inputs = [cast(t, FLOAT32) if t.dtype == FLOAT16 else t for t in inputs]
    attrs = {"transpose_a": bool(transpose_a), "transpose_b": bool(transpose_b)}
    return apply("matmul", inputs, attrs, name)


register_method("matmul", matmul)
