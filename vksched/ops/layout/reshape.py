"""Layout ops: reshape, transpose, slice, concat, expand.

Views cost nothing; all others are one strided copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType

import numpy as np

from ...common.dtypes import (
    NDArray,
    TensorType,
    as_int,
    as_ints,
    as_shape,
    broadcast_shapes,
    contiguous_strides,
    normalize_axes,
    normalize_axis,
)
from ...common.errors import DTypeError, IndexOutOfRange, ShapeError
from ...ir.attr_domains import LONG, MANY, Axes, Axis, Dims
from ...ir.attrs import Attrs
from ...ir.native_program import NativeProgram
from ...ir.op import Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, register_method
from ..lowering.strides import as_u32, broadcast_strides
from . import transpose_tiled
from .native_copies import concat_program, copy_program, dense
from .strided_copy import COPIES, copy_strided


def _no_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(0.0, 0.0)


def _copy_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(0.0, 2.0 * output.device_bytes)


# -- reshape -----------------------------------------------------------------------------------


def _reshape_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    shape, size = list(attrs.as_ints("shape")), inputs[0].size
    if shape.count(-1) > 1 or any(d < -1 for d in shape):
        raise ShapeError(f"[reshape] expected at most one -1, got {tuple(shape)}")
    if -1 in shape:
        known = math.prod(d for d in shape if d != -1)
        if known == 0 or size % known:
            raise ShapeError(f"[reshape] cannot make {inputs[0].shape} into {tuple(shape)}")
        shape[shape.index(-1)] = size // known
    if math.prod(shape) != size:
        raise ShapeError(
            f"[reshape] expected {size} elements as in {inputs[0].shape}, got {tuple(shape)}"
        )
    return TensorType(tuple(shape), inputs[0].dtype)


def _reshape_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return inputs[0].reshape(attrs.as_ints("shape"))


register(
    Op(
        "reshape",
        _reshape_infer,
        _reshape_reference,
        kernel=None,
        attrs={"shape": Dims(low=-1)},
        operands=(1, 1),
        view=lambda inputs, attrs: 0,
        work=_no_work,
        any_dtype=True,
    )
)


# -- transpose ---------------------------------------------------------------------------------


def _transpose_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    axes, shape = attrs.as_ints("axes"), inputs[0].shape
    return TensorType(tuple(shape[a] for a in axes), inputs[0].dtype)


def _transpose_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return np.transpose(inputs[0], attrs.as_ints("axes"))


def _transpose_view(inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
    moved = [a for a in attrs.as_ints("axes") if inputs[0].shape[a] != 1]
    return 0 if moved == sorted(moved) else None


def _transpose_lower(call: Call) -> tuple[Dispatch, ...]:
    if call.variant in (transpose_tiled.TILED, transpose_tiled.SHARED):
        return transpose_tiled.lower(call)
    strides = contiguous_strides(call.inputs[0].shape)
    moved = tuple(strides[a] for a in call.attrs.as_ints("axes"))
    shape = call.output.shape
    return copy_strided(call, shape, 0, (0, moved), (0, contiguous_strides(shape)))


def _transpose_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    strides = contiguous_strides(inputs[0].shape)
    moved = 0, tuple(strides[a] for a in attrs.as_ints("axes"))
    return copy_program(inputs[0], output, output.shape, moved, dense(output.shape))


def _transpose_words(call: Call) -> Call | None:
    return as_u32(call, call.attrs.as_ints("axes")[-1:] == (call.output.rank - 1,))


register(
    Op(
        "transpose",
        _transpose_infer,
        _transpose_reference,
        Kernel(
            (*COPIES, *transpose_tiled.SHADERS),
            _transpose_lower,
            as_u32=_transpose_words,
            variants=transpose_tiled.variants,
        ),
        attrs={"axes": Axes(in_order=False, every=True)},
        operands=(1, 1),
        view=_transpose_view,
        work=_copy_work,
        native_program=_transpose_program,
        any_dtype=True,
    )
)


# -- concat ------------------------------------------------------------------------------------


def _concat_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    axis, first = attrs.as_int("axis"), inputs[0]
    for other in inputs[1:]:
        if other.dtype != first.dtype:
            raise DTypeError(f"[concat] expected {first.dtype}, got {other.dtype}; try vs.cast")
        rest = [t.shape[:axis] + t.shape[axis + 1 :] for t in (first, other)]
        if other.rank != first.rank or rest[0] != rest[1]:
            raise ShapeError(
                f"[concat] expected shapes equal but for axis {axis}, "
                f"got {first.shape} and {other.shape}"
            )
    total = sum(t.shape[axis] for t in inputs)
    return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


def _concat_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return np.concatenate(inputs, attrs.as_int("axis"))


def _concat_lower(call: Call) -> tuple[Dispatch, ...]:
    axis, strides = call.attrs.as_int("axis"), contiguous_strides(call.output.shape)
    out: list[Dispatch] = []
    at = 0
    for operand, type_ in enumerate(call.inputs):
        shape = type_.shape
        target = (at * strides[axis], strides)
        out += copy_strided(call, shape, operand, (0, contiguous_strides(shape)), target)
        at += shape[axis]
    return tuple(out)


def _concat_words(call: Call) -> Call | None:
    return as_u32(call, call.attrs.as_int("axis") < call.output.rank - 1)


register(
    Op(
        "concat",
        _concat_infer,
        _concat_reference,
        Kernel(COPIES, _concat_lower, as_u32=_concat_words),
        attrs={"axis": Axis()},
        operands=(1, MANY),
        work=_copy_work,
        native_program=lambda inputs, output, attrs: concat_program(
            inputs, output, attrs.as_int("axis")
        ),
        any_dtype=True,
    )
)


# -- expand ------------------------------------------------------------------------------------


def _expand_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    shape = attrs.as_ints("shape")
    if broadcast_shapes("expand", inputs[0].shape, shape) != shape:
        raise ShapeError(f"[expand] cannot broadcast {inputs[0].shape} to {shape}")
    return TensorType(shape, inputs[0].dtype)


def _expand_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return np.broadcast_to(inputs[0], attrs.as_ints("shape"))


def _expand_view(inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
    return 0 if inputs[0].size == math.prod(attrs.as_ints("shape")) else None


def _expand_lower(call: Call) -> tuple[Dispatch, ...]:
    shape = call.output.shape
    strides = broadcast_strides(call.inputs[0].shape, shape)
    return copy_strided(call, shape, 0, (0, strides), (0, contiguous_strides(shape)))


def _expand_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    shape = output.shape
    spread = 0, broadcast_strides(inputs[0].shape, shape)
    return copy_program(inputs[0], output, shape, spread, dense(shape))


def _expand_words(call: Call) -> Call | None:
    return as_u32(call, call.inputs[0].shape[-1:] == call.output.shape[-1:])


register(
    Op(
        "expand",
        _expand_infer,
        _expand_reference,
        Kernel(COPIES, _expand_lower, as_u32=_expand_words),
        attrs={"shape": Dims()},
        operands=(1, 1),
        view=_expand_view,
        work=_copy_work,
        native_program=_expand_program,
        any_dtype=True,
    )
)


# -- builders ----------------------------------------------------------------------------------


def reshape(x: TensorLike, shape: int | Sequence[int], *, name: str | None = None) -> Tensor:
    """Reshape to another shape, as numpy.reshape; one size may be -1. Returns a view."""
    return apply("reshape", (as_tensor(x),), {"shape": as_shape(shape)}, name)


def transpose(
    x: TensorLike, axes: Sequence[int] | None = None, *, name: str | None = None
) -> Tensor:
    """Permute axes, as numpy.transpose; None reverses them."""
    x = as_tensor(x)
    order = tuple(reversed(range(x.rank))) if axes is None else as_ints("transpose", "axes", axes)
    order = tuple(normalize_axis("transpose", a, x.rank) for a in order)
    return apply("transpose", (x,), {"axes": order}, name)


def slice_(
    x: TensorLike,
    starts: int | Sequence[int],
    stops: int | None | Sequence[int | None],
    axes: int | Sequence[int] | None = None,
    steps: int | Sequence[int] = 1,
    *,
    name: str | None = None,
) -> Tensor:
    """Return x[start:stop:step] along axes, with Python's slice semantics; `vs.slice`.

    Parameters
    ----------
    axes
        None selects the first axes.
    stops
        None extends to the end.
    """
    x = as_tensor(x)
    first = as_ints("slice", "starts", starts)
    last = _stops(stops)
    count = len(first)
    which = range(count) if axes is None else as_ints("slice", "axes", axes)
    step = as_ints("slice", "steps", steps)
    step = step * count if isinstance(steps, (int, np.integer)) else step
    if not len(last) == len(which) == len(step) == count:
        raise ShapeError(
            f"[slice] expected {count} stops, axes and steps as there are starts, "
            f"got {len(last)}, {len(which)} and {len(step)}"
        )
    along = tuple(normalize_axis("slice", a, x.rank) for a in which)
    attrs = {
        "axes": along,
        "starts": _clamp_to_int64(first),
        "stops": _clamp_to_int64(last),
        "steps": _clamp_to_int64(step),
    }
    return apply("slice", (x,), attrs, name)


def _clamp_to_int64(positions: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Clamp positions and steps to 64 bits."""
    return tuple(p if p is None else max(-LONG, min(LONG, p)) for p in positions)


