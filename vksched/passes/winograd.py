"""Winograd: compute 3 x 3 convolutions with fewer multiplications.

    conv(x, w) 3 x 3, stride 1 -> winograd_conv(x, u), with the transformed weights u = G w G^T
                                  computed once, on the CPU
    conv(x, dequantize_linear(w)) -> winograd_conv(x, winograd_weights(...)), transformed in each
                                  run, so that the weights stay quantized

Transformed weights take 4 times the memory of the weights with tiles of 4, 1.8 times with tiles of
2; those of a graph take at most an eighth of the memory of the smallest device. Weights that are
not finite, or too large, are not transformed.

A convolution stays as it is if its static choice is a kernel for cooperative matrices, which is one
dispatch, or if a GPU with a known number of cores computes it faster directly: with few results its
cores wait, for each of the six dispatches of Winograd's algorithm anew. Examples:
tests/passes/test_winograd.py.
"""

from __future__ import annotations

import math
import weakref

import numpy as np

from ..common.dtypes import FLOAT32, WORD_BYTES, NDArray, TensorType
from ..common.errors import UnsupportedOp
from ..ir.attrs import Attrs, AttrValue
from ..ir.evaluate import compute
from ..ir.graph import Graph, Node
from ..ir.op import Call, Dispatch, get_op
from ..ir.precision import precision_attrs
from ..ops.conv.conv_implicit import implicit_variants
from ..ops.conv.winograd import TILES
from ..ops.linalg.matmul import step_cost
from ..ops.linalg.matmul_vec4 import vec4_time
from ..ops.linalg.split_k import BYTE_COST, LEVEL_COST, occupying_invocations
from ..ops.lowering.lower import choice_of, lower
from ..ops.lowering.variants import COOPMAT
from ..topology.limits import Limits
from .constraints import RewriteConstraints
from .rewrite import Rewriter, Rule, rewrite

SHARE_OF_MEMORY = 8
"""Transformed weights of a graph take at most 1 / SHARE_OF_MEMORY of the memory of a device."""
MIN_CHANNELS, MAX_CHANNELS = 8, 1 << 12
"""Minimum and maximum number of input channels. With fewer, the transforms of x outweigh the gain;
with more, one invocation could not check the sums for overflow.
"""
MAX_WEIGHT = 1e10
"""Maximum absolute weight; with activations up to 1e20 the transformed sums stay finite."""
TRANSFORM_COST = 1.2
"""Cost factor of the transforms of x and of the result, measured on both CPU drivers."""

MIN_PLACES = 512
"""Minimum number of results per output channel from which on weights are worth transforming in each
run: 36 or 16 values for nine weights, each written and read once.
"""

_points: weakref.WeakKeyDictionary[object, dict[int, NDArray]] = weakref.WeakKeyDictionary()
"""Transformed weights by the key of the weight and by tile; graphs share them."""


