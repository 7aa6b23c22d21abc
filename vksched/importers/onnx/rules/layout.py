"""Rules for transpose, slice, concat, split, pad and other ops that move elements."""

from __future__ import annotations

import math

from ....common.dtypes import broadcast_shapes, normalize_axis
from ....ir.tensor import Tensor
from ....ops import (
    concat,
    expand,
    pad,
    reshape,
    slice,
    split,
    squeeze,
    tile,
    transpose,
    tril,
    triu,
    unsqueeze,
)
from ..nodes.elements import ANY, to_storage
from ..nodes.node import NodeContext
from ..nodes.values import Value
from .registry import rule


def axes_of(n: NodeContext, index: int) -> tuple[int, ...] | None:
    """Return the axes of a node, which are an attribute or an operand depending on the opset, or
    None if the node has none.
    """
    if n.has_attr("axes"):
        return tuple(n.attr("axes"))
    return n.ints(index) if n.has(index) else None


@rule("Transpose", types=ANY)
def transpose_rule(n: NodeContext) -> Tensor:
    return transpose(n.tensor(0), n.attr("perm"))


@rule("Concat", types=ANY)
def concat_rule(n: NodeContext) -> Tensor:
    return concat(n.tensors(), n.attr("axis"))


@rule("Slice", "DynamicSlice", types=ANY)
def slice_rule(n: NodeContext) -> Tensor:
    rank = len(n.shape(0))
    if n.has_attr("starts"):
        starts, ends, axes = n.attr("starts"), n.attr("ends"), n.attr("axes")
        steps = None
    else:
        starts, ends = n.ints(1), n.ints(2)
        axes = n.ints(3) if n.has(3) else None
        steps = n.ints(4) if n.has(4) else None
    axes = tuple(range(len(starts))) if axes is None else axes
    axes = tuple(normalize_axis("slice", a, rank) for a in axes)
    return slice(n.tensor(0), starts, ends, axes, (1,) * len(axes) if steps is None else steps)


@rule("Split", types=ANY)
def split_rule(n: NodeContext) -> tuple[Tensor, ...]:
    axis = normalize_axis("split", n.attr("axis", 0), len(n.shape(0)))
    length, count = n.shape(0)[axis], len(n.outputs)
    if n.has_attr("split"):
        sizes = tuple(n.attr("split"))
    elif n.has(1):
        sizes = n.ints(1)
    else:
        count = n.attr("num_outputs", count)
        size = -(-length // count)
        sizes = tuple(max(0, min(size, length - i * size)) for i in range(count))
    return split(n.tensor(0), sizes, axis)


@rule("Squeeze", types=ANY)
def squeeze_rule(n: NodeContext) -> Value:
    """Squeeze axes in any order; before opset 13 shape inference is wrong if they are not
    sorted.
    """
    return Value(n.elem_type(0), tensor=squeeze(n.tensor(0), axes_of(n, 1)))


@rule("Unsqueeze", types=ANY)
def unsqueeze_rule(n: NodeContext) -> Tensor:
    axes = axes_of(n, 1)
    n.require(axes is not None, "no axes")
    assert axes is not None
    return unsqueeze(n.tensor(0), axes)


@rule("Flatten", types=ANY)
def flatten_rule(n: NodeContext) -> Tensor:
    shape, axis = n.shape(0), n.attr("axis", 1)
    n.require(-len(shape) <= axis <= len(shape), f"axis {axis} of {shape}")
    at = axis + len(shape) if axis < 0 else axis
    return reshape(n.tensor(0), (math.prod(shape[:at]), math.prod(shape[at:])))


@rule("Expand", types=ANY)
def expand_rule(n: NodeContext) -> Tensor:
    x = n.tensor(0)
    wanted = broadcast_shapes("expand", x.shape, n.ints(1))
    return x if wanted == x.shape else expand(x, wanted)


@rule("Tile", types=ANY)
def tile_rule(n: NodeContext) -> Tensor:
    repeats = n.ints(1)
    n.require(len(repeats) == len(n.shape(0)), f"{len(repeats)} repeats of {n.shape(0)}")
    return tile(n.tensor(0), repeats)


@rule("Pad", types=ANY)
def pad_rule(n: NodeContext) -> Tensor:
    mode, rank = n.attr("mode", "constant"), len(n.shape(0))
    value: object = 0
    axes = None
    if n.has_attr("pads"):
        pads = tuple(n.attr("pads"))
        value = n.attr("value", 0.0)
    else:
        pads = n.ints(1)
        if n.has(2) and mode == "constant":
            value = to_storage(n.known(2)).item()
        axes = n.ints(3) if n.has(3) else None
    count = rank if axes is None else len(axes)
    n.require(len(pads) == 2 * count, f"{len(pads)} pads for {count} axes")
    if not any(pads):
        return n.tensor(0)
    x = n.tensor(0)
    if x.dtype == "bool":
        value = bool(value)
    return pad(x, tuple(zip(pads[:count], pads[count:], strict=True)), mode, value, axes)  # type: ignore[arg-type]


@rule("Trilu", types=ANY)
def trilu(n: NodeContext) -> Tensor:
    diagonal = int(n.number(1, 0))
    return (triu if n.attr("upper", 1) else tril)(n.tensor(0), diagonal)
