"""Resampling along one axis: every result is a weighted sum of a few elements."""

from __future__ import annotations

import math

import numpy as np

from ...errors import DTypeError, ShapeError
from ...types import FLOAT32, INT32, NDArray, TensorType
from ..core.attrs import Attrs
from ..core.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ..core.parts import element_parts
from ..core.tensor import Tensor, apply, constant


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
        taken = np.take(x, indices[:, tap], axis, mode="clip")
        wide += np.where(weight == 0, 0, taken * weight)  # infinity times 0 would be NaN
    with np.errstate(over="ignore"):
        return wide.astype(x.dtype)


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
        work=_work,
        indices=(1,),
    )
)


def resample(
    x: Tensor, indices: NDArray, weights: NDArray, axis: int, name: str | None = None
) -> Tensor:
    """result[o, i, n] = sum over t of weights[i, t] * x[o, indices[i, t], n]; taps of weight 0 are
    not read. Indices are clamped to the axis.

    x: (..., size, ...), indices and weights: (out, taps) -> (..., out, ...).
    """
    taps = constant(np.asarray(indices, np.int32)), constant(np.asarray(weights, x.dtype))
    return apply("resample", (x, *taps), {"axis": axis}, name)
