"""Matrix products of 8-bit integers with exact int32 sums, as ONNX MatMulInteger.

    a (..., m, k), prepacked b, zero points of a and of b (per tensor or per column)
        -> (a - a_zero) @ (b - b_zero)

Values of a are stored as int32; only their lowest 8 bits count. b is prepacked by `prepack_int8`
for dot products of four int8 values. Device kernels: int8_matmul_kernels.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from ...common.dtypes import INT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Flag, Int
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece
from ...ir.op import Call, Op, Work, register
from ...ir.sharding_rule import REPLICATE, Factor, Sharded, sharding
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import no_gradient
from ..lowering import native_kernels
from .int8_matmul_kernels import Im2Col, integer_kernel
from .int8_weights import TILE, check_words, unpack_int8

PIECE_PRODUCTS = 1 << 24
"""Multiply-adds of one piece on the CPU: about half a millisecond."""


def check_zeros(op: str, zeros: tuple[TensorType, ...], columns: int) -> None:
    """Check the zero points: one for a, and one per tensor or per column for b.

    Raises
    ------
    DTypeError, ShapeError
        If the type or the size of a zero point is wrong.
    """
    if any(t.dtype != INT32 for t in zeros):
        raise DTypeError(f"[{op}] expected zero points of int32, got {zeros[0]}; try vs.cast")
    for zero, sizes in zip(zeros, ((1,), (1, columns)), strict=True):
        if zero.size not in sizes:
            raise ShapeError(f"[{op}] expected zero points of size {sizes}, got {zero.shape}")


def wrapped(sums: NDArray) -> NDArray:
    """Return whole numbers in float64 as int32, modulo 2**32."""
    return sums.astype(np.int64).astype(np.int32)


def subtract_zero_point(x: NDArray, zero: NDArray, attrs: Attrs) -> NDArray:
    """Return x - zero in float64, in which sums of products of these values are exact."""
    own = x.astype(np.int8 if attrs.as_bool("signed") else np.uint8)
    return own.astype(np.float64) - zero.reshape(())


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    a, words, *zeros = inputs
    n = attrs.as_int("columns")
    if a.dtype != INT32:
        raise DTypeError(
            f"[matmul_integer] expected quantized values as int32, got {a.dtype}; try vs.cast"
        )
    if a.rank < 2:
        raise ShapeError(f"[matmul_integer] expected matrices, got {a.shape}")
    check_words("matmul_integer", words, a.shape[-1], n)
    if words.rank > 3 and words.shape[:-3] != a.shape[:-2]:
        raise ShapeError(
            f"[matmul_integer] expected one matrix of weights or {a.shape[:-2]} of them, got "
            f"{words.shape[:-3]}"
        )
    check_zeros("matmul_integer", tuple(zeros), n)
    return TensorType((*a.shape[:-1], n), INT32)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    a, words, a_zero, b_zero = inputs
    left = subtract_zero_point(a, a_zero, attrs)
    right = unpack_int8(words, a.shape[-1], attrs.as_int("columns")).astype(np.float64)
    return wrapped(np.matmul(left, right - b_zero.reshape(-1)))


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    a, words, a_zero, b_zero = inputs
    signed = attrs.as_bool("signed")
    if words.ndim == 3:
        (a, out), words = _flat(a, out), words[None]
        a, out = a[None], out[None]
    else:
        a, out = a.reshape(-1, *a.shape[-2:]), out.reshape(-1, *out.shape[-2:])
        words = words.reshape(-1, *words.shape[-3:])
    for left, right, target in zip(a, words, out, strict=True):
        if not native_kernels.int8_matmul(
            left, right, int(a_zero.reshape(())), b_zero, target, signed
        ):
            int8_values = unpack_int8(right, left.shape[-1], target.shape[-1]).astype(np.float64)
            sums = subtract_zero_point(left, a_zero, attrs) @ (int8_values - b_zero.reshape(-1))
            target[...] = wrapped(sums)


def _flat(a: NDArray, out: NDArray) -> tuple[NDArray, NDArray]:
    """Return a and the result as matrices, for a single weight matrix.

    The rows of the result may be non-contiguous if it is already a matrix.
    """
    if out.ndim == 2:
        return a, out
    rows = math.prod(out.shape[:-1])
    return a.reshape(rows, a.shape[-1]), out.reshape(rows, out.shape[-1])


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by rows if there are many, else by column tiles; by matrices if weights are batched."""
    a, words, a_zero, b_zero = inputs
    k, n = a.shape[-1], out.shape[-1]
    if words.ndim > 3:
        lines, matrices = a.reshape(-1, *a.shape[-2:]), out.reshape(-1, *out.shape[-2:])
        for at, right in enumerate(words.reshape(-1, *words.shape[-3:])):
            yield (lines[at], right, a_zero, b_zero), matrices[at]
        return
    a, out = _flat(a, out)
    rows, tiles = len(a), len(words)
    pieces = max(1, rows * n * k // PIECE_PRODUCTS)
    if rows >= n:
        step = -(-rows // pieces)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            yield (a[part], words, a_zero, b_zero), out[part]
        return
    step = -(-tiles // pieces)
    for start in range(0, tiles, step):
        columns = slice(start * TILE, (start + step) * TILE)
        own = b_zero if b_zero.size == 1 else b_zero.reshape(-1)[columns]
        yield (a, words[start : start + step], a_zero, own), out[:, columns]


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(2.0 * inputs[0].shape[-1] * output.size, float(moved))


def _unfolded(call: Call) -> Im2Col:
    """Return the product as a convolution: rows of a are positions, k is the channel axis."""
    a, words = call.inputs[:2]
    k, n = a.shape[-1], call.output.shape[-1]
    batches = math.prod(words.shape[:-3])
    rows = math.prod(a.shape[:-1]) // batches
    sizes = (1, 1, rows)
    return Im2Col(
        images=batches,
        sizes=sizes,
        counts=sizes,
        steps=(k, 1, rows * k),
        channels=k,
        columns=n,
        result_steps=(n, 1, rows * n),
        words_step=words.size // batches if words.rank > 3 and batches else 0,
    )


register(
    Op(
        "matmul_integer",
        _infer,
        _reference,
        integer_kernel(_unfolded),
        attrs={"columns": Int(0), "signed": Flag()},
        operands=(4, 4),
        work=_work,
        any_dtype=True,
        cpu=CpuKernel(_cpu, _cut),
    )
)
no_gradient("is of integers", "matmul_integer")


@sharding("matmul_integer")
def _sharding(call: Sharded) -> Iterable[Factor]:
    a, words = call.inputs[:2]
    first = a.rank - 2 if words.rank > 3 else 0
    for axis in range(first, a.rank - 1):
        yield Factor((axis, REPLICATE, REPLICATE, REPLICATE), axis, a.shape[axis])


def matmul_integer(
    a: Tensor,
    words: Tensor,
    columns: int,
    a_zero: TensorLike = 0,
    b_zero: TensorLike = 0,
    *,
    signed: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute (a - a_zero) @ (b - b_zero) for int8, exact modulo 2**32, as ONNX MatMulInteger.

    Parameters
    ----------
    a : Tensor
        int8 values stored as int32 (..., m, k): -128 .. 127 if `signed`, else 0 .. 255. Only the
        lowest 8 bits of other values count.
    words : Tensor
        Weights (..., k, columns), prepacked by `vs.prepack_int8`.
    columns : int
        Number of columns of b.
    a_zero : Tensor
        int32 zero point of a, within the range of its values.
    b_zero : Tensor
        int32 zero point of b, one value or (columns,). Subtract 128 from the zero points of
        unsigned weights, as `vs.prepack_int8` does from their values.
    signed : bool
        Whether the values of a are signed.

    Returns
    -------
    Tensor
        int32 (..., m, columns).
    """
    zeros = (as_tensor(zero, like=a) for zero in (a_zero, b_zero))
    attrs = {"columns": columns, "signed": signed}
    return apply("matmul_integer", (a, words, *zeros), attrs, name)
