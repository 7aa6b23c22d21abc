"""The slice op: a range with a step along each axis; `reshape.slice_` is its builder."""

from __future__ import annotations

from typing import cast

import numpy as np

from ...common.dtypes import NDArray, TensorType, contiguous_strides
from ...common.errors import ShapeError
from ...ir.attr_domains import LONG, Axes, Int, Nullable, TupleOf, as_many_as, wholes
from ...ir.attrs import Attrs
from ...ir.native_program import NativeProgram
from ...ir.op import Call, Dispatch, Kernel, Op, Work, register
from ..lowering.strides import as_u32
from .native_copies import Lie, copy_program, dense
from .strided_copy import COPIES, copy_strided


def slice_ranges(shape: tuple[int, ...], attrs: Attrs) -> list[range]:
    """Return the index range of each axis; a stop of None differs from -1."""
    out = [range(size) for size in shape]
    stops = cast(tuple[int | None, ...], attrs.as_tuple("stops"))
    for axis, start, stop, step in zip(
        attrs.as_ints("axes"), attrs.as_ints("starts"), stops, attrs.as_ints("steps"), strict=True
    ):
        out[axis] = range(*slice(start, stop, step).indices(shape[axis]))
    return out


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    if 0 in attrs.as_ints("steps"):
        raise ShapeError(f"[slice] expected steps other than 0, got {attrs.as_ints('steps')}")
    return TensorType(tuple(len(r) for r in slice_ranges(inputs[0].shape, attrs)), inputs[0].dtype)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x = inputs[0]
    for axis, selected in enumerate(slice_ranges(x.shape, attrs)):
        if len(selected) != x.shape[axis] or selected.step != 1:
            x = (
                np.take(x, np.asarray(selected, np.intp), axis)
                if selected.step != 1
                else _cut(x, axis, selected)
            )
    return x


def _cut(x: NDArray, axis: int, taken: range) -> NDArray:
    return x[(slice(None),) * axis + (slice(taken.start, taken.start + len(taken)),)]


def _view(inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
    """Return the offset of a slice that is a view, i.e. whose elements are contiguous."""
    shape = inputs[0].shape
    ranges = slice_ranges(shape, attrs)
    offset, whole = 0, True
    for axis in range(len(shape) - 1, -1, -1):
        selected, stride = ranges[axis], contiguous_strides(shape)[axis]
        if len(selected) > 1 and (selected.step != 1 or not whole):
            return None
        offset += (selected.start if len(selected) else 0) * stride
        whole = whole and len(selected) == shape[axis]
    return offset


def _sliced(x: TensorType, attrs: Attrs) -> Lie:
    """Return the layout of the sliced elements in x."""
    ranges, strides = slice_ranges(x.shape, attrs), contiguous_strides(x.shape)
    start = sum(r.start * s for r, s in zip(ranges, strides, strict=True) if len(r))
    steps = (r.step if len(r) > 1 else 1 for r in ranges)
    return start, tuple(step * s for step, s in zip(steps, strides, strict=True))


def _lower(call: Call) -> tuple[Dispatch, ...]:
    shape = call.output.shape
    return copy_strided(call, shape, 0, _sliced(call.inputs[0], call.attrs), dense(shape))


def _native_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    shape = output.shape
    return copy_program(inputs[0], output, shape, _sliced(inputs[0], attrs), dense(shape))


def _words(call: Call) -> Call | None:
    shape = call.inputs[0].shape
    return as_u32(call, slice_ranges(shape, call.attrs)[-1:] == [range(s) for s in shape[-1:]])


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(0.0, 2.0 * output.device_bytes)


register(
    Op(
        "slice",
        _infer,
        _reference,
        Kernel(COPIES, _lower, as_u32=_words),
        attrs={
            "axes": Axes(in_order=False),
            "starts": wholes(-LONG, LONG, as_many_as("axes")),
            "stops": TupleOf(Nullable(Int(-LONG, LONG)), as_many_as("axes")),
            "steps": wholes(-LONG, LONG, as_many_as("axes")),
        },
        operands=(1, 1),
        view=_view,
        work=_work,
        native_program=_native_program,
        any_dtype=True,
    )
)
