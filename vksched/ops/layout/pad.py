"""Padding: a constant around a copy, or gathered values of the tensor along each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...common.dtypes import (
    MAX_ELEMENTS,
    NDArray,
    TensorType,
    as_ints,
    check_constant_size,
    contiguous_strides,
    normalize_axis,
)
from ...common.errors import ShapeError, UnsupportedOp, VkschedError
from ...ir.attr_domains import Value, rank_of, wholes
from ...ir.attrs import Attrs
from ...ir.native_program import NativeProgram
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, one_value
from .index import gather
from .native_copies import Lie, copy_program, moves_words
from .reshape import slice_
from .strided_copy import COPIES, FILLS, copy_strided, fill_words

MODES = ("constant", "edge", "reflect", "wrap")


@dataclass(frozen=True, slots=True)
class _Inside:
    """The copied range of an axis: `count` elements from `start`, at `at` in a result of `size`."""

    start: int
    at: int
    count: int
    size: int


def _inside(size: int, begin: int, end: int) -> _Inside:
    start, stop = max(0, -begin), min(size, size + end)
    return _Inside(start, max(0, begin), max(0, stop - start), size + begin + end)


def _all_inside(shape: tuple[int, ...], attrs: Attrs) -> list[_Inside]:
    begins, ends = attrs.as_ints("begins"), attrs.as_ints("ends")
    return [_inside(*axis) for axis in zip(shape, begins, ends, strict=True)]


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x = inputs[0]
    shape = tuple(axis.size for axis in _all_inside(x.shape, attrs))
    if any(size < 0 for size in shape):
        raise ShapeError(
            f"[pad] expected to crop no more than there is of {x.shape}, got begins "
            f"{attrs.as_ints('begins')} and ends {attrs.as_ints('ends')}"
        )
    return TensorType(shape, x.dtype)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x = inputs[0]
    inside = _all_inside(x.shape, attrs)
    out = np.full([k.size for k in inside], attrs["value"], x.dtype)
    target = tuple(slice(k.at, k.at + k.count) for k in inside)
    out[target] = x[tuple(slice(k.start, k.start + k.count) for k in inside)]
    return out


def word_of(value: object) -> int:
    """Return a float, int or bool as the 32-bit word that a device stores.

    Raises
    ------
    UnsupportedOp
        An int does not fit one word.
    """
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            return int(np.float32(value).view(np.uint32))
    assert isinstance(value, (bool, int))
    if not -(2**31) <= value < 2**32:
        raise UnsupportedOp(f"{value} does not fit one 32-bit word")
    return int(value) & 0xFFFFFFFF


def _lower(call: Call) -> tuple[Dispatch, ...]:
    """Fill the result, then copy the inside over it."""
    out: list[Dispatch] = []
    count = call.output.size
    inside = _all_inside(call.inputs[0].shape, call.attrs)
    copied = math.prod(k.count for k in inside)
    if copied < count:
        out.append(fill_words(OUTPUT, count, word_of(call.attrs["value"]), call.limits))
    if copied:
        (copy,) = copy_strided(call, *_copied(call.inputs[0], call.output, inside))
        out.append(replace(copy, barrier=bool(out)))
    return tuple(out)


def _copied(
    x: TensorType, output: TensorType, inside: Sequence[_Inside]
) -> tuple[tuple[int, ...], int, Lie, Lie]:
    """Return the shape of the copied range, its operand, and its layouts in x and in the result."""
    strides, result_strides = contiguous_strides(x.shape), contiguous_strides(output.shape)
    first = sum(k.start * s for k, s in zip(inside, strides, strict=True))
    to = sum(k.at * s for k, s in zip(inside, result_strides, strict=True))
    return tuple(k.count for k in inside), 0, (first, strides), (to, result_strides)


def _native_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    inside, value = _all_inside(inputs[0].shape, attrs), attrs["value"]
    if not moves_words(inputs) or not all(k.count for k in inside):
        return None
    shape, _, x, result = _copied(inputs[0], output, inside)
    return copy_program(inputs[0], output, shape, x, result, word_of(value))


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(0.0, float(inputs[0].device_bytes + 2 * output.device_bytes))


_PADS = wholes(-MAX_ELEMENTS, MAX_ELEMENTS, rank_of())
register(
    Op(
        "pad",
        _infer,
        _reference,
        Kernel((*FILLS, *COPIES), _lower),
        attrs={"begins": _PADS, "ends": _PADS, "value": Value()},
        operands=(1, 1),
        work=_work,
        native_program=_native_program,
        any_dtype=True,
    )
)


def _source(size: int, begin: int, end: int, mode: str) -> NDArray:
    """Return the source index for every index of a padded axis."""
    inside = _inside(size, begin, end)
    check_constant_size("pad", inside.size)
    last = inside.count - 1
    at = np.arange(inside.size, dtype=np.int64) - inside.at
    if mode == "wrap":
        at = at % max(inside.count, 1)
    elif mode == "reflect" and last > 0:
        at = last - np.abs(at % (2 * last) - last)
    return np.asarray(np.clip(at, 0, max(last, 0)) + inside.start, np.int32)


def _along_axes(
    pads: int | Sequence[int] | Sequence[Sequence[int]], axes: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before and after each axis."""
    try:
        widths = np.asarray(pads if len(axes) else 0)  # numpy converts () to float
        pairs = widths if widths.ndim == 2 else np.broadcast_to(widths, (len(axes), 2))
        if pairs.shape != (len(axes), 2):
            raise ValueError
    except (ValueError, VkschedError):
        raise ShapeError(
            f"[pad] expected {len(axes)} pairs (begin, end), got {pads!r}; try ((1, 1), ...)"
        ) from None
    if pairs.size and pairs.dtype.kind not in "iu":
        raise ShapeError(f"[pad] expected integers as pairs (begin, end), got {pads!r}")
    begins, ends = [0] * rank, [0] * rank
    for axis, (begin, end) in zip(axes, pairs.tolist(), strict=True):
        begins[axis], ends[axis] = begin, end
    return tuple(begins), tuple(ends)


