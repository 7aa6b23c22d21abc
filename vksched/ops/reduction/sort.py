"""Sorting along an axis: values, their indices, and the first k of both.

    x -- chunks by rank counting --> runs of `chunk` -- merge --> runs of 2 chunk -- ... --> result

Each merge is one dispatch; keys and columns alternate between two scratch buffers. If only the
first k are needed, runs are truncated to k and merges read no more than these.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT32,
    INT32,
    UINT32,
    NDArray,
    TensorType,
    normalize_axis,
    numpy_dtype,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import LONG, Axis, Flag, Int, Nullable, one_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...topology.limits import Limits
from ..layout.index import take_along_axis
from ..lowering.strides import spread
from .arg_reduce import INDEX

SORT_SHADERS = {
    FLOAT32: "sort_chunk_float32",
    INT32: "sort_chunk_int32",
    UINT32: "sort_chunk_uint32",
    BOOL: "sort_chunk_uint32",
}
MERGE_BLOCK = 16
"""Values per invocation of a merge: one step each, after a search of up to thirty steps."""
ALL_ONES = 0xFFFFFFFF


def _chunk(limits: Limits) -> int:
    """Return the number of values that are sorted by counting; doubling it saves one merge."""
    return 32 if limits.software else 128


def _keep(columns: int, attrs: Attrs) -> int:
    count = attrs["count"]
    return columns if count is None else attrs.as_int("count")


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, axis, op = inputs[0], attrs.as_int("axis"), attrs.as_str("kind")
    if x.dtype not in SORT_SHADERS:
        raise DTypeError(f"[{op}] expected {', '.join(SORT_SHADERS)}, got {x.dtype}; try vs.cast")
    keep = _keep(x.shape[axis], attrs)
    if not 0 <= keep <= x.shape[axis]:
        raise ShapeError(f"[{op}] expected k in 0..{x.shape[axis]}, got {keep}")
    return TensorType((*x.shape[:axis], keep, *x.shape[axis + 1 :]), x.dtype)


def _argsort_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    return TensorType(_infer(inputs, attrs).shape, INDEX)


def _order(x: NDArray, attrs: Attrs) -> NDArray:
    axis = attrs.as_int("axis")
    if attrs.as_bool("descending"):  # reverse equal values too, so that the sort stays stable
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return np.asarray(np.take(order, range(_keep(x.shape[axis], attrs)), axis))


def _sort_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    order = _order(inputs[0], attrs)
    return np.asarray(np.take_along_axis(inputs[0], order, attrs.as_int("axis")))


def _argsort_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return _order(inputs[0], attrs).astype(numpy_dtype(INDEX))


def _widths(columns: int, limits: Limits) -> list[int]:
    """Return the run width at the start of each merge."""
    widths, width = [], _chunk(limits)
    while width < columns:
        widths.append(width)
        width *= 2
    return widths


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    shape, axis = call.inputs[0].shape, call.attrs.as_int("axis")
    columns, inner = shape[axis], math.prod(shape[axis + 1 :])
    rows, keep = call.inputs[0].size // columns, call.output.shape[axis]
    widths = _widths(columns, call.limits)
    push = (
        *(("rows", rows), ("columns", columns), ("inner", inner), ("keep", keep)),
        ("takes_values", int(call.attrs.as_str("kind") == "sort")),
    )
    first = Dispatch(
        SORT_SHADERS[call.inputs[0].dtype],
        (0, SCRATCH if widths else OUTPUT),
        spread(rows * columns, call.limits),
        (
            *push,
            ("flip", ALL_ONES if call.attrs.as_bool("descending") else 0),
            ("is_last", int(not widths)),
            ("chunk", _chunk(call.limits)),
        ),
    )
    merges = []
    for number, width in enumerate(widths):
        source, target = SCRATCH - number % 2, SCRATCH - (number + 1) % 2
        is_last = width == widths[-1]
        blocks = -(-min(2 * width, keep) // MERGE_BLOCK)
        items = rows * -(-columns // (2 * width)) * blocks
        merges.append(
            Dispatch(
                "sort_merge",
                (source, 0, OUTPUT if is_last else target),
                spread(items, call.limits),
                (*push, ("is_last", int(is_last)), ("width", width), ("block", MERGE_BLOCK)),
                barrier=True,
            )
        )
    return (first, *merges)


def _scratch(call: Call) -> tuple[int, ...]:
    x = call.inputs[0]
    if call.output.size == 0:
        return ()
    columns, keep = (t.shape[call.attrs.as_int("axis")] for t in (x, call.output))
    # shaders/reduction/sort_runs.glsl: input of each merge
    words = [
        2 * (x.size // columns) * min(-(-columns // width) * min(width, keep), columns)
        for width in _widths(columns, call.limits)
    ]
    return tuple(max(sizes) for sizes in (words[::2], words[1::2]) if sizes)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    x = inputs[0]
    passes = max(1.0, math.log2(max(1, x.shape[attrs.as_int("axis")])) - 6)
    return Work(128.0 * x.size, 4.0 * passes * x.device_bytes)


_KERNEL = Kernel((*sorted(set(SORT_SHADERS.values())), "sort_merge"), _lower, _scratch)
for _name, _rule, _compute in (
    ("sort", _infer, _sort_reference),
    ("argsort", _argsort_infer, _argsort_reference),
):
    register(
        Op(
            _name,
            _rule,
            _compute,
            _KERNEL,
            attrs={
                "axis": Axis(),
                "descending": Flag(),
                "count": Nullable(Int(-LONG, LONG)),
                "kind": one_of(_name),
            },
            operands=(1, 1),
            work=_work,
        )
    )


def _sort(
    op: str,
    x: Tensor,
    axis: int,
    descending: bool,
    count: int | None,
    name: str | None,
) -> Tensor:
    if x.rank == 0:
        raise ShapeError(f"[{op}] expected a tensor with axes, got a scalar")
    attrs: dict[str, AttrValue] = {
        "axis": normalize_axis(op, axis, x.rank),
        "descending": bool(descending),
        "count": count,
        "kind": op,
    }
    return apply(op, (x,), attrs, name)


def sort(
    x: TensorLike, axis: int = -1, descending: bool = False, *, name: str | None = None
) -> Tensor:
    """Sort the values along an axis, as numpy.sort with kind="stable".

    NaN counts as largest; equal values, such as -0 and 0, are stable.
    """
    return _sort("sort", as_tensor(x), axis, descending, None, name)


def argsort(
    x: TensorLike, axis: int = -1, descending: bool = False, *, name: str | None = None
) -> Tensor:
    """Return the indices that sort the values along an axis, as numpy.argsort with kind="stable".

    NaN counts as largest; equal values are stable, in descending order too.
    """
    return _sort("argsort", as_tensor(x), axis, descending, None, name)


def topk(
    x: TensorLike, k: int, axis: int = -1, largest: bool = True, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest values along an axis, and their indices, as ONNX TopK.

    Values are sorted. Among equal values the lower index comes first; NaN counts as largest.

    Shapes
    ------
    x
        (..., n, ...)
    result
        Two tensors (..., k, ...).
    """
    tensor = as_tensor(x)
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool):
        raise ShapeError(f"[topk] expected an integer as k, got {k!r}")
    indices = _sort("argsort", tensor, axis, largest, int(k), name and f"{name}.indices")
    return take_along_axis(tensor, indices, axis, name=name), indices
