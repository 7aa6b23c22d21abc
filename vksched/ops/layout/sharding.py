"""Sharding rules of data movement ops: axes along which nothing moves can be sharded.

All ops are linear in the moved operands. Examples: tests/ir/test_sharding_rules.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ...ir.sharding_rule import (
    ANY,
    PARTIAL_SUM,
    REPLICATE,
    Factor,
    Sharded,
    aligned,
    all_partial_sums,
    linear_factors,
    row_factors,
    sharding,
    with_size,
)
from . import index as index
from . import pad as pad
from . import rearrange as rearrange
from . import scatter as scatter
from .slice import slice_ranges


@sharding("stop_gradient")
def _same(call: Sharded) -> Iterable[Factor]:
    yield from row_factors(call, range(call.output.rank))
    yield all_partial_sums(call)


@sharding("optimization_barrier")
def _after(call: Sharded) -> Iterable[Factor]:
    for axis, size in enumerate(call.output.shape):
        yield Factor((axis, ANY), axis, size)
    yield Factor((PARTIAL_SUM, ANY), PARTIAL_SUM)


@sharding("transpose")
def _transpose(call: Sharded) -> Iterable[Factor]:
    for axis, source in enumerate(call.attrs.as_ints("axes")):
        yield Factor((source,), axis, call.output.shape[axis])
    yield all_partial_sums(call)


@sharding("expand")
def _expand(call: Sharded) -> Iterable[Factor]:
    shape = call.output.shape
    for axis, size in enumerate(shape):
        form = aligned(call.inputs[0], call.output, axis)
        yield Factor((form,), axis, size, with_size(shape, axis))
    yield all_partial_sums(call)


@sharding("reshape")
def _reshape(call: Sharded) -> Iterable[Factor]:
    """Yield a factor for merged or split axes, sharded along the first of them."""
    before, after = call.inputs[0].shape, call.output.shape
    for first, last in groups(before, after):
        (own, inner), (new, inside) = _major(before, *first), _major(after, *last)
        if own is None or new is None:
            continue
        step = math.lcm(inner, inside)
        units = before[own] * inner // step
        yield Factor((own,), new, units, with_size(after, new, after[new] // units))
    yield all_partial_sums(call)


Axes = tuple[int, int]


def groups(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[Axes, Axes]]:
    """Yield the shortest axis ranges (begin, end) with equal element counts in both shapes."""
    if 0 in before:
        return
    i = j = 0
    while i < len(before) and j < len(after):
        begin, start = i, j
        left, right = before[i], after[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * before[i], i + 1
            else:
                right, j = right * after[j], j + 1
        yield (begin, i), (start, j)


def _major(shape: tuple[int, ...], begin: int, end: int) -> tuple[int | None, int]:
    """Return the first axis of a range with a size above 1, and its number of elements per
    index.
    """
    axis = next((a for a in range(begin, end) if shape[a] > 1), None)
    return axis, 1 if axis is None else math.prod(shape[axis + 1 : end])


@sharding("slice")
def _slice(call: Sharded) -> Iterable[Factor]:
    ranges, shape = slice_ranges(call.inputs[0].shape, call.attrs), call.inputs[0].shape
    yield from row_factors(call, (a for a, r in enumerate(ranges) if r == range(shape[a])))
    yield all_partial_sums(call)


@sharding("concat")
def _concat(call: Sharded) -> Iterable[Factor]:
    along = call.attrs.as_int("axis")
    for axis, size in enumerate(call.output.shape):
        if axis != along:
            yield Factor((axis,) * len(call.inputs), axis, size)
    yield all_partial_sums(call)


@sharding("pad")
def _pad(call: Sharded) -> Iterable[Factor]:
    ends = zip(call.attrs.as_ints("begins"), call.attrs.as_ints("ends"), strict=True)
    yield from row_factors(call, (axis for axis, pair in enumerate(ends) if pair == (0, 0)))
    if call.attrs["value"] == 0:
        yield all_partial_sums(call)


@sharding("roll")
def _roll(call: Sharded) -> Iterable[Factor]:
    moved = call.attrs.as_ints("axes")
    yield from row_factors(call, (axis for axis in range(call.output.rank) if axis not in moved))
    yield all_partial_sums(call)


@sharding("tril", "triu")
def _triangles(call: Sharded) -> Iterable[Factor]:
    yield from row_factors(call, range(call.output.rank - 2))
    yield all_partial_sums(call)


@sharding("gather")
def _gather(call: Sharded) -> Iterable[Factor]:
    (table, indices), axis = call.inputs, call.attrs.as_int("axis")
    for own, size in enumerate(indices.shape):
        yield Factor((REPLICATE, own), axis + own, size)
    for own, size in enumerate(table.shape):
        if own != axis:
            yield Factor((own, REPLICATE), own if own < axis else own - 1 + indices.rank, size)
    yield from linear_factors(call, 0)


@sharding("gather_elements")
def _gather_elements(call: Sharded) -> Iterable[Factor]:
    (table, indices), along = call.inputs, call.attrs.as_int("axis")
    for axis, size in enumerate(indices.shape):
        if axis == along:
            yield Factor((REPLICATE, axis), axis, size)
        elif table.shape[axis] == size:
            yield Factor((axis, axis), axis, size)
    yield from linear_factors(call, 0)


@sharding("gather_nd")
def _gather_nd(call: Sharded) -> Iterable[Factor]:
    (table, indices), batch = call.inputs, call.attrs.as_int("batch_dims")
    for axis, size in enumerate(indices.shape[:-1]):
        yield Factor((axis if axis < batch else REPLICATE, axis), axis, size)
    indexed = batch + indices.shape[-1]
    for own in range(indexed, table.rank):
        result = indices.rank - 1 + own - indexed
        yield Factor((own, REPLICATE), result, table.shape[own])
    yield from linear_factors(call, 0)


@sharding("one_hot")
def _one_hot(call: Sharded) -> Iterable[Factor]:
    new = call.attrs.as_int("axis")
    for own, size in enumerate(call.inputs[0].shape):
        yield Factor((own, REPLICATE), own if own < new else own + 1, size)


@sharding("scatter_elements")
def _scatter_elements(call: Sharded) -> Iterable[Factor]:
    (data, indices, _), along = call.inputs, call.attrs.as_int("axis")
    for axis, size in enumerate(data.shape):
        if axis != along and indices.shape[axis] == size:
            yield Factor((axis, axis, axis), axis, size)
    if call.attrs["reduction"] == "add" and indices.rank:
        yield Factor((PARTIAL_SUM, along, along), PARTIAL_SUM, indices.shape[along])


@sharding("scatter_nd")
def _scatter_nd(call: Sharded) -> Iterable[Factor]:
    data, indices, _ = call.inputs
    depth, lead = indices.shape[-1], indices.rank - 1
    for axis in range(depth, data.rank):
        yield Factor((axis, REPLICATE, lead + axis - depth), axis, data.shape[axis])
    if call.attrs["reduction"] == "add":
        for axis in range(lead):
            yield Factor((PARTIAL_SUM, axis, axis), PARTIAL_SUM, indices.shape[axis])


@sharding("dynamic_update_slice")
def _dynamic_update_slice(call: Sharded) -> Iterable[Factor]:
    (data, _, start), along = call.inputs, call.attrs.as_int("axis")
    for axis, size in enumerate(data.shape):
        if axis != along and not (axis == 0 and start.rank == 2):
            own = 0 if axis < min(start.rank, 1) else REPLICATE
            yield Factor((axis, axis, own), axis, size)
    yield Factor((PARTIAL_SUM, PARTIAL_SUM, REPLICATE), PARTIAL_SUM)