def pad(
    x: TensorLike,
    pads: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    value: float = 0,
    axes: Sequence[int] | None = None,
    *,
    name: str | None = None,
) -> Tensor:
    """Pad x, as numpy.pad and ONNX Pad; negative widths crop, before any padding.

    Parameters
    ----------
    pads
        (begin, end) for each of `axes` (None: all), or one pair or one number for all of them.
    mode
        "constant" (`value`), "edge", "reflect" (without the edge itself) or "wrap"; reflections and
        copies repeat if the padding exceeds the size of x.
    """
    tensor = as_tensor(x)
    rank = tensor.rank
    if mode not in MODES:
        raise ShapeError(f"[pad] expected a mode of {', '.join(MODES)}, got {mode!r}")
    along = (
        range(rank)
        if axes is None
        else [normalize_axis("pad", a, rank) for a in as_ints("pad", "axes", axes)]
    )
    if len(set(along)) != len(along):
        raise ShapeError(f"[pad] expected distinct axes, got {axes}")
    begins, ends = _along_axes(pads, along, rank)
    if mode == "constant" and max((*begins, *ends), default=0) > 0:
        fill_value = one_value("pad", value, tensor.dtype).item()
        attrs = {"begins": begins, "ends": ends, "value": fill_value}
        return apply("pad", (tensor,), attrs, name)
    inside = [_inside(*axis) for axis in zip(tensor.shape, begins, ends, strict=True)]
    for axis, k in enumerate(inside):
        if k.size < 0 or (k.count == 0 and k.size > 0):
            raise ShapeError(
                f"[pad] expected elements to repeat along axis {axis} of {tensor.shape}, got "
                f"pads {begins[axis]} and {ends[axis]}; try mode='constant'"
            )
    changed = [a for a in range(rank) if begins[a] or ends[a]]
    if all(inside[a].size == inside[a].count for a in changed):
        starts = [inside[a].start for a in changed]
        stops = [inside[a].start + inside[a].count for a in changed]
        return slice_(tensor, starts, stops, changed, name=name)
    for axis in changed:
        source = _source(tensor.shape[axis], begins[axis], ends[axis], mode)
        tensor = gather(tensor, source, axis, name=name if axis == changed[-1] else None)
    return tensor
