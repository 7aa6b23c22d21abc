"""Rules for images of com.microsoft: crops, masked pools, NHWC layout."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .....common.dtypes import BOOL, INT32, NDArray, numpy_dtype
from .....ir.tensor import Tensor, constant
from .....ops import (
    cast,
    ceil,
    clip,
    cumprod,
    floor,
    full_like,
    gather,
    greater_equal,
    less_equal,
    logical_and,
    logical_or,
    max_pool,
    not_equal,
    reduce_max,
    reshape,
    transpose,
    where,
)
from ...nodes.node import NodeContext
from ...nodes.schemas import MICROSOFT
from ...nodes.values import Value
from ..attention_heads import number_of
from ..pool import window_of
from ..registry import rule
from ..window import channels_first, channels_last, ints, spatial_axes


@rule("NhwcMaxPool", types=(TensorProto.INT8, TensorProto.UINT8), domain=MICROSOFT)
def nhwc_max_pool(n: NodeContext) -> Value:
    result = max_pool(channels_first(n.tensor(0)), **window_of(n))  # type: ignore[arg-type]
    return Value(n.elem_type(0), tensor=channels_last(result))


# -- crops ---------------------------------------------------------------------------------------


@rule("CropAndResize", domain=MICROSOFT)
def crop_and_resize(n: NodeContext) -> Tensor:
    """Crop and resize image regions with aligned corners; samples outside have the extrapolation
    value.

    Shapes
    ------
    x: (images, channels, height, width)
    regions: (regions, 4)
    result: (regions, channels, *sizes)
    """
    x, regions, images = n.tensor(0), n.tensor(1), cast(n.tensor(2), INT32)
    counts, mode = n.ints(3), n.attr("mode", "bilinear")
    n.require_room(counts, x.dtype)
    batch, channels, height, width = x.shape
    table = reshape(channels_last(x), (batch * height * width, channels))
    first = reshape(images, (-1, 1, 1)) * (height * width)
    ats, insides = [], []
    for axis, (size, count) in enumerate(zip((height, width), counts, strict=True)):
        at = _places(regions[:, axis], regions[:, axis + 2], size, count)
        shape = (-1, count, 1) if axis == 0 else (-1, 1, count)
        inside = logical_and(
            greater_equal(at, number_of(0.0, at)), less_equal(at, number_of(size - 1.0, at))
        )
        insides.append(reshape(inside, shape))
        ats.append(reshape(clip(at, 0.0, size - 1.0), shape))
    y, x_at = ats

    def values(row: Tensor, column: Tensor) -> Tensor:
        return gather(table, first + cast(row, INT32) * width + cast(column, INT32), 0)

    if mode == "nearest":
        result = values(floor(y + 0.5), floor(x_at + 0.5))
    else:
        n.require(mode == "bilinear", f"mode {mode}")
        top, left = floor(y), floor(x_at)
        across = reshape(x_at - left, (*left.shape, 1))
        rows = []
        for row in (top, ceil(y)):
            before = values(row, left)
            rows.append(before + (values(row, ceil(x_at)) - before) * across)
        result = rows[0] + (rows[1] - rows[0]) * reshape(y - top, (*top.shape, 1))
    inside = logical_and(*insides)
    outside = number_of(n.attr("extrapolation_value", 0.0), result)
    result = where(reshape(inside, (*inside.shape, 1)), result, outside)
    return transpose(result, (0, 3, 1, 2))


def _places(start: Tensor, end: Tensor, size: int, count: int) -> Tensor:
    """Return the sample positions of each region along an axis: (regions, count)."""
    start, end = (reshape(t, (-1, 1)) * (size - 1.0) for t in (start, end))
    if count == 1:
        return (start + end) * 0.5
    steps = np.arange(count, dtype=numpy_dtype(start.dtype))
    result = start + constant(steps) * ((end - start) * (1 / (count - 1)))
    # the last sample is the corner itself, which rounding may miss
    return where(constant(steps == count - 1), end, result)


# -- masked pools -------------------------------------------------------------------------------


@rule("MaxpoolWithMask", domain=MICROSOFT)
def max_pool_with_mask(n: NodeContext) -> Tensor:
    """Return the maximum of each window, up to the first masked element of each of its lines.

    Windows are unfolded: (batch, channels, places, taps, places, taps, ...).
    """
    x, mask = n.tensor(0), not_equal(n.tensor(1), 0)
    axes = spatial_axes(n)
    kernel, strides = tuple(n.attr("kernel_shape")), ints(n, "strides", axes)
    pads = ints(n, "pads", 2 * axes, 0)
    if axes > 1:  # as in onnxruntime, the first element of a window is never masked
        never = np.zeros(x.shape[2:], bool)
        never[(0,) * axes] = True
        mask = logical_or(mask, constant(never))
    there: NDArray = np.ones((), bool)
    for axis in range(axes):
        size, at = n.shape(0)[2 + axis], 2 + 2 * axis
        count = (size + pads[axis] + pads[axes + axis] - kernel[axis]) // strides[axis] + 1
        n.require_room((*there.shape, count, kernel[axis]), INT32)
        first = np.arange(count, dtype=np.int32)[:, None] * strides[axis] - pads[axis]
        places = first + np.arange(kernel[axis], dtype=np.int32)
        there = there[..., None, None] & ((places >= 0) & (places < size))
        x, mask = (gather(t, places.clip(0, size - 1), at) for t in (x, mask))
    is_open = cumprod(cast(logical_or(mask, constant(~there)), x.dtype), -1)
    taken = logical_and(cast(is_open, BOOL), constant(there))
    lowest = full_like(x, float(np.finfo(numpy_dtype(x.dtype)).min))
    return reduce_max(where(taken, x, lowest), tuple(range(3, 3 + 2 * axes, 2)))
