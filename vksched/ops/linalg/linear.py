"""Ops that are expressed by matmul: gemm, linear, outer, dot, vecdot, tensordot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...common.dtypes import as_ints, broadcast_shapes, normalize_axis
from ...common.errors import ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor, binary
from ..elementwise import add, mul
from ..elementwise.fp16 import computed_wide
from ..layout.reshape import expand_dims, reshape, squeeze, transpose
from .matmul import matmul


def _pair(a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor]:
    """Return two operands as tensors; a Python scalar takes the type of the other operand."""
    left = as_tensor(a, like=b if isinstance(b, Tensor) else None)
    return left, as_tensor(b, like=left)


def gemm(
    a: TensorLike,
    b: TensorLike,
    c: TensorLike | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute alpha * a @ b + beta * c, as ONNX Gemm.

    Parameters
    ----------
    a : Tensor
        (m, k), or (k, m) if `transpose_a`.
    b : Tensor
        (k, n), or (n, k) if `transpose_b`.
    c : Tensor, optional
        Broadcasts to (m, n).
    alpha, beta : float
        Scale factors; whole numbers if the operands are integers.

    Returns
    -------
    Tensor
        (m, n).
    """
    left, right = _pair(a, b)
    if left.rank != 2 or right.rank != 2:
        raise ShapeError(f"[gemm] expected two matrices, got {left.shape} and {right.shape}")
    operands = [left, right] if c is None else [left, right, as_tensor(c, like=left)]
    columns = right.shape[0] if transpose_b else right.shape[1]
    fused = alpha == 1 and all(t.shape == (columns,) for t in operands[2:])

    def build(a: Tensor, b: Tensor, *c: Tensor, name: str | None) -> Tensor:
        scaled = [t if beta == 1 else mul(t, beta) for t in c]
        if fused:
            return matmul(
                a, b, *scaled, transpose_a=transpose_a, transpose_b=transpose_b, name=name
            )
        product = matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        if not scaled:
            return mul(product, alpha, name=name)
        shift = scaled[0]
        if broadcast_shapes("gemm", product.shape, shift.shape) != product.shape:
            raise ShapeError(
                f"[gemm] expected c that broadcasts to {product.shape}, got {shift.shape}"
            )
        return add(product if alpha == 1 else mul(product, alpha), shift, name=name)

    if fused and (c is None or beta == 1):  # one fused op, with a single rounding
        return build(*operands, name=name)
    return computed_wide(build, operands, name)


def linear(
    x: TensorLike, weight: TensorLike, bias: TensorLike | None = None, *, name: str | None = None
) -> Tensor:
    """Apply a linear transformation x @ weight.T + bias, as torch.nn.functional.linear.

    Parameters
    ----------
    x : Tensor
        (..., k).
    weight : Tensor
        (n, k).
    bias : Tensor, optional
        (n,).

    Returns
    -------
    Tensor
        (..., n).
    """
    left, right = _pair(x, weight)
    if right.rank != 2 or left.rank == 0:
        raise ShapeError(
            f"[linear] expected x (..., k) and weight (n, k), got {left.shape} and {right.shape}"
        )
    if left.rank > 1:
        return matmul(left, right, bias, transpose_b=True, name=name)
    row = matmul(expand_dims(left, 0), right, bias, transpose_b=True)
    return reshape(row, row.shape[1:], name=name)


