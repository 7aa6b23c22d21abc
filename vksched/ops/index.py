"""Index ops: gather. An index outside its axis is an error on every device."""

from __future__ import annotations

import math

import numpy as np

from ..errors import DTypeError, IndexOutOfRange, ShapeError
from ..types import INT32, INT64, NDArray, TensorType, normalize_axis
from .op import OUTPUT, STATUS, Attrs, Call, Dispatch, Kernel, Op, Work, register
from .strides import as_words, spread
from .tensor import Tensor, TensorLike, apply, as_tensor


def _gather_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    table, indices = inputs
    axis = attrs.as_int("axis")
    if indices.dtype not in (INT32, INT64):
        raise DTypeError(
            f"[gather] expected int32 or int64 indices, got {indices.dtype}; try vs.cast"
        )
    return TensorType(table.shape[:axis] + indices.shape + table.shape[axis + 1 :], table.dtype)


def _gather_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    table, indices = inputs
    axis = attrs.as_int("axis")
    size = table.shape[axis]
    if 0 in table.shape[:axis] + table.shape[axis + 1 :]:  # nothing is read, whatever the indices
        return np.empty(
            (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), table.dtype
        )
    if indices.size and (indices.min() < -size or indices.max() >= size):
        bad = indices[(indices < -size) | (indices >= size)].reshape(-1)[0]
        raise IndexOutOfRange(f"[gather] expected indices in {-size}..{size - 1}, got {bad}")
    return np.take(table, indices, axis)


def _gather_lower(call: Call) -> tuple[Dispatch, ...]:
    table, axis = call.inputs[0].shape, call.attrs.as_int("axis")
    if call.output.size == 0:
        return ()
    push = (
        ("count", call.output.size),
        ("axis_size", table[axis]),
        ("picks", call.inputs[1].size),
        ("inner", math.prod(table[axis + 1 :])),
    )
    groups = spread(call.output.size, call.limits)
    return (Dispatch("gather", (0, 1, OUTPUT, STATUS), groups, push),)


def _gather_words(call: Call) -> Call | None:
    return as_words(call, call.attrs.as_int("axis") < call.inputs[0].rank - 1)


def _gather_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(0.0, 2.0 * output.device_bytes + inputs[1].device_bytes)


register(
    Op(
        "gather",
        _gather_infer,
        _gather_reference,
        Kernel(("gather",), _gather_lower, as_words=_gather_words),
        work=_gather_work,
        indices=(1,),
        any_dtype=True,
    )
)


def gather(
    table: TensorLike, indices: TensorLike, axis: int = 0, *, name: str | None = None
) -> Tensor:
    """The slices of `table` at int32 or int64 `indices` along an axis, as ONNX Gather.

    table: (..., n, ...), indices: any shape -> (..., *indices.shape, ...). Negative indices count
    from the end; one outside -n..n-1 raises IndexOutOfRange when the graph runs.
    """
    rows = as_tensor(table)
    if rows.rank == 0:
        raise ShapeError("[gather] expected a table with axes, got a scalar")
    at = normalize_axis("gather", axis, rows.rank)
    return apply("gather", (rows, as_tensor(indices)), {"axis": at}, name)
