"""Reductions over any axes: sum, mean, max, min."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..errors import DTypeError, ShapeError
from ..types import FLOAT32, INT32, NDArray, TensorType, contiguous_strides, normalize_axes
from .op import OUTPUT, Attrs, AttrValue, Call, Dispatch, Kernel, Op, Work, register
from .strides import LOCAL_SIZE, LOOP_STEPS, collapse, pad, rows_launch
from .tensor import Tensor, TensorLike, apply, as_tensor

REDUCE_CODES = {"reduce_sum": 0, "reduce_mean": 1, "reduce_max": 2, "reduce_min": 3}
"""The values of OP in shaders/reduce.comp."""
PART_COLUMNS = LOOP_STEPS * LOCAL_SIZE
"""Columns of one dispatch; a longer row is several."""


def _infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    allowed = (FLOAT32,) if op == "reduce_mean" else (FLOAT32, INT32)

    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        x, axes = inputs[0], attrs.as_ints("axes")
        if x.dtype not in allowed:
            raise DTypeError(f"[{op}] expected {' or '.join(allowed)}, got {x.dtype}; try vs.cast")
        if op in ("reduce_max", "reduce_min") and 0 in (x.shape[a] for a in axes):
            raise ShapeError(f"[{op}] expected values along axes {axes}, got none in {x.shape}")
        if attrs.as_bool("keepdims"):
            return TensorType(tuple(1 if a in axes else s for a, s in enumerate(x.shape)), x.dtype)
        return TensorType(tuple(s for a, s in enumerate(x.shape) if a not in axes), x.dtype)

    return infer


def _sum(x: NDArray, axes: tuple[int, ...], keepdims: bool) -> NDArray:
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.sum(x, axis=axes, keepdims=keepdims, dtype=wide), x.dtype)


def _mean(x: NDArray, axes: tuple[int, ...], keepdims: bool) -> NDArray:
    count = math.prod(x.shape[a] for a in axes)
    total = np.sum(x, axis=axes, keepdims=keepdims, dtype=np.float64)
    return np.asarray(total / np.float64(count), x.dtype)


def _max(x: NDArray, axes: tuple[int, ...], keepdims: bool) -> NDArray:
    return np.asarray(np.max(x, axis=axes, keepdims=keepdims))


def _min(x: NDArray, axes: tuple[int, ...], keepdims: bool) -> NDArray:
    return np.asarray(np.min(x, axis=axes, keepdims=keepdims))


def _lower(op: str) -> Callable[[Call], tuple[Dispatch, ...]]:
    def lower(call: Call) -> tuple[Dispatch, ...]:
        rows, x, axes = call.output.size, call.inputs[0], call.attrs.as_ints("axes")
        if rows == 0:
            return ()
        strides = contiguous_strides(x.shape)
        kept = [a for a in range(x.rank) if a not in axes]
        kept_sizes, (kept_strides,) = collapse(
            tuple(x.shape[a] for a in kept), [tuple(strides[a] for a in kept)]
        )
        columns = math.prod(x.shape[a] for a in axes)
        sizes, (reduced_strides,) = collapse(
            tuple(x.shape[a] for a in axes), [tuple(strides[a] for a in axes)]
        )
        groups, constants = rows_launch(rows, columns, 1, call.limits)
        push = (
            ("rows", rows),
            ("columns", columns),
            ("kept_sizes", pad(kept_sizes, 3, 1)),
            ("kept_strides", pad(kept_strides, 4)),
            ("reduced_sizes", pad([max(1, s) for s in sizes], 3, 1)),
            ("reduced_strides", pad(reduced_strides, 4)),
        )
        starts = range(0, max(columns, 1), PART_COLUMNS)
        return tuple(
            Dispatch(
                f"reduce_{x.dtype}",
                (0, OUTPUT),
                groups,
                (*push, ("start", start), ("end", min(start + PART_COLUMNS, columns))),
                (
                    *(("OP", REDUCE_CODES[op]), *constants),
                    *(("IS_FIRST", int(start == 0)), ("IS_LAST", int(start == starts[-1]))),
                ),
                barrier=start > 0,
            )
            for start in starts
        )

    return lower


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(float(inputs[0].size), float(inputs[0].device_bytes + output.device_bytes))


def _register(op: str, compute: Callable[[NDArray, tuple[int, ...], bool], NDArray]) -> None:
    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        return compute(inputs[0], attrs.as_ints("axes"), attrs.as_bool("keepdims"))

    shaders = ("reduce_float32", "reduce_int32") if op != "reduce_mean" else ("reduce_float32",)
    register(Op(op, _infer(op), reference, Kernel(shaders, _lower(op)), work=_work))


for _name, _compute in (
    ("reduce_sum", _sum),
    ("reduce_mean", _mean),
    ("reduce_max", _max),
    ("reduce_min", _min),
):
    _register(_name, _compute)


def _reduce(
    op: str, x: TensorLike, axes: int | Sequence[int] | None, keepdims: bool, name: str | None
) -> Tensor:
    tensor = as_tensor(x)
    attrs: dict[str, AttrValue] = {
        "axes": normalize_axes(op, axes, tensor.rank),
        "keepdims": bool(keepdims),
    }
    return apply(op, (tensor,), attrs, name)


def reduce_sum(
    x: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Sum over one axis or several, or all, as numpy.sum; int32 wraps; nothing sums to 0."""
    return _reduce("reduce_sum", x, axis, keepdims, name)


def reduce_mean(
    x: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Mean of float32 over one axis, several or all, as numpy.mean; of nothing it is NaN."""
    return _reduce("reduce_mean", x, axis, keepdims, name)


def reduce_max(
    x: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Largest value over one axis, several or all, as numpy.max; of nothing a ShapeError."""
    return _reduce("reduce_max", x, axis, keepdims, name)


def reduce_min(
    x: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Least value over one axis, several or all, as numpy.min; of nothing a ShapeError."""
    return _reduce("reduce_min", x, axis, keepdims, name)
