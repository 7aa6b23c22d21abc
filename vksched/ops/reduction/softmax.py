"""Softmax and log-softmax along an axis, with an optional mask."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT32,
    FLOATS,
    NDArray,
    TensorType,
    broadcast_shapes,
    normalize_axis,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Axis
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, cut_leading
from ...ir.native_program import NativeProgram, one_loop
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..lowering.strides import broadcast_strides, collapse, pad
from ..lowering.vec4 import (
    ROWS,
    SUBGROUP,
    WORKGROUP,
    can_use_vec4,
    launch_rows,
    launch_subgroup_rows,
    row_variants,
    vec4s_per_lane,
)
from .layer_norm import check_row

PASSES = 3
"""Passes of the kernel over each row."""
MASK_RANK = 7
"""Maximum number of axes of a mask in the kernel."""


def _infer(op: str, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x = inputs[0]
    if x.dtype != FLOAT32:
        raise DTypeError(f"[{op}] expected float32, got {x.dtype}; try vs.cast")
    for mask in inputs[1:]:
        if mask.dtype not in (BOOL, x.dtype):
            raise DTypeError(
                f"[{op}] expected a mask of bool or {x.dtype}, got {mask.dtype}; try vs.cast"
            )
        if broadcast_shapes(op, x.shape, mask.shape) != x.shape:
            raise ShapeError(
                f"[{op}] expected a mask that broadcasts to {x.shape}, got {mask.shape}"
            )
    return x


def _masked(inputs: tuple[NDArray, ...]) -> NDArray:
    x = inputs[0]
    if len(inputs) == 1:
        return x
    mask = inputs[1]
    minus_infinity = np.asarray(-np.inf, x.dtype)
    return np.where(mask, x, minus_infinity) if mask.dtype == bool else x + mask


def _softmax_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, axis = _masked(inputs), attrs.as_int("axis")
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    e /= e.sum(axis=axis, keepdims=True)
    return np.asarray(e)


def _log_softmax_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, axis = _masked(inputs), attrs.as_int("axis")
    if x.size == 0:
        return x
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _sizes(call: Call) -> tuple[int, int, bool, int]:
    """Return columns, adjacent rows, True if vec4s span four of them, and the number of items."""
    shape, axis = call.output.shape, call.attrs.as_int("axis")
    columns, inner = shape[axis], math.prod(shape[axis + 1 :])
    across = inner > 1 and inner % 4 == 0 and len(call.inputs) == 1
    rows = call.output.size // max(columns, 1)
    return columns, inner, across, rows // 4 if across else rows


def _variants(call: Call) -> tuple[str, ...]:
    columns, inner, across, items = _sizes(call)
    rows = row_variants(columns, items, across, PASSES, call.limits)
    holds = inner == 1 and len(call.inputs) == 1 and vec4s_per_lane(columns, call.limits)
    return (SUBGROUP, *rows) if holds else rows


def _mask_push(call: Call) -> tuple[tuple[tuple[str, int | tuple[int, ...]], ...], bool]:
    """Return the push constants for the mask of a row, and True if masks are loaded as vec4s."""
    shape, axis = call.output.shape, call.attrs.as_int("axis")
    strides = broadcast_strides(call.inputs[1].shape, shape)
    outer_shape = shape[:axis] + shape[axis + 1 :]
    sizes, (outer_strides,) = collapse(outer_shape, [strides[:axis] + strides[axis + 1 :]])
    push = (
        ("mask_column", strides[axis]),
        ("mask_rank", len(sizes)),
        ("mask_sizes", pad(sizes, MASK_RANK - 1, 1)),
        ("mask_strides", pad(outer_strides, MASK_RANK)),
    )
    along = strides[axis] == 1 and can_use_vec4(shape[axis], [(1, *outer_strides)])
    return push, along


# -- numpy in pieces ---------------------------------------------------------------------------


def _shift(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> int:
    """Write the masked values minus their row maximum into out; return the axis."""
    x, axis = inputs[0], attrs.as_int("axis") - inputs[0].ndim
    if len(inputs) == 1:
        np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=out)
    else:
        np.copyto(out, _masked(inputs))
        out -= np.maximum.reduce(out, axis=axis, keepdims=True)
    return axis


def _softmax_into(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    axis = _shift(inputs, attrs, out)
    np.exp(out, out=out)
    out /= np.add.reduce(out, axis=axis, keepdims=True)


def _log_softmax_into(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    axis = _shift(inputs, attrs, out)
    out -= np.log(np.add.reduce(np.exp(out), axis=axis, keepdims=True))


def _native_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the native program for rows without a mask."""
    if len(inputs) > 1 or attrs.as_int("axis") != output.rank - 1:
        return None
    columns = output.shape[-1]
    rows = output.size // columns
    return one_loop("softmax", inputs, output, (rows, columns), rows=rows)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    whole = tuple(np.broadcast_to(x, out.shape) for x in inputs)
    yield from cut_leading(whole, out, attrs.as_int("axis"))


