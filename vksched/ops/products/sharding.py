"""Sharding rules of products: rows, columns, and the axis that is summed over. Examples:
tests/ops/test_sharding_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ...common.dtypes import TensorType
from ...ir.attrs import AttrValue
from ...ir.sharding_rule import (
    TERMS,
    WHOLE,
    Factor,
    Form,
    Sharded,
    aligned,
    linear_factors,
    sharding,
)
from . import attention as attention
from . import attention_rules as attention_rules
from . import beside as beside
from . import cached_attention as cached_attention
from . import grouped as grouped
from . import matmul as matmul
from . import packed as packed
from . import recurrent_op as recurrent_op
from . import rotary as rotary
from .blocks import format_of
from .recurrent_cell import cell_of


@sharding("matmul")
def _matmul(call: Sharded) -> Iterable[Factor]:
    a, b, *bias = call.inputs
    flipped, turned = call.attrs.as_bool("transpose_a"), call.attrs.as_bool("transpose_b")
    rows, inner = (a.rank - 1, a.rank - 2) if flipped else (a.rank - 2, a.rank - 1)
    depth, columns = (b.rank - 1, b.rank - 2) if turned else (b.rank - 2, b.rank - 1)
    rank, whole = call.output.rank, (WHOLE,) * len(bias)
    for axis in range(rank - 2):
        size = call.output.shape[axis]
        forms = tuple(_batch(t, axis, call.output) for t in (a, b))
        yield Factor((*forms, *whole), axis, size)
    yield Factor((rows, WHOLE, *whole), rank - 2, a.shape[rows])
    yield Factor((WHOLE, columns, *[0 for _ in bias]), rank - 1, b.shape[columns])
    if not bias:
        yield Factor((inner, depth), TERMS, a.shape[inner])
        yield from linear_factors(call, 0, 1)


def _batch(operand: TensorType, axis: int, result: TensorType) -> int | Form:
    own = axis - (result.rank - operand.rank)
    return own if own >= 0 and operand.shape[own] == result.shape[axis] != 1 else WHOLE


@sharding("attention")
def _attention(call: Sharded) -> Iterable[Factor]:
    """Examples, heads by those of k, and rows of q where nothing depends on their number."""
    q, k, _, *masks = call.inputs
    flags = call.attrs.as_ints("by_length")
    heads = [2 if flag else 1 for flag in flags]
    lengths = [1 if flag else 2 for flag in flags]
    scores = TensorType((q.shape[0], q.shape[heads[0]], q.shape[lengths[0]], k.shape[lengths[1]]))

    def of_masks(axis: int) -> list[int | Form]:
        return [aligned(mask, scores, axis) for mask in masks]

    yield Factor((0, 0, 0, *of_masks(0)), 0, q.shape[0])
    yield Factor((*heads[:3], *of_masks(1)), heads[3], k.shape[heads[1]])
    if call.attrs["left"] == call.attrs["right"] == -1:
        forms = lengths[0], WHOLE, WHOLE, *of_masks(2)
        yield Factor(forms, lengths[3], q.shape[lengths[0]])


@sharding("attention_gradient")
def _attention_gradient(call: Sharded) -> Iterable[Factor]:
    """Examples, and heads by those of k."""
    q, k = call.inputs[:2]
    scores = TensorType((*q.shape[:3], k.shape[2]))
    for axis, units in ((0, q.shape[0]), (1, k.shape[1])):
        masks = (aligned(mask, scores, axis) for mask in call.inputs[4:])
        yield Factor((*(axis,) * 4, *masks), axis + 1, units)


@sharding("cached_attention")
def _cached_attention(call: Sharded) -> Iterable[Factor]:
    """Examples, and heads by those of k."""
    q, k, _, used, *new = call.inputs
    flags = call.attrs.as_ints("by_length")
    heads = [2 if flag else 1 for flag in flags]
    own, same = (0 if used.rank else WHOLE), (0,) * len(new)
    yield Factor((0, 0, 0, own, *same), 0, q.shape[0])
    yield Factor((*heads[:3], WHOLE, *(1 for _ in new)), heads[3], k.shape[heads[1]])


@sharding("rotary_embedding")
def _rotary(call: Sharded) -> Iterable[Factor]:
    x, *caches = call.inputs
    yield Factor((0, *(0 if c.rank == 3 else WHOLE for c in caches)), 0, x.shape[0])
    yield Factor((1, *(WHOLE for _ in caches)), 1, x.shape[1])
    yield Factor((2, *(c.rank - 2 for c in caches)), 2, x.shape[2])


@sharding("unpack")
def _unpack(call: Sharded) -> Iterable[Factor]:
    """Rows, and whole tiles of them."""
    rank, columns = call.output.rank, call.output.shape[-1]
    whole = format_of(call.attrs["format"]).whole
    for axis, size in enumerate(call.output.shape[:-1]):
        yield Factor((axis,), axis, size)
    if columns % whole == 0:
        yield Factor((rank - 1,), rank - 1, columns // whole, partial(_columns, whole))


def _columns(whole: int, start: int, units: int) -> dict[str, AttrValue]:
    return {"columns": units * whole}


@sharding("to_q8_0", "from_q8_0")
def _rows(call: Sharded) -> Iterable[Factor]:
    """Rows."""
    for axis, size in enumerate(call.output.shape[:-1]):
        yield Factor((axis,), axis, size)


@sharding("linear_packed")
def _linear_packed(call: Sharded) -> Iterable[Factor]:
    x, _, *bias = call.inputs
    last, whole = x.rank - 1, (WHOLE,) * len(bias)
    for axis in range(last):
        yield Factor((axis, WHOLE, *whole), axis, x.shape[axis])
    yield Factor((WHOLE, 0, *[0 for _ in bias]), last, call.output.shape[-1])
    if not bias:
        tiles = format_of(call.attrs["format"]).whole
        if x.shape[-1] % tiles == 0:
            yield Factor((last, 1), TERMS, x.shape[-1] // tiles)
        yield from linear_factors(call, 0)


@sharding("linear_beside")
def _linear_beside(call: Sharded) -> Iterable[Factor]:
    for axis in range(call.inputs[0].rank - 1):
        whole = (WHOLE,) * (len(call.inputs) - 1)
        yield Factor((axis, *whole), axis, call.inputs[0].shape[axis])


@sharding("grouped_linear")
def _grouped_linear(call: Sharded) -> Iterable[Factor]:
    yield from _grouped(call)
    depth = call.inputs[0].shape[-1]
    yield Factor((call.inputs[0].rank - 1, 2, WHOLE), TERMS, depth)
    yield from linear_factors(call, 0, 1)


@sharding("grouped_packed")
def _grouped_packed(call: Sharded) -> Iterable[Factor]:
    yield from _grouped(call)
    x = call.inputs[0]
    tiles = format_of(call.attrs["format"]).whole
    if x.shape[-1] % tiles == 0:
        yield Factor((x.rank - 1, 2, WHOLE), TERMS, x.shape[-1] // tiles)
    yield from linear_factors(call, 0)


def _grouped(call: Sharded) -> Iterable[Factor]:
    """Rows, what each of them chose, and columns."""
    x, weight, chosen = call.inputs
    yield Factor((0, WHOLE, 0), 0, chosen.shape[0])
    yield Factor((1 if x.rank == 3 else WHOLE, WHOLE, 1), 1, chosen.shape[1])
    yield Factor((WHOLE, 1, WHOLE), 2, weight.shape[1])


@sharding("recurrent")
def _recurrent(call: Sharded) -> Iterable[Factor]:
    """Sequences; directions share nothing, but each has attributes of its own."""
    cell = cell_of(call.attrs)
    own, lengths = (WHOLE,) * cell.own, (0,) * cell.masked
    yield Factor((2, WHOLE, 2, *own, *lengths), 2, call.output.shape[2])
