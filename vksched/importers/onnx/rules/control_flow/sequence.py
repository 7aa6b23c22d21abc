"""Rules for sequences: lists of values during lowering, without work at run time.

If a position can vary between runs, the op runs on the CPU, and later nodes are lowered for its
result.
"""

from __future__ import annotations

import numpy as np

from .....common.dtypes import normalize_axis
from .....common.errors import UnsupportedOp
from .....ir.tensor import Tensor
from .....ops import concat, reshape, split, stack
from ...nodes.elements import ANY, EVERY
from ...nodes.node import NodeContext
from ...nodes.values import Value, known
from ..registry import rule


def sequence_of(items: tuple[Value, ...] | list[Value]) -> Value:
    """Return values as a sequence."""
    return Value(0, items=tuple(items))


def _items(n: NodeContext, index: int = 0) -> tuple[Value, ...]:
    items = n.value(index).items
    if items is None:
        raise UnsupportedOp(f"{n.op_type} of a value that is not a sequence")
    return items


def _position(n: NodeContext, index: int, count: int) -> int:
    """Return a position below count; negative ones count from the end."""
    if not n.value(index).is_known:
        raise UnsupportedOp(f"{n.op_type} at a position that varies between runs")
    at = int(n.number(index))
    n.require(-count <= at < count, f"position {at} among {count}")
    return at + count if at < 0 else at


@rule("SequenceEmpty", types=EVERY)
def sequence_empty(n: NodeContext) -> Value:
    return sequence_of(())


@rule("SequenceConstruct", types=EVERY)
def sequence_construct(n: NodeContext) -> Value:
    return sequence_of([n.value(i) for i in range(len(n.inputs))])


@rule("SequenceLength", types=EVERY)
def sequence_length(n: NodeContext) -> Value:
    return known(np.array(len(_items(n)), np.int64))


@rule("SequenceAt", types=EVERY)
def sequence_at(n: NodeContext) -> Value:
    items = _items(n)
    return items[_position(n, 1, len(items))]


@rule("SequenceInsert", types=EVERY)
def sequence_insert(n: NodeContext) -> Value:
    items = _items(n)
    at = len(items)
    if n.has(2) and n.value(2).is_known and int(n.number(2)) == at:
        pass  # the end is a valid position, too
    elif n.has(2):
        at = _position(n, 2, at)
    return sequence_of([*items[:at], n.value(1), *items[at:]])


@rule("SequenceErase", types=EVERY)
def sequence_erase(n: NodeContext) -> Value:
    items = _items(n)
    at = _position(n, 1, len(items)) if n.has(1) else len(items) - 1
    n.require(bool(items), "an empty sequence")
    return sequence_of([*items[:at], *items[at + 1 :]])


@rule("SplitToSequence", types=ANY)
def split_to_sequence(n: NodeContext) -> Value:
    x = n.tensor(0)
    axis = normalize_axis("split", n.attr("axis", 0), x.rank)
    length = x.shape[axis]
    if not n.has(1):
        sizes: tuple[int, ...] = (1,) * length
    elif n.shape(1) == ():
        size = int(n.number(1))
        n.require(size > 0, f"parts of {size}")
        sizes = tuple(min(size, length - start) for start in range(0, length, size))
    else:
        sizes = n.ints(1)
    parts = list(split(x, sizes, axis)) if sizes else []
    if not n.has(1) and not n.attr("keepdims", 1):
        parts = [reshape(p, (*p.shape[:axis], *p.shape[axis + 1 :])) for p in parts]
    return sequence_of([Value(n.elem_type(0), tensor=part) for part in parts])


@rule("ConcatFromSequence", types=ANY)
def concat_from_sequence(n: NodeContext) -> Value | Tensor:
    items = _items(n)
    n.require(bool(items), "an empty sequence")
    tensors = [n.lowering.tensor(item) for item in items]
    join = stack if n.attr("new_axis", 0) else concat
    return Value(items[0].elem_type, tensor=join(tensors, n.attr("axis")))