def _stops(stops: object) -> tuple[int | None, ...]:
    items = stops if isinstance(stops, (Sequence, np.ndarray)) else (stops,)
    return tuple(None if s is None else as_int("slice", "stops", s) for s in items)


def _check_slice(key: slice) -> None:
    """Raise ShapeError unless a slice consists of integers or None and its step is not 0."""
    for what, value in (("start", key.start), ("stop", key.stop), ("step", key.step)):
        if value is not None and as_int("getitem", what, value) == 0 and what == "step":
            raise ShapeError("[getitem] expected a step other than 0, got 0")


def getitem(x: Tensor, key: object) -> Tensor:
    """Return x[key] for ints, slices, Ellipsis and None, as numpy; use `gather` for tensors."""
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > x.rank or sum(k is Ellipsis for k in keys) > 1:
        raise ShapeError(f"[getitem] too many indices for {x.type}: {key!r}")
    fill: list[object] = [slice(None)] * (x.rank - used)
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys[at : at + 1] = fill
    starts, stops, steps, axes, shape = [], [], [], [], []
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        size = x.shape[axis]
        if isinstance(k, (bool, EllipsisType)) or not isinstance(k, (int, np.integer, slice)):
            mask = getattr(k, "dtype", None) in ("bool", np.bool_) or isinstance(k, bool)
            raise ShapeError(
                f"[getitem] expected ints, slices, ... or None, got {k!r}; try "
                f"{'vs.where, or vs.nonzero and vs.gather_nd' if mask else 'vs.gather'}"
            )
        if isinstance(k, slice):
            _check_slice(k)
            selected = range(*k.indices(size))
            shape.append(len(selected))
            if selected != range(size):
                axes.append(axis)
                starts.append(
                    k.start if k.start is not None else (0 if selected.step > 0 else size - 1)
                )
                stops.append(k.stop)
                steps.append(selected.step)
        else:
            index = int(k)
            if not -size <= index < size:
                raise IndexOutOfRange(
                    f"[getitem] expected an index in {-size}..{size - 1} of axis {axis}, "
                    f"got {index}"
                )
            index %= size
            axes.append(axis)
            starts.append(index)
            stops.append(index + 1)
            steps.append(1)
        axis += 1
    taken_part = slice_(x, starts, stops, axes, steps) if axes else x
    return taken_part if taken_part.shape == tuple(shape) else reshape(taken_part, shape)


