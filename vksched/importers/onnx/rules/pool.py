"""Rules for pools."""

from __future__ import annotations

import math

from onnx import TensorProto

from ....ir.tensor import Tensor
from ....ops import (
    average_pool,
    global_average_pool,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
    max_pool_indices,
    pad,
    reshape,
    scatter_elements,
    zeros,
)
from ..nodes.elements import ANY, PLAIN
from ..nodes.node import NodeContext
from ..nodes.values import Value
from .registry import rule
from .window import ints, padding, spatial_axes


def window_of(n: NodeContext) -> dict[str, object]:
    """Return the window attributes of a pool as arguments of vksched's ops."""
    axes = spatial_axes(n)
    return {
        "kernel": tuple(n.attr("kernel_shape")),
        "stride": ints(n, "strides", axes),
        "padding": padding(n, axes),
        "dilation": ints(n, "dilations", axes),
        "ceil_mode": bool(n.attr("ceil_mode", 0)),
    }


def _pooled(n: NodeContext, result: Tensor) -> Tensor | Value:
    """Return a result whose last window starts within the input.

    Shape inference also counts a window that starts in the padding, for some opsets.
    """
    is_plain = n.attr("ceil_mode", 0) and n.elem_type(0) != TensorProto.BFLOAT16
    return Value(n.elem_type(0), tensor=result) if is_plain else result


def averages(n: NodeContext, x: Tensor) -> Tensor:
    """Return the means of the windows of x, with the node's attributes."""
    count = bool(n.attr("count_include_pad", 0))
    return average_pool(x, count_include_pad=count, **window_of(n))  # type: ignore[arg-type]


@rule("AveragePool", rounds=True)
def average_pool_rule(n: NodeContext) -> Tensor | Value:
    return _pooled(n, averages(n, n.tensor(0)))


@rule("LpPool", rounds=True)
def lp_pool_rule(n: NodeContext) -> Tensor | Value:
    result = lp_pool(n.tensor(0), p=float(n.attr("p", 2)), **window_of(n))  # type: ignore[arg-type]
    return _pooled(n, result)


@rule("MaxPool", types=PLAIN | {TensorProto.INT8, TensorProto.UINT8, TensorProto.BFLOAT16})
def max_pool_rule(n: NodeContext) -> list[Tensor | Value]:
    x, window = n.tensor(0), window_of(n)
    out = [_pooled(n, max_pool(x, **window))]  # type: ignore[arg-type]
    if n.wants(1):
        found = max_pool_indices(x, **window)  # type: ignore[arg-type]
        found = _column_major(found, x.shape[2:]) if n.attr("storage_order", 0) else found
        out.append(Value(TensorProto.INT64, tensor=found))
    return out


def _column_major(index: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Convert indices into (..., *sizes) from row-major to column-major order."""
    area = math.prod(sizes)
    moved = index - index % area
    for axis, size in enumerate(sizes):
        inner = math.prod(sizes[axis + 1 :])
        moved = moved + index // inner % size * math.prod(sizes[:axis])
    return moved


@rule("GlobalAveragePool", rounds=True)
def global_average_pool_rule(n: NodeContext) -> Tensor:
    return global_average_pool(n.tensor(0))


@rule("GlobalMaxPool", types=PLAIN | {TensorProto.BFLOAT16})
def global_max_pool_rule(n: NodeContext) -> Tensor:
    return global_max_pool(n.tensor(0))


@rule("GlobalLpPool", rounds=True)
def global_lp_pool_rule(n: NodeContext) -> Tensor:
    return global_lp_pool(n.tensor(0), float(n.attr("p", 2)))


@rule("MaxUnpool", types=ANY)
def max_unpool(n: NodeContext) -> Tensor:
    """Indices refer to the shape inferred from the window; a larger output_shape is padded."""
    x, index = n.tensor(0), n.tensor(1)
    axes = spatial_axes(n)
    kernel, strides = tuple(n.attr("kernel_shape")), ints(n, "strides", axes)
    pads = ints(n, "pads", 2 * axes, 0)
    sizes = tuple(
        (x.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[axes + i]
        for i in range(axes)
    )
    shape = (*x.shape[:2], *sizes)
    flat = scatter_elements(
        zeros(math.prod(shape), x.dtype), reshape(index, (-1,)), reshape(x, (-1,))
    )
    result = reshape(flat, shape)
    if n.has(2):
        missing = [w - s for w, s in zip(n.ints(2), shape, strict=True)]
        n.require(min(missing) >= 0, "an output_shape below that of its window")
        result = pad(result, [(0, more) for more in missing]) if any(missing) else result
    return result