def convolve(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Compute convolutions by Winograd's algorithm if it needs fewer multiplications."""
    if constraints.limits is None:  # numpy multiplies faster than it transforms
        return graph
    return rewrite(graph, {"conv": (_winograd_rule(constraints, constraints.limits),)}, constraints)


def _winograd_rule(constraints: RewriteConstraints, limits: Limits) -> Rule:
    room = constraints.memory_bytes // SHARE_OF_MEMORY

    def rule(r: Rewriter, node: Node) -> int | None:
        nonlocal room
        x, w, *rest = node.inputs
        weights, widened = r.data(w), r[w].declaration.is_dequantize
        if not _fits(r, node) or not _in_range(r, w):
            return None
        if widened and node.type.size // r[w].type.shape[0] < MIN_PLACES:
            return None
        if not (r.is_free(w) and r.same_device(w)):
            return None
        direct = Call(tuple(r[i].type for i in node.inputs), node.type, node.attrs, limits)
        if choice_of(get_op("conv"), direct).variant.startswith(COOPMAT):
            return None
        direct_time = (
            min(implicit_variants(direct).values(), default=None) if limits.cores else None
        )
        for tile in _tiles(node, limits):
            needed = _points_type(r[w].type, tile).size * WORD_BYTES
            if needed > min(room, limits.max_buffer_bytes):
                continue
            attrs: dict[str, AttrValue] = {"tile": tile}
            attrs |= {name: node.attrs[name] for name in ("begin", "end")}
            attrs |= precision_attrs(node.attrs)
            types = [r[x].type, _points_type(r[w].type, tile), *(r[i].type for i in rest)]
            call = Call(tuple(types), node.type, Attrs(attrs), limits)
            dispatches = _dispatches(call)
            if not dispatches:
                continue
            if direct_time is not None and direct_time < _time(call, dispatches):
                continue
            if weights is None:
                points = r.emit("winograd_weights", (w,), {"tile": tile})
            else:
                room -= needed
                key, transformed = r.key(w), _points_of(weights, r.key(w), tile)
                points = r.constant(transformed, ("winograd", tile, key), "weight")
            return r.emit("winograd_conv", (x, points, *rest), attrs)
        return None

    return rule


def _points_type(weights: TensorType, tile: int) -> TensorType:
    return TensorType(((tile + 2) ** 2, *weights.shape[:2]), FLOAT32)


def _dispatches(call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a call; none if the op would fall back to numpy."""
    try:
        return lower(get_op("winograd_conv"), call).dispatches
    except UnsupportedOp:
        return ()


def _time(call: Call, dispatches: tuple[Dispatch, ...]) -> float:
    """Return the approximate time of a call on a GPU, in multiply-adds, like those of kernels."""
    images, rows, *sizes = call.output.shape
    points, _, channels = call.inputs[1].shape
    tiles = images * math.prod(-(-size // call.attrs.as_int("tile")) for size in sizes)
    product = vec4_time(rows, tiles, channels, points, call.limits)
    # transformed values are written and read, as are their sums
    moved = WORD_BYTES * points * (2 * tiles * (channels + rows) + rows * channels)
    waits = sum(dispatch.barrier for dispatch in dispatches)
    level = LEVEL_COST * occupying_invocations(call.limits)
    return product + BYTE_COST * moved + waits * level


def _fits(r: Rewriter, node: Node) -> bool:
    """Return True for a dense 2-D 3 x 3 convolution with enough channels."""
    attrs, w = node.attrs, r[node.inputs[1]].type
    ones = ("stride", "dilation")
    return (
        w.dtype == FLOAT32
        and w.shape[2:] == (3, 3)
        and all(attrs.as_ints(name) == (1, 1) for name in ones)
        and attrs.as_int("groups") == 1
        and MIN_CHANNELS <= w.shape[1] <= MAX_CHANNELS
        and w.shape[0] >= MIN_CHANNELS
        and node.type.size > 0
    )


def _in_range(r: Rewriter, w: int) -> bool:
    """Return True if weights are known and small; dequantized ones by their scale."""
    node, most = r[w], 2.0**16
    if node.declaration.is_dequantize:
        for part in (r.data(i) for i in node.inputs[1:]):  # a zero point, then a scale
            if part is None:
                return False
            largest = float(np.abs(part.astype(np.float64)).max(initial=0))
            most = most * largest if part.dtype == np.float32 else most + largest
        return most < MAX_WEIGHT
    weights = r.data(w)
    if weights is None or node.op != "weight":
        return False
    return bool(np.abs(weights).max(initial=0) < MAX_WEIGHT)  # False for NaN


def _tiles(node: Node, limits: Limits) -> tuple[int, ...]:
    """Return the tile sizes that cost less than direct convolution, the best first."""
    images, rows, *sizes = node.type.shape
    costs = {1: 9.0 * step_cost(rows, math.prod(sizes), images, limits)}
    for tile in TILES:
        tiles = images * math.prod(-(-size // tile) for size in sizes)
        points = (tile + 2) ** 2
        costs[tile] = TRANSFORM_COST * min(
            step_cost(rows, tiles, points, limits), step_cost(tiles, rows, points, limits)
        )
    return tuple(sorted((t for t in TILES if costs[t] < costs[1]), key=lambda t: costs[t]))


def _points_of(weights: NDArray, key: object, tile: int) -> NDArray:
    cached = _points.setdefault(key, {})
    if tile not in cached:
        cached[tile] = compute(get_op("winograd_weights"), (weights,), Attrs({"tile": tile}))
    return cached[tile]
