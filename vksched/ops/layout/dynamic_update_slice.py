"""In-place update of consecutive rows, such as new rows of a KV cache.

    data   a b c d e        start 1, rows x y        result   a x y d e

With starts (b, 2), the start and the slot of each example, the rows of example i replace rows of
the data at index `slot` of axis 0, so that b examples share data with any number of slots. Examples
of the same slot must have different rows.

Rows of float32 are rounded to data of float16, so a KV cache of float16 needs no cast of its new
rows. With the attribute overflow_nan, values beyond the range become NaN, as in `cast`. The op
cannot fail: rows outside of the data, and those of slots outside of it, are dropped. It may
therefore update a state in place, at the cost of the rows only, however large the state is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, INT64, NDArray, TensorType, normalize_axis
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Axis, Flag, Optional
from ...ir.attrs import Attrs
from ...ir.native_program import Loop, NativeProgram
from ...ir.op import (
    OUTPUT,
    Call,
    Dispatch,
    InPlace,
    Kernel,
    Op,
    Work,
    fp16_operands,
    register,
)
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...topology.limits import Limits
from ..lowering.strides import as_u32, spread
from .index import check_index_type
from .slots import with_slots
from .strided_copy import WHOLE_COPIES, copy_words

SHADERS = (
    "dynamic_update_slice",
    *(f"dynamic_update_slice_fp16{suffix}" for suffix in ("", "_rounded", "_rounded_nan")),
)
WRITE_SHADERS = SHADERS[:2]
"""The kernels that write rows of the type of the data."""
FUSED_SHADERS = {name: name.replace("slice", "slices") for name in SHADERS}
"""Kernels that update several states, by those that update one (plan/costs/fused_writes.py)."""
FUSED_STATES = 11
"""States of one dispatch of these kernels, as many as 128 bytes of push constants have offsets for.
"""
FUSED_BUFFERS = 1 + 2 * FUSED_STATES
"""Buffers that these kernels bind: the start, and the rows and the memory of each state."""


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    data, rows, start = inputs
    axis = attrs.as_int("axis")
    check_index_type("dynamic_update_slice", start)
    if rows.dtype != data.dtype and not _rounds(inputs):
        raise DTypeError(
            f"[dynamic_update_slice] expected {data.dtype} rows, got {rows.dtype}; try vs.cast"
        )
    if attrs.get("overflow_nan") and not _rounds(inputs):
        raise DTypeError(
            "[dynamic_update_slice] expected float32 rows for float16 with overflow_nan, got "
            f"{rows.dtype} for {data.dtype}"
        )
    has_slots = start.rank == 2 and axis > 0
    lead = (rows.shape[:1] if has_slots else data.shape[:1]) + data.shape[1:axis] if axis else ()
    others = (lead, data.shape[axis + 1 :])
    if rows.rank != data.rank or (rows.shape[:axis], rows.shape[axis + 1 :]) != others:
        raise ShapeError(
            f"[dynamic_update_slice] expected rows of shape {data.shape} but for axis {axis}, "
            f"got {rows.shape}"
        )
    examples = rows.shape[: min(axis, 1)]
    if start.shape not in ((), examples, *([(*examples, 2)] if has_slots else [])):
        raise ShapeError(
            "[dynamic_update_slice] expected one start, or one for each index of axis 0 "
            f"before the axis of rows, also with its slot, (n, 2), got {start.shape}"
        )
    return data


def _rounds(inputs: tuple[TensorType, ...]) -> bool:
    """Return True if rows of float32 are rounded to float16."""
    return inputs[0].dtype == FLOAT16 and inputs[1].dtype == FLOAT32


def _write(inputs: tuple[NDArray, ...], attrs: Attrs, target: NDArray) -> None:
    """Write the rows into an array that holds the data."""
    _, rows, start = inputs
    write_slices(target, rows, start, attrs.as_int("axis"), bool(attrs.get("overflow_nan")))


def write_slices(
    target: NDArray, rows: NDArray, start: NDArray, axis: int, overflow_nan: bool = False
) -> None:
    """Write rows into an array from a start on, or from several ones, also with slots, (b, 2)."""
    parts: Iterable[tuple[NDArray, NDArray]] = [(target, rows)]
    starts = start
    if start.ndim == 2:
        starts, slots = start.T
        inside = [i for i, slot in enumerate(slots.tolist()) if 0 <= slot < len(target)]
        parts, starts = [(target[slots[i]], rows[i]) for i in inside], starts[inside]
    elif start.ndim:
        parts = zip(target, rows, strict=True)
    along = axis - min(start.ndim, 1)
    for (to, new), first in zip(parts, starts.reshape(-1).tolist(), strict=True):
        size, count = to.shape[along], new.shape[along]
        begin, end = max(0, -first), min(count, size - first)
        if begin < end:
            lead = (slice(None),) * along
            at, selected = (*lead, slice(first + begin, first + end)), (*lead, slice(begin, end))
            with np.errstate(all="ignore"):  # values beyond float16 are infinite, as in a cast
                to[at] = new[selected]
            if overflow_nan:
                to[at][np.isinf(to[at])] = np.nan


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    out = np.array(inputs[0])
    _write(inputs, attrs, out)
    return out


def _native_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return the native program of the in-place write, for any type."""
    data, rows, start = inputs
    if _rounds(inputs):
        return None
    axis = attrs.as_int("axis")
    lines, itemsize = math.prod(rows.shape[:axis]), data.host_bytes // max(1, data.size)
    examples = start.shape[0] if start.rank else 1
    numbers = (
        *(lines, lines // max(1, examples), data.shape[axis], rows.shape[axis]),
        *(math.prod(data.shape[axis + 1 :]) * itemsize, int(start.dtype == INT64)),
        data.shape[0] if start.rank == 2 else 0,
    )
    return NativeProgram((Loop("dynamic_update_slice", (0, 1, 2), rows.size, numbers),))


def _lower(call: Call) -> tuple[Dispatch, ...]:
    data, rows, _ = call.inputs
    if data.size == 0:
        return ()
    copied = copy_words(0, call, apart=True)
    return copied if rows.size == 0 else (*copied, _write_dispatch(call))


def _write_dispatch(call: Call) -> Dispatch:
    """Return the dispatch that writes the rows."""
    data, rows, start = call.inputs
    axis = call.attrs.as_int("axis")
    slices, inner = math.prod(rows.shape[:axis]), math.prod(data.shape[axis + 1 :])
    many = rows.shape[axis]
    sizes: tuple[tuple[str, int], ...] = (
        ("inner", inner),
        ("many", many),
        ("size", data.shape[axis]),
        ("shared_slices", math.prod(rows.shape[min(start.rank, 1) : axis])),
        ("slots", data.shape[0] if start.rank == 2 else 0),
    )
    shader, count, push = "dynamic_update_slice", rows.size, sizes
    if data.dtype == FLOAT16:
        each = many * inner // 2 + 1  # words; the first and the last may have a separate half
        suffix = "_rounded" if _rounds(call.inputs) else ""
        suffix += "_nan" if call.attrs.get("overflow_nan") else ""
        shader, count, push = (
            f"dynamic_update_slice_fp16{suffix}",
            slices * each,
            (("each", each), ("slices", slices), *sizes),
        )
    groups = spread(count, call.limits)
    return Dispatch(shader, (1, 2, OUTPUT), groups, (("count", count), *push), barrier=True)


def write_dispatch(
    data: TensorType, rows: TensorType, start: TensorType, axis: int, limits: Limits
) -> Dispatch | None:
    """Return the dispatch that writes rows of the type of the data into the data's memory; None
    without values. Its operands are 1 for the rows, 2 for the start, and OUTPUT for the data.
    """
    call = Call((data, rows, start), data, Attrs({"axis": axis}), limits)
    return _write_dispatch(_words(call) or call) if data.size and rows.size else None


def _words(call: Call) -> Call | None:
    if _rounds(call.inputs):
        return None
    return as_u32(call, call.attrs.as_int("axis") < call.output.rank - 1)


def _fp16(call: Call) -> tuple[int, ...]:
    """Return the float16 operands to write as words; rows without whole words are written by
    halves.
    """
    return () if _words(call) else fp16_operands(call)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    moved = 2 * output.device_bytes + 2 * inputs[1].device_bytes
    return Work(0.0, float(moved))


register(
    Op(
        "dynamic_update_slice",
        _infer,
        _reference,
        Kernel(
            (*WHOLE_COPIES, *SHADERS, *FUSED_SHADERS.values()),
            _lower,
            as_u32=_words,
            takes_fp16=_fp16,
        ),
        attrs={"axis": Axis(), "overflow_nan": Optional(Flag())},
        operands=(3, 3),
        work=_work,
        indices=(2,),
        any_dtype=True,
        native_program=_native_program,
        in_place=InPlace(updated_operand=0, write=_write),
    )
)


def dynamic_update_slice(
    data: TensorLike,
    rows: TensorLike,
    start: TensorLike,
    axis: int = 0,
    *,
    slots: TensorLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Return `data` with rows replaced from `start` on, as ONNX TensorScatter.

    Rows outside of the data are dropped. As the next value of a state it is written in place.

    Shapes
    ------
    data
        (..., n, ...), with n on the axis.
    rows
        As data, with any size on the axis; float32 is rounded to data of float16. With slots,
        (b, ...).
    start
        () or, if `axis` is not 0, one per index of axis 0, (b,).
    slots
        The indices on axis 0 of the data to which the rows of each example go, (b,); rows of a slot
        outside of the data are dropped. Examples with the same slot must have different rows. None:
        rows i go to index i.
    """
    target = as_tensor(data)
    if target.rank == 0:
        raise ShapeError("[dynamic_update_slice] expected data with axes, got a scalar")
    attrs = {"axis": normalize_axis("dynamic_update_slice", axis, target.rank)}
    begin = start if slots is None else with_slots("dynamic_update_slice", start, slots)
    operands = (target, as_tensor(rows, like=target), as_tensor(begin))
    return apply("dynamic_update_slice", operands, attrs, name)
