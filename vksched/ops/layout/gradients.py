"""Gradient rules of data movement ops.

    op             gradient
    slice          pad, reversed for negative steps
    gather         scatter with "add": elements that were read twice get both
    scatter        gather, and 0 where the data was overwritten

Except scatters with "mul", "max" or "min", all are linear; so are their gradients. Examples:
tests/autograd/test_rules_moves.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...common.dtypes import INT32, numpy_dtype
from ...ir.attrs import AttrValue
from ...ir.tensor import Tensor, apply, as_tensor, constant
from ...ir.vjp import VjpContext, VjpResult, gradient, sum_to
from ..elementwise.binary import equal, greater_equal, less, logical_and, mul
from ..elementwise.select import cast, where
from .dynamic_update_slice import dynamic_update_slice
from .index import gather, gather_elements, gather_nd, one_hot
from .pad import pad
from .rearrange import flip, moveaxis, roll, tril, triu
from .reshape import concat, expand, reshape, slice_, transpose
from .scatter import scatter_elements, scatter_nd
from .slice import slice_ranges


def _full(shape: Sequence[int], value: int, dtype: str) -> Tensor:
    scalar = np.asarray(value, numpy_dtype(dtype)).item()
    return apply("full", (), {"shape": tuple(shape), "value": scalar, "dtype": dtype})


def _zeros(like: Tensor) -> Tensor:
    return _full(like.shape, 0, like.dtype)


# -- layout --------------------------------------------------------------------------------------


@gradient("reshape")
def _reshape(call: VjpContext) -> VjpResult:
    return (reshape(call.grad, call.inputs[0].shape),)


@gradient("transpose")
def _transpose(call: VjpContext) -> VjpResult:
    axes = call.attrs.as_ints("axes")
    return (transpose(call.grad, sorted(range(len(axes)), key=axes.__getitem__)),)


@gradient("slice")
def _slice(call: VjpContext) -> VjpResult:
    """Insert zeros between the elements for steps above 1, then pad."""
    x, g = call.inputs[0], call.grad
    ranges = slice_ranges(x.shape, call.attrs)
    backwards = [a for a, selected in enumerate(ranges) if selected.step < 0 and len(selected) > 1]
    g = flip(g, backwards) if backwards else g
    around: list[tuple[int, int]] = []
    for axis, selected in enumerate(ranges):
        size, count = x.shape[axis], len(selected)
        first = min(selected[0], selected[-1]) if count else 0
        step = abs(selected.step) if count > 1 else 1
        around.append((first, size - first - count * step))
        if step > 1:
            before, after = g.shape[:axis], g.shape[axis + 1 :]
            lines = reshape(g, (math.prod(before), count, 1, math.prod(after)))
            apart = pad(lines, [(0, step - 1)], axes=[2])
            g = reshape(apart, (*before, count * step, *after))
    return (pad(g, around) if any(map(any, around)) else g,)


@gradient("concat")
def _concat(call: VjpContext) -> VjpResult:
    axis, at, parts = call.attrs.as_int("axis"), 0, []
    for x in call.inputs:
        size = x.shape[axis]
        whole = x.shape == call.grad.shape
        parts.append(call.grad if whole else slice_(call.grad, at, at + size, axis))
        at += size
    return tuple(parts)


@gradient("expand")
def _expand(call: VjpContext) -> VjpResult:
    return (sum_to(call.grad, call.inputs[0].shape),)


@gradient("pad")
def _pad(call: VjpContext) -> VjpResult:
    begins, ends = call.attrs.as_ints("begins"), call.attrs.as_ints("ends")
    if not call.inputs[0].rank:
        return (call.grad,)
    return (pad(call.grad, [(-b, -e) for b, e in zip(begins, ends, strict=True)]),)


@gradient("roll")
def _roll(call: VjpContext) -> VjpResult:
    shifts, axes = call.attrs.as_ints("shifts"), call.attrs.as_ints("axes")
    return (roll(call.grad, [-s for s in shifts], axes),)


@gradient("triu")
def _triu(call: VjpContext) -> VjpResult:
    return (triu(call.grad, call.attrs.as_int("k")),)


@gradient("tril")
def _tril(call: VjpContext) -> VjpResult:
    return (tril(call.grad, call.attrs.as_int("k")),)


# -- index ---------------------------------------------------------------------------------------


@gradient("gather")
def _gather(call: VjpContext) -> VjpResult:
    """Scatter whole rows along the first axis; along other axes scatter single elements."""
    (table, indices), axis, g = call.inputs, call.attrs.as_int("axis"), call.grad
    if axis == 0:
        count = indices.size
        rows = reshape(g, (count, *table.shape[1:]))
        return scatter_nd(_zeros(table), reshape(indices, (count, 1)), rows, "add"), None
    before, after = math.prod(table.shape[:axis]), math.prod(table.shape[axis + 1 :])
    lines = before, indices.size, after
    zeros = _full((before, table.shape[axis], after), 0, table.dtype)
    where_to = expand(reshape(indices, (1, indices.size, 1)), lines)
    added = scatter_elements(zeros, where_to, reshape(g, lines), 1, "add")
    return reshape(added, table.shape), None


@gradient("gather_elements")
def _gather_elements(call: VjpContext) -> VjpResult:
    (table, indices), axis = call.inputs, call.attrs.as_int("axis")
    return scatter_elements(_zeros(table), indices, call.grad, axis, "add"), None


@gradient("gather_nd")
def _gather_nd(call: VjpContext) -> VjpResult:
    """Convert the batch position to one more index of each tuple."""
    (table, indices), batch, g = call.inputs, call.attrs.as_int("batch_dims"), call.grad
    if batch == 0:
        return scatter_nd(_zeros(table), indices, g, "add"), None
    count, depth = math.prod(table.shape[:batch]), indices.shape[-1]
    rest = table.shape[batch + depth :]
    each = math.prod(indices.shape[batch:-1])
    kind = numpy_dtype(indices.dtype)
    number = expand(constant(np.arange(count, dtype=kind).reshape(-1, 1, 1)), (count, each, 1))
    tuples = concat([number, reshape(indices, (count, each, depth))], 2)
    zeros = _full((count, *table.shape[batch:]), 0, table.dtype)
    added = scatter_nd(zeros, tuples, reshape(g, (count, each, *rest)), "add")
    return reshape(added, table.shape), None


@gradient("one_hot")
def _one_hot(call: VjpContext) -> VjpResult:
    indices, values = call.inputs
    axis, depth = call.attrs.as_int("axis"), call.attrs.as_int("depth")
    sums = [
        sum_to(mul(call.grad, one_hot(indices, depth, on, 1 - on, axis, values.dtype)), ())
        for on in (0, 1)
    ]
    return None, concat([reshape(s, (1,)) for s in sums])


# -- dynamic_update_slice -------------------------------------------------------------------------


@gradient("dynamic_update_slice")
def _dynamic_update_slice(call: VjpContext) -> VjpResult:
    """Return gradients; dropped rows have none."""
    (data, rows, start), g, axis = call.inputs, call.grad, call.attrs.as_int("axis")
    size, count = data.shape[axis], rows.shape[axis]
    g_data = dynamic_update_slice(g, _zeros(rows), start, axis)
    if not size or not count or not data.shape[0]:
        return g_data, _zeros(rows), None
    is_slot: Tensor | None = None
    if start.rank == 2:  # the start and the slot of each example
        slots = cast(reshape(slice_(start, (0, 1), (start.shape[0], 2)), (-1,)), INT32)
        start = reshape(slice_(start, (0, 0), (start.shape[0], 1)), (-1,))
        is_slot = reshape(logical_and(greater_equal(slots, 0), less(slots, data.shape[0])), (-1, 1))
        g = gather(g, where(reshape(is_slot, (-1,)), slots, 0), 0)
    numbers: dict[str, AttrValue] = {"start": 0, "step": 1, "dtype": INT32}
    steps = apply("arange", (), {"shape": (count,), **numbers})
    first = cast(start, INT32)
    at = reshape(first, (-1, 1)) + steps
    inside = logical_and(greater_equal(at, 0), less(at, size))
    if is_slot is not None:
        inside = logical_and(inside, is_slot)
    at = where(inside, at, 0)
    if start.rank:
        lines = gather_nd(moveaxis(g, axis, 1), reshape(at, (*at.shape, 1)), 1)
        selected = moveaxis(lines, 1, axis)
    else:
        selected = gather(g, reshape(at, (count,)), axis)
    shape = [1] * rows.rank
    shape[axis] = count
    if start.rank:
        shape[0] = start.shape[0]
    return g_data, where(reshape(inside, shape), selected, as_tensor(0.0, like=g)), None


# -- scatter -------------------------------------------------------------------------------------

Put = Callable[[Tensor, Tensor, str], Tensor]
Take = Callable[[Tensor], Tensor]


@gradient("scatter_elements")
def _scatter_elements(call: VjpContext) -> VjpResult:
    indices, axis = call.inputs[1], call.attrs.as_int("axis")

    def put(data: Tensor, updates: Tensor, reduction: str) -> Tensor:
        return scatter_elements(data, indices, updates, axis, reduction)

    def take(x: Tensor) -> Tensor:
        return gather_elements(x, indices, axis)

    return _scattered(call, put, take, indices.rank)


@gradient("scatter_nd")
def _scatter_nd(call: VjpContext) -> VjpResult:
    indices = call.inputs[1]

    def put(data: Tensor, updates: Tensor, reduction: str) -> Tensor:
        return scatter_nd(data, indices, updates, reduction)

    def take(x: Tensor) -> Tensor:
        return gather_nd(x, indices)

    return _scattered(call, put, take, indices.shape[-1])


def _scattered(call: VjpContext, put: Put, take: Take, indexed: int) -> VjpResult:
    """Return the gradients of a scatter.

    Parameters
    ----------
    put
        Scatters updates.
    take
        Gathers the updated elements.
    indexed
        Axes of the data before those of whole slices.
    """
    (data, _, updates), g = call.inputs, call.grad
    reduction = call.attrs.as_str("reduction")
    if reduction == "add":
        return g, None, take(g)
    if reduction == "none":
        g_data = put(g, _zeros(updates), "none")
        stays = _last(data, updates, put, take, indexed)
        return g_data, None, where(stays, take(g), as_tensor(0.0, like=g))
    if reduction == "mul":
        ones = _full(data.shape, 1, data.dtype)
        return g * put(ones, updates, "mul"), None, _by_factors(call, put, take)
    return _by_ties(call, put, take)


def _last(data: Tensor, updates: Tensor, put: Put, take: Take, indexed: int) -> Tensor:
    """Return which updates persist: the last one of each element."""
    slices = data.shape[:indexed]
    rows = updates.shape[: updates.rank - (data.rank - indexed)]
    numbers: dict[str, AttrValue] = {"start": 0, "step": 1, "dtype": INT32}
    order = reshape(apply("arange", (), {"shape": (math.prod(rows),), **numbers}), rows)
    last = put(_full(slices, 0, INT32), order, "none")
    return reshape(equal(take(last), order), (*rows, *(1,) * (data.rank - indexed)))


def _by_factors(call: VjpContext, put: Put, take: Take) -> Tensor:
    """Return the gradient of each factor as the product of all other factors, without division.

    Second derivatives with respect to two factors that are both 0 are returned as 0.
    """
    (data, _, updates), g = call.inputs, call.grad
    zero, one = (as_tensor(v, like=g) for v in (0.0, 1.0))
    is_zero = equal(updates, zero)
    filled = where(is_zero, one, updates)
    count = cast(is_zero, INT32)
    others = take(put(_full(data.shape, 0, INT32), count, "add")) - count
    product = take(g * put(data, filled, "mul")) / filled
    return where(equal(others, as_tensor(0, like=others)), product, zero)


def _by_ties(call: VjpContext, put: Put, take: Take) -> VjpResult:
    """Share the gradient of a maximum or minimum among equal values, as torch.scatter_reduce."""
    (data, _, updates), g = call.inputs, call.grad
    zero = as_tensor(0.0, like=g)
    own, from_updates = equal(data, call.output), equal(updates, take(call.output))
    share = g / put(cast(own, g.dtype), cast(from_updates, g.dtype), "add")
    return where(own, share, zero), None, where(from_updates, take(share), zero)
