"""Indices of the maximum, the minimum, and nonzero values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...common.dtypes import (
    FLOAT32,
    INT32,
    INT64,
    MAX_ELEMENTS,
    UINT32,
    NDArray,
    TensorType,
    normalize_axis,
    numpy_dtype,
)
from ...common.errors import ShapeError
from ...ir.attr_domains import Axes, Flag, Int
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import Call, Op, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from .reduce import check_has_values, check_reduced, reduce_work, reduced_shape
from .reduce_launch import reduction

INDEX = INT64
"""Element type of returned indices."""
ARG_DTYPES = (FLOAT32, INT32, UINT32)

# -- argmax and argmin -------------------------------------------------------------------------


def _infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        check_reduced(op, inputs[0], attrs, ARG_DTYPES)
        check_has_values(op, inputs[0], attrs)
        if len(attrs.as_ints("axes")) not in (1, inputs[0].rank):
            raise ShapeError(
                f"[{op}] expected one axis or all of {inputs[0].shape}, got {attrs.as_ints('axes')}"
            )
        return TensorType(reduced_shape(inputs[0], attrs), INDEX)

    return infer


def _reference(
    compute: Callable[..., Any],
) -> Callable[[tuple[NDArray, ...], Attrs], NDArray]:
    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        x, axes = inputs[0], attrs.as_ints("axes")
        keepdims_shape = tuple(1 if a in axes else s for a, s in enumerate(x.shape))
        # one axis, or all axes flattened
        values, axis = (x, axes[0]) if len(axes) == 1 else (x.reshape(-1), 0)
        if attrs.as_bool("select_last_index"):
            result = values.shape[axis] - 1 - compute(np.flip(values, axis), axis=axis)
        else:
            result = compute(values, axis=axis)
        out = np.asarray(result).astype(numpy_dtype(INDEX))
        if attrs.as_bool("keepdims"):
            return out.reshape(keepdims_shape)
        return out.reshape(tuple(s for a, s in enumerate(x.shape) if a not in axes))

    return reference


def _option(call: Call) -> int:
    # for equal values the shader selects the largest column ^ option
    return 0 if call.attrs.as_bool("select_last_index") else 0xFFFFFFFF


for _name, _compute in (("argmax", np.argmax), ("argmin", np.argmin)):
    register(
        Op(
            _name,
            _infer(_name),
            _reference(_compute),
            reduction({d: f"reduce_{_name}_{d}" for d in ARG_DTYPES}, 2, _option),
            attrs={"axes": Axes(), "keepdims": Flag(), "select_last_index": Flag()},
            operands=(1, 1),
            work=reduce_work,
        )
    )


def _arg(
    op: str,
    x: TensorLike,
    axis: int | None,
    keepdims: bool,
    select_last_index: bool,
    name: str | None,
) -> Tensor:
    tensor = as_tensor(x)
    axes = tuple(range(tensor.rank)) if axis is None else (normalize_axis(op, axis, tensor.rank),)
    attrs: dict[str, AttrValue] = {
        "axes": axes if tensor.rank else (),
        "keepdims": bool(keepdims),
        "select_last_index": bool(select_last_index),
    }
    return apply(op, (tensor,), attrs, name)


def argmax(
    x: TensorLike,
    axis: int | None = None,
    keepdims: bool = False,
    select_last_index: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Return the index of the maximum along an axis, or in the flattened tensor, as numpy.argmax.

    NaN counts as maximum. Ties give the first index, or with select_last_index (as in ONNX ArgMax)
    the last.
    """
    return _arg("argmax", x, axis, keepdims, select_last_index, name)


def argmin(
    x: TensorLike,
    axis: int | None = None,
    keepdims: bool = False,
    select_last_index: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Return the index of the minimum along an axis, or in the flattened tensor, as numpy.argmin.

    NaN counts as minimum. Ties give the first index, or with select_last_index (as in ONNX ArgMin)
    the last.
    """
    return _arg("argmin", x, axis, keepdims, select_last_index, name)


# -- nonzero -----------------------------------------------------------------------------------


def _nonzero_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    return TensorType((inputs[0].rank, attrs.as_int("size")), INDEX)


def _nonzero_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, size = inputs[0], attrs.as_int("size")
    out = np.full((x.ndim, size), attrs.as_int("fill_value"), numpy_dtype(INDEX))
    if x.ndim:
        result = np.stack(np.nonzero(x))[:, :size]
        out[:, : result.shape[1]] = result
    return out


register(
    Op(
        "nonzero",
        _nonzero_infer,
        _nonzero_reference,
        None,
        attrs={"size": Int(0, MAX_ELEMENTS), "fill_value": Int()},
        operands=(1, 1),
        cpu_only_reason="its result depends on the values: it runs on numpy",
    )
)


def nonzero(
    x: TensorLike, size: int | None = None, fill_value: int = -1, *, name: str | None = None
) -> Tensor:
    """Return the indices of nonzero values, as numpy.nonzero, with a static result shape.

    As in JAX, values beyond `size` are dropped, and unused columns hold `fill_value`.

    Shapes
    ------
    x
        Any shape.
    result
        (rank, size), one column per value, in row-major order; the default size is x.size.
    """
    tensor = as_tensor(x)
    columns = tensor.size if size is None else size
    for what, value in (("size", columns), ("fill_value", fill_value)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise ShapeError(f"[nonzero] expected an integer as {what}, got {value!r}")
    if columns < 0:
        raise ShapeError(f"[nonzero] expected a size of 0 or more, got {columns}")
    if not -(2**31) <= fill_value < 2**31:
        raise ShapeError(f"[nonzero] expected a fill_value that fits 32 bits, got {fill_value}")
    return apply("nonzero", (tensor,), {"size": int(columns), "fill_value": int(fill_value)}, name)
