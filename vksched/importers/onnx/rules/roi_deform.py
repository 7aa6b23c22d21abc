"""Rules for ops that sample images at computed positions: RoiAlign, DeformConv."""

from __future__ import annotations

import numpy as np

from ....common.dtypes import NDArray, numpy_dtype
from ....ir.tensor import Tensor, constant
from ....ops import abs as absolute
from ....ops import (
    clip,
    gather,
    greater_equal,
    grid_sample,
    less_equal,
    logical_and,
    matmul,
    maximum,
    pad,
    reduce_mean,
    reshape,
    stack,
    where,
)
from ..nodes.elements import PLAIN
from ..nodes.node import NodeContext
from .attention_heads import number_of
from .registry import rule
from .window import ints

MAX_ELEMENTS = 1 << 28
"""Maximum elements of intermediate results; larger calls run on the CPU, region by region."""


@rule("RoiAlign", types=PLAIN, rounds=True)
def roi_align(n: NodeContext) -> Tensor:
    """Multiply row weights, image and column weights: bilinear sampling is separable.

    y (regions, height, H) @ x (regions or 1, channels, H, W) @ x weights (regions, W, width)
    """
    x, regions, images = n.tensor(0), n.tensor(1), n.tensor(2)
    samples, kind = n.attr("sampling_ratio", 0), n.attr("mode", "avg")
    n.require(samples > 0, "numbers of samples that depend on the regions")
    n.require(kind == "avg", f"mode {kind}")
    batch, channels, height, width = x.shape
    counts = (n.attr("output_height", 1), n.attr("output_width", 1))
    many = regions.shape[0] * channels * max(counts[0] * width, height * width * (batch > 1))
    sampled = regions.shape[0] * samples * max(counts[0] * height, counts[1] * width)
    n.require(max(many, sampled) <= MAX_ELEMENTS, f"{max(many, sampled)} values between")
    half = n.attr("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    corners = regions * n.attr("spatial_scale", 1.0) - (0.5 if half else 0.0)
    weights = []
    for axis, (size, count) in enumerate(zip((height, width), counts, strict=True)):
        start, end = corners[:, 1 - axis : 2 - axis], corners[:, 3 - axis : 4 - axis]
        weights.append(_weights(start, end, size, count, samples, not half))
    # with a single image, all regions use it
    taken = x if batch == 1 else gather(x, images, 0)
    rows, columns = (reshape(w, (w.shape[0], 1, *w.shape[1:])) for w in weights)
    return matmul(matmul(rows, taken), columns, transpose_b=True)


def _weights(
    start: Tensor, end: Tensor, size: int, count: int, samples: int, min_one: bool
) -> Tensor:
    """Return the weight of each position of an axis in each cell of a region: (regions, count,
    size).

    start, end: (regions, 1). Positions more than one pixel outside are not sampled.
    """
    span = end - start
    if min_one:
        span = maximum(span, number_of(1.0, span))
    dtype = numpy_dtype(start.dtype)
    steps: NDArray = (np.arange(count * samples) + 0.5) / (count * samples)
    at = start + span * constant(steps.astype(dtype))
    inside = logical_and(
        greater_equal(at, number_of(-1.0, at)), less_equal(at, number_of(float(size), at))
    )
    shape = (at.shape[0], count, samples, 1)
    place = reshape(clip(at, 0.0, float(size - 1)), shape)
    away = absolute(place - constant(np.arange(size).astype(dtype)))
    hat = maximum(1.0 - away, number_of(0.0, away))
    nothing = number_of(0.0, hat)
    return reduce_mean(where(reshape(inside, shape), hat, nothing), 2)


@rule("DeformConv", rounds=True)
def deform_conv(n: NodeContext) -> Tensor:
    """Sample all taps of all positions as one image, then multiply by the weights."""
    x, w, offset = n.tensor(0), n.tensor(1), n.tensor(2)
    n.require(x.rank == 4, f"{x.rank - 2} spatial axes")
    batch, channels, *sizes = x.shape
    outs, inner, *kernel = w.shape
    shared, groups = n.attr("offset_group", 1), n.attr("group", 1)
    taps, results = kernel[0] * kernel[1], offset.shape[2:]
    strides, dilations, pads = ints(n, "strides", 2), ints(n, "dilations", 2), ints(n, "pads", 4, 0)
    # a power of two, so that low-precision positions survive the conversion to -1..1 and back
    wide = [1 << (size - 1).bit_length() for size in sizes]
    if wide != sizes:
        x = pad(x, [(0, 0), (0, 0), *((0, w - s) for w, s in zip(wide, sizes, strict=True))])
    moved = reshape(offset, (batch * shared, taps, 2, *results))
    coordinates = []
    for axis in (1, 0):  # the innermost axis comes first in a grid
        steps = np.arange(results[axis]) * strides[axis] - pads[axis]
        place = np.indices(kernel)[axis].reshape(-1, 1, 1) * dilations[axis]
        base = place + (steps[:, None] if axis == 0 else steps)
        at = moved[:, :, axis] + constant(base.astype(numpy_dtype(x.dtype)))
        # grid_sample maps edge to edge to -1..1
        coordinates.append((at * 2.0 + 1.0) * (1.0 / wide[axis]) - 1.0)
    grid = reshape(stack(coordinates, -1), (batch * shared, taps * results[0], results[1], 2))
    spread = reshape(x, (batch * shared, channels // shared, *wide))
    sampled = grid_sample(spread, grid, "linear", "zeros")
    places = results[0] * results[1]
    sampled = reshape(sampled, (batch, shared, channels // shared, taps, places))
    if n.has(4):
        sampled = sampled * reshape(n.tensor(4), (batch, shared, 1, taps, places))
    columns = reshape(sampled, (batch, groups, inner * taps, places))
    result = matmul(reshape(w, (groups, outs // groups, inner * taps)), columns)
    result = reshape(result, (batch, outs, *results))
    return result + reshape(n.tensor(3), (outs, 1, 1)) if n.has(3) else result
