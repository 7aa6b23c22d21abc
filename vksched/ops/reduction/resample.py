"""Resampling along one axis: every result is a weighted sum of a few elements."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...common.dtypes import FLOAT32, INT32, NDArray, TensorType
from ...common.errors import DTypeError, GradientError, ShapeError
from ...ir.attr_domains import Axis
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, rows_of_piece
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, apply, constant
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..creation.create import zeros
from ..elementwise.binary import mul
from ..elementwise.select import where
from ..layout.index import gather
from ..layout.reshape import reshape
from ..lowering import native_kernels
from ..lowering.chunking import element_parts
from .reduce import reduce_sum


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, indices, weights = inputs
    axis = attrs.as_int("axis")
    if x.dtype != FLOAT32 or weights.dtype != x.dtype or indices.dtype != INT32:
        raise DTypeError(
            f"[resample] expected float32, int32 and float32, got {x.dtype}, {indices.dtype} and "
            f"{weights.dtype}; try vs.cast"
        )
    if indices.rank != 2 or indices.shape != weights.shape:
        raise ShapeError(
            f"[resample] expected indices and weights of one shape (out, taps), got "
            f"{indices.shape} and {weights.shape}"
        )
    if x.shape[axis] == 0 and indices.size:
        raise ShapeError(f"[resample] expected elements along axis {axis}, got none in {x.shape}")
    return TensorType((*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]), x.dtype)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, indices, weights = inputs
    axis = attrs.as_int("axis")
    wide = np.zeros((*x.shape[:axis], len(indices), *x.shape[axis + 1 :]), np.float64)
    for tap in range(indices.shape[1]):
        weight = weights[:, tap].astype(np.float64).reshape(-1, *(1,) * (x.ndim - axis - 1))
        selected = np.take(x, indices[:, tap], axis, mode="clip")
        wide += np.where(weight == 0, 0, selected * weight)  # infinity times 0 would be NaN
    with np.errstate(over="ignore"):
        return wide.astype(x.dtype)


def _compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    x, indices, weights = inputs
    if not native_kernels.resample(x, indices, weights, out, attrs.as_int("axis")):
        out[...] = _reference(inputs, attrs)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split along the axes before the resampled one."""
    x, *taps = inputs
    axes = attrs.as_int("axis")
    if axes == 0 or 0 in x.shape:
        yield inputs, out
        return
    step = rows_of_piece(math.prod(x.shape[:axes]), max(x.size, out.size))
    for outer in np.ndindex(*x.shape[: axes - 1]):
        for start in range(0, x.shape[axes - 1], step):
            at = (*(slice(i, i + 1) for i in outer), slice(start, start + step))
            yield (x[at], *taps), out[at]


def _lower(call: Call) -> tuple[Dispatch, ...]:
    x, axis = call.inputs[0].shape, call.attrs.as_int("axis")
    outs, taps = call.inputs[1].shape
    push = (
        ("size", x[axis]),
        ("outs", outs),
        ("taps", taps),
        ("inner", math.prod(x[axis + 1 :])),
    )
    return tuple(
        Dispatch("resample", (0, 1, 2, OUTPUT), groups, (("start", start), ("end", end), *push))
        for start, end, groups in element_parts("resample", call.output.size, taps + 1, call.limits)
    )


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    taps = inputs[1].shape[1]
    return Work(2.0 * output.size * taps, float(moved), float(taps if output.size else 0))


register(
    Op(
        "resample",
        _infer,
        _reference,
        Kernel(("resample",), _lower),
        attrs={"axis": Axis()},
        operands=(3, 3),
        work=_work,
        cpu=CpuKernel(_compute, _cut),
        indices=(1,),
    )
)


def resample(
    x: Tensor, indices: NDArray, weights: NDArray, axis: int, name: str | None = None
) -> Tensor:
    """Return result[o, i, n] = sum over t of weights[i, t] * x[o, indices[i, t], n].

    Indices are clamped to the axis; taps with weight 0 are not read.

    Shapes
    ------
    x
        (..., size, ...)
    indices, weights
        (out, taps)
    result
        (..., out, ...)
    """
    taps = constant(np.asarray(indices, np.int32)), constant(np.asarray(weights, x.dtype))
    return apply("resample", (x, *taps), {"axis": axis}, name)


def resample_transposed(
    g: Tensor, indices: NDArray, weights: NDArray, axis: int, size: int
) -> Tensor:
    """Return the transpose of `resample`, which is a resampling too.

    result[o, j, n] = sum over all i, t with indices[i, t] = j of weights[i, t] * g[o, i, n]. Pairs
    with weight 0 may have any index.

    Shapes
    ------
    g
        (..., out, ...)
    indices, weights
        (out, taps)
    result
        (..., size, ...)
    """
    shape = (*g.shape[:axis], size, *g.shape[axis + 1 :])
    if math.prod(g.shape) == 0 or size == 0:
        return zeros(shape, g.dtype)
    pairs, there = _pairs_of_places(indices, weights != 0, size)
    pair_weights = np.where(there, weights.reshape(-1)[pairs], 0)
    return resample(g, pairs // indices.shape[1], pair_weights, axis)


def _pairs_of_places(indices: NDArray, counts: NDArray, size: int) -> tuple[NDArray, NDArray]:
    """Return the pairs (result, tap) that read each position, by number, and a mask of valid pairs.

    Both are (size, most). counts: mask of the pairs that read.
    """
    pairs = np.flatnonzero(counts)
    places = indices.reshape(-1)[pairs]
    order = np.argsort(places, kind="stable")
    pairs, places = pairs[order], places[order]
    each = np.bincount(places, minlength=size)
    rank = np.arange(len(places)) - np.repeat(np.cumsum(each) - each, each)
    table = np.zeros((size, max(1, int(each.max(initial=0)))), np.int64)
    table[places, rank] = pairs
    return table, np.arange(table.shape[1]) < each[:, None]


@gradient("resample")
def _pull(call: VjpContext) -> VjpResult:
    (x, indices, weights), g, axis = call.inputs, call.grad, call.attrs.as_int("axis")
    if indices.data is None:
        raise GradientError("[resample] expected indices that are constants; try vs.gather")
    size, taps = x.shape[axis], indices.shape[1]
    if g.size == 0 or taps == 0:
        return zeros(x.shape, x.dtype), None, zeros(weights.shape, x.dtype)
    places = np.clip(indices.data, 0, size - 1)
    if weights.data is not None:
        by_x = resample_transposed(g, places, weights.data, axis, size)
    else:
        pairs, there = _pairs_of_places(places, np.ones(places.shape, bool), size)
        pair_weights = gather(reshape(weights, (weights.size,)), constant(pairs.astype(np.int32)))
        transposed = (
            constant((pairs // taps).astype(np.int32)),
            where(constant(there), pair_weights, 0.0),
        )
        by_x = apply("resample", (g, *transposed), {"axis": axis})
    lead, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    selected = gather(x, constant(places.reshape(-1).astype(np.int32)), axis)
    products = mul(
        reshape(selected, (lead, len(places), taps, inner)),
        reshape(g, (lead, len(places), 1, inner)),
    )
    return by_x, None, reduce_sum(products, (0, 3))