# -- devices -----------------------------------------------------------------------------------


def _lower(op: str, logarithm: bool, call: Call) -> tuple[Dispatch, ...]:
    """Lower a softmax.

    op: kernel name for vec4s, and prefix of errors. logarithm: compute the logarithm of the result.
    """
    if call.output.size == 0:
        return ()
    columns, inner, across, items = _sizes(call)
    check_row(op, columns, PASSES, call)
    if call.variant == SUBGROUP:
        groups, constants = launch_subgroup_rows(columns, items, call.limits)
    else:
        groups, constants = launch_rows(columns, items, across, call.variant, call.limits)
    push: tuple[tuple[str, int | tuple[int, ...]], ...] = (
        ("rows", call.output.size // columns),
        ("columns", columns),
        ("inner", inner),
    )
    constants += (("LOGARITHM", int(logarithm)),)
    suffix = {WORKGROUP: "_workgroup", SUBGROUP: "_subgroup"}.get(call.variant, "")
    if len(call.inputs) == 1:
        if call.variant == ROWS and inner == 1 and columns % 4 == 0:
            return (Dispatch(f"{op}_vec4", (0, OUTPUT), groups, push, constants[:1]),)
        return (Dispatch(f"softmax{suffix}", (0, OUTPUT), groups, push, constants),)
    mask_push, along = _mask_push(call)
    constants += (("ADDS", int(call.inputs[1].dtype != BOOL)), ("USE_VEC4", int(along)))
    shader = f"softmax_masked{suffix}"
    return (Dispatch(shader, (0, 1, OUTPUT), groups, (*push, *mask_push), constants),)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    masked = 1.0 * sum(mask.device_bytes for mask in inputs[1:])
    return Work(5.0 * output.size, 2.0 * output.device_bytes + masked)


SHADERS = (
    "softmax",
    "softmax_workgroup",
    "softmax_subgroup",
    "softmax_vec4",
    "log_softmax_vec4",
    "softmax_masked",
    "softmax_masked_workgroup",
)
register(
    Op(
        "softmax",
        partial(_infer, "softmax"),
        _softmax_reference,
        Kernel(SHADERS, partial(_lower, "softmax", False), variants=_variants),
        attrs={"axis": Axis()},
        operands=(1, 2),
        work=_work,
        cpu=CpuKernel(_softmax_into, _cut),
        native_program=_native_program,
    )
)
register(
    Op(
        "log_softmax",
        partial(_infer, "log_softmax"),
        _log_softmax_reference,
        Kernel(SHADERS, partial(_lower, "log_softmax", True), variants=_variants),
        attrs={"axis": Axis()},
        operands=(1, 2),
        work=_work,
        cpu=CpuKernel(_log_softmax_into, _cut),
    )
)


def as_mask(mask: TensorLike, like: Tensor) -> Tensor:
    """Return a mask as a tensor; Python floats get the dtype of `like`, bools are unchanged."""
    tensor = as_tensor(mask)
    if isinstance(mask, (Tensor, np.ndarray)) or tensor.dtype not in FLOATS:
        return tensor
    return as_tensor(mask, like=like)


def _apply(op: str, x: TensorLike, axis: int, mask: TensorLike | None, name: str | None) -> Tensor:
    tensor = as_tensor(x)
    if tensor.rank == 0:
        raise ShapeError(f"[{op}] expected a tensor with axes, got a scalar")
    at = normalize_axis(op, axis, tensor.rank)
    operands = (tensor,) if mask is None else (tensor, as_mask(mask, tensor))
    return apply(op, operands, {"axis": at}, name)


def softmax(
    x: TensorLike, axis: int = -1, mask: TensorLike | None = None, *, name: str | None = None
) -> Tensor:
    """Return exp(x) / sum(exp(x)) along an axis, as scipy.special.softmax, without overflow.

    Parameters
    ----------
    mask
        Broadcasts to x. bool excludes elements that are False, float32 is added to x. Fully masked
        rows are NaN.
    """
    return _apply("softmax", x, axis, mask, name)


def log_softmax(
    x: TensorLike, axis: int = -1, mask: TensorLike | None = None, *, name: str | None = None
) -> Tensor:
    """Return x - log(sum(exp(x))) along an axis, as ONNX LogSoftmax, exact for values of any size.

    Parameters
    ----------
    mask
        As in `softmax`; masked elements are -infinity.
    """
    return _apply("log_softmax", x, axis, mask, name)
