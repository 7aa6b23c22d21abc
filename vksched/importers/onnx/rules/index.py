"""Rules for gather, scatter, one-hot and other ops that move elements by index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx.helper import make_node

from ....common.dtypes import FLOAT32, INT32, INT64, elements_of_word, normalize_axis
from ....ir.tensor import Tensor
from ....ops import (
    add,
    cast,
    concat,
    dequantize_linear,
    expand,
    gather,
    gather_elements,
    gather_nd,
    less,
    moveaxis,
    one_hot,
    remainder,
    reshape,
    scatter_elements,
    scatter_nd,
    slice,
    sub,
    transpose,
    where,
)
from ..nodes.elements import ANY, PLAIN, storage, to_storage
from ..nodes.node import NodeContext
from ..nodes.values import known
from .registry import rule


@rule("Gather", types=ANY)
def gather_rule(n: NodeContext) -> Tensor:
    table, indices = n.tensor(0), n.tensor(1)
    axis = normalize_axis("gather", n.attr("axis", 0), table.rank)
    if table.op == "dequantize_linear":
        found = _gather_widened(table, indices, axis)
        if found is not None:
            return found
    return gather(table, indices, axis)


def _gather_widened(table: Tensor, indices: Tensor, axis: int) -> Tensor | None:
    """Gather from a quantized weight before it is dequantized, so that only gathered elements are.

    Return None if this would split 32-bit words.
    """
    held, *parts = table.inputs
    if axis == table.rank - 1 or held.shape[-1] % elements_of_word(held.dtype):
        return None
    along = table.attrs.as_int("axis")
    picks = indices.reshape((-1,))
    if along == axis:
        parts = [part if part.size == 1 else gather(part, picks) for part in parts]
    scale = next((part for part in parts if part.dtype == FLOAT32), None)
    zero = next((part for part in parts if part.dtype == INT32), None)
    output = dequantize_linear(gather(held, picks, axis), scale, zero, axis=along)
    return output.reshape((*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]))


@rule("GatherElements", types=ANY)
def gather_elements_rule(n: NodeContext) -> Tensor:
    return gather_elements(n.tensor(0), n.tensor(1), n.attr("axis", 0))


@rule("GatherND", types=ANY)
def gather_nd_rule(n: NodeContext) -> Tensor:
    return gather_nd(n.tensor(0), n.tensor(1), n.attr("batch_dims", 0))


def _reduction(n: NodeContext) -> str:
    """Return the reduction of updates; element types without native storage support none."""
    how = str(n.attr("reduction", "none"))
    if how != "none":
        n.require_type(0, *PLAIN)
    return how


@rule("Scatter", "ScatterElements", types=ANY)
def scatter_elements_rule(n: NodeContext) -> Tensor:
    how = _reduction(n)
    return scatter_elements(n.tensor(0), n.tensor(1), n.tensor(2), n.attr("axis", 0), how)


@rule("ScatterND", types=ANY)
def scatter_nd_rule(n: NodeContext) -> Tensor:
    return scatter_nd(n.tensor(0), n.tensor(1), n.tensor(2), _reduction(n))


@rule("TensorScatter", types=ANY)
def tensor_scatter(n: NodeContext) -> Tensor:
    """Overwrite rows of a KV cache, from a position per batch on."""
    past, update = n.tensor(0), n.tensor(1)
    axis = normalize_axis("tensor_scatter", n.attr("axis", -2), past.rank)
    n.require(axis > 0, "axis 0, which is that of the batches")
    batches, size, count = past.shape[0], past.shape[axis], update.shape[axis]
    if not n.has(2):
        n.require(count <= size, f"{count} rows for a cache of {size}")
        return concat([update, slice(past, count, None, axis)], axis)
    steps = np.arange(count, dtype=np.int32)[None]
    at = add(reshape(cast(n.tensor(2), INT32), (batches, 1)), steps)
    if n.attr("mode", "linear") == "circular":
        at = remainder(at, np.int32(size))
    batch = np.broadcast_to(np.arange(batches, dtype=np.int32)[:, None, None], (batches, count, 1))
    where_to = concat([np.ascontiguousarray(batch), reshape(at, (batches, count, 1))], 2)
    new = scatter_nd(moveaxis(past, axis, 1), where_to, moveaxis(update, axis, 1))
    return moveaxis(new, 1, axis)


@rule("ReverseSequence", types=ANY)
def reverse_sequence(n: NodeContext) -> Tensor:
    x, lengths = n.tensor(0), cast(n.tensor(1), INT32)
    batch, time = n.attr("batch_axis", 1), n.attr("time_axis", 0)
    order = [batch, time, *(a for a in range(x.rank) if a not in (batch, time))]
    rows = transpose(x, order)
    batches, steps = rows.shape[:2]
    line = np.arange(steps, dtype=np.int32)[None]
    length = reshape(lengths, (batches, 1))
    mirrored = sub(sub(length, np.int32(1)), line)
    picked = where(less(line, length), mirrored, expand(line, (batches, steps)))
    rotated = gather_nd(rows, reshape(picked, (batches, steps, 1)), 1)
    return transpose(rotated, np.argsort(order).tolist())


@rule("OneHot", types=ANY)
def one_hot_rule(n: NodeContext) -> Tensor:
    depth, values = int(n.number(1)), n.known(2)
    n.require(values.size == 2, f"{values.size} values")
    off, on = to_storage(values).reshape(2).tolist()
    indices = n.tensor(0)
    if indices.dtype not in (INT32, INT64):
        indices = cast(indices, INT64)
    return one_hot(indices, depth, on, off, n.attr("axis", -1), storage(n.elem_type(2)))


@rule("Compress", types=ANY)
def compress(n: NodeContext) -> Tensor | Sequence[Tensor]:
    """Select elements by a condition.

    If the condition is not known during lowering, the CPU finds the indices. Nodes that depend on
    their number are lowered for that number, not for the condition.
    """
    axis = n.attr("axis")
    if n.value(1).is_known:
        taken = np.flatnonzero(n.known(1)).astype(np.int32)
        x = n.tensor(0)
        return gather(reshape(x, (-1,)), taken, 0) if axis is None else gather(x, taken, axis)
    data, condition = n.node.input[0], n.node.input[1]
    (result,) = n.outputs
    prefix = n.lowering.context.prefix(n.node)
    flat, found, line = f"{prefix}flat", f"{prefix}found", f"{prefix}line"
    nodes = [
        make_node("NonZero", [condition], [found], n.node.name),
        make_node("Reshape", [found, line], [f"{prefix}taken"]),
        make_node("Gather", [data, f"{prefix}taken"], [result], n.node.name, axis=axis or 0),
    ]
    if axis is None:
        nodes.insert(0, make_node("Reshape", [data, line], [flat]))
        nodes[-1].input[0] = flat
    n.lowering.splice(nodes, {line: known(np.array([-1], np.int64))})
    return []