def outer(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the outer product of the flattened operands, as numpy.outer."""
    left, right = _pair(a, b)
    return mul(reshape(left, (left.size, 1)), reshape(right, (1, right.size)), name=name)


def vecdot(a: TensorLike, b: TensorLike, axis: int = -1, *, name: str | None = None) -> Tensor:
    """Return the sum of a * b along an axis, with broadcasting, as numpy.vecdot for real types."""
    left, right = _pair(a, b)
    if left.rank == 0 or right.rank == 0:
        raise ShapeError(f"[vecdot] expected vectors, got {left.shape} and {right.shape}")
    ends = []
    for tensor in (left, right):
        at = normalize_axis("vecdot", axis, tensor.rank)
        order = [a for a in range(tensor.rank) if a != at]
        ends.append(transpose(tensor, (*order, at)))
    if ends[0].shape[-1] != ends[1].shape[-1]:
        raise ShapeError(
            f"[vecdot] expected the same length along axis {axis}, "
            f"got {left.shape} and {right.shape}"
        )
    product = matmul(expand_dims(ends[0], -2), expand_dims(ends[1], -1))
    return squeeze(product, (-2, -1), name=name)


def dot(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the dot product over the last axis of a and the second-last axis of b, as numpy.dot.

    Parameters
    ----------
    a : Tensor
        (..., k), or a scalar, which multiplies b.
    b : Tensor
        (*rest, k, n), (k,) or a scalar.

    Returns
    -------
    Tensor
        (..., *rest, n).
    """
    left, right = _pair(a, b)
    if left.rank == 0 or right.rank == 0:
        return binary("mul", left, right, name)
    return _contract("dot", left, right, (left.rank - 1,), (max(0, right.rank - 2),), name)


def tensordot(
    a: TensorLike,
    b: TensorLike,
    axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2,
    *,
    name: str | None = None,
) -> Tensor:
    """Return the tensor dot product, as numpy.tensordot.

    Parameters
    ----------
    axes : int or pair of axes
        An int n sums over the last n axes of a and the first n axes of b; a pair lists the axes of
        a and the axes of b to sum over.

    Returns
    -------
    Tensor
        The remaining axes of a, then the remaining axes of b.
    """
    left, right = _pair(a, b)
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= min(left.rank, right.rank):
            raise ShapeError(
                f"[tensordot] expected 0 to {min(left.rank, right.rank)} axes, got {axes}"
            )
        pairs = tuple(range(left.rank - int(axes), left.rank)), tuple(range(int(axes)))
    else:
        try:
            of_left, of_right = axes
        except (TypeError, ValueError):
            raise ShapeError(
                f"[tensordot] expected a number of axes or two lists of them, got {axes!r}"
            ) from None
        pairs = _axes(of_left, left.rank), _axes(of_right, right.rank)
    return _contract("tensordot", left, right, *pairs, name)


def _axes(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    numbers = as_ints("tensordot", "axes", axes)
    out = tuple(normalize_axis("tensordot", a, rank) for a in numbers)
    if len(set(out)) != len(out):
        raise ShapeError(f"[tensordot] expected distinct axes, got {numbers}")
    return out


def _contract(
    op: str,
    a: Tensor,
    b: Tensor,
    of_a: tuple[int, ...],
    of_b: tuple[int, ...],
    name: str | None,
) -> Tensor:
    """Sum over pairs of axes with one matrix product."""
    sizes = tuple(a.shape[i] for i in of_a)
    if sizes != tuple(b.shape[i] for i in of_b):
        raise ShapeError(
            f"[{op}] expected axes {of_a} and {of_b} of equal sizes, got {a.shape} and {b.shape}"
        )
    rest_a = [i for i in range(a.rank) if i not in of_a]
    rest_b = [i for i in range(b.rank) if i not in of_b]
    shape = [*(a.shape[i] for i in rest_a), *(b.shape[i] for i in rest_b)]
    inner = math.prod(sizes)
    rows = reshape(transpose(a, (*rest_a, *of_a)), (math.prod(a.shape[i] for i in rest_a), inner))
    columns = math.prod(b.shape[i] for i in rest_b)
    # use the order of b in memory: matmul reads a transposed b at no cost
    if b.rank and [*rest_b, *of_b] == list(range(b.rank)):
        product = matmul(rows, reshape(b, (columns, inner)), transpose_b=True)
    else:
        product = matmul(rows, reshape(transpose(b, (*of_b, *rest_b)), (inner, columns)))
    return reshape(product, shape, name=name)