def concat(xs: Sequence[TensorLike], axis: int = 0, *, name: str | None = None) -> Tensor:
    """Concatenate tensors along an axis, as numpy.concatenate."""
    if not isinstance(xs, Sequence):
        raise ShapeError("[concat] expected a sequence of tensors, got one; try vs.concat([a, b])")
    tensors = tuple(as_tensor(x) for x in xs)
    if not tensors:
        raise ShapeError("[concat] expected at least one tensor, got none")
    if tensors[0].rank == 0:
        raise ShapeError("[concat] expected tensors with axes, got a scalar; try vs.reshape")
    at = normalize_axis("concat", axis, tensors[0].rank)
    return apply("concat", tensors, {"axis": at}, name)


def expand(x: TensorLike, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Repeat x along axes of size 1 and new leading axes, as numpy.broadcast_to."""
    return apply("expand", (as_tensor(x),), {"shape": as_shape(shape)}, name)


def expand_dims(x: TensorLike, axis: int, *, name: str | None = None) -> Tensor:
    """Insert an axis of size 1, as numpy.expand_dims. Returns a view."""
    x = as_tensor(x)
    at = normalize_axis("expand_dims", axis, x.rank + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]), name=name)


def squeeze(
    x: TensorLike, axes: int | Sequence[int] | None = None, *, name: str | None = None
) -> Tensor:
    """Remove axes of size 1, as numpy.squeeze. Returns a view."""
    x = as_tensor(x)
    if axes is None:
        gone = tuple(a for a, size in enumerate(x.shape) if size == 1)
    else:
        gone = normalize_axes("squeeze", axes, x.rank)
    if any(x.shape[a] != 1 for a in gone):
        raise ShapeError(f"[squeeze] expected axes of size 1, got {gone} of {x.shape}")
    return reshape(x, [s for a, s in enumerate(x.shape) if a not in gone], name=name)


register_method("reshape", reshape)
register_method("transpose", transpose)
register_method("getitem", getitem)
