"""Sharding rules of attention."""

from __future__ import annotations

from collections.abc import Iterable

from ...common.dtypes import TensorType
from ...ir.sharding_rule import REPLICATE, Factor, Sharded, ShardingForm, aligned, sharding
from . import attention as attention
from . import attention_with_kvcache as attention_with_kvcache
from . import backward as backward
from . import gated_delta_rule as gated_delta_rule
from . import kv_q8_0 as kv_q8_0
from . import rotary as rotary
from .attention_sizes import are_slots


@sharding("attention")
def _attention(call: Sharded) -> Iterable[Factor]:
    """Yield factors of the batch, of heads by key head, and of rows of q if no position is used."""
    q, k, _, *masks = call.inputs
    flags = call.attrs.as_ints("is_bshd")
    heads = [2 if flag else 1 for flag in flags]
    lengths = [1 if flag else 2 for flag in flags]
    scores = TensorType((q.shape[0], q.shape[heads[0]], q.shape[lengths[0]], k.shape[lengths[1]]))

    def of_masks(axis: int) -> list[int | ShardingForm]:
        return [aligned(mask, scores, axis) for mask in masks]

    yield Factor((0, 0, 0, *of_masks(0)), 0, q.shape[0])
    yield Factor((*heads[:3], *of_masks(1)), heads[3], k.shape[heads[1]])
    if call.attrs["left"] == call.attrs["right"] == -1:
        forms = lengths[0], REPLICATE, REPLICATE, *of_masks(2)
        yield Factor(forms, lengths[3], q.shape[lengths[0]])


@sharding("attention_backward")
def _attention_backward(call: Sharded) -> Iterable[Factor]:
    """Yield factors of the batch and of heads grouped by key head."""
    q, k = call.inputs[:2]
    scores = TensorType((*q.shape[:3], k.shape[2]))
    for axis, units in ((0, q.shape[0]), (1, k.shape[1])):
        masks = (aligned(mask, scores, axis) for mask in call.inputs[4:])
        yield Factor((*(axis,) * 4, *masks), axis + 1, units)


@sharding("attention_with_kvcache")
def _attention_with_kvcache(call: Sharded) -> Iterable[Factor]:
    """Yield factors of the batch, unless examples have pending rows of each other, and of heads
    grouped by key head.
    """
    q, k, _, used, *new = call.inputs
    flags = call.attrs.as_ints("is_bshd")
    heads = [2 if flag else 1 for flag in flags]
    own, same = (0 if used.rank else REPLICATE), (0,) * len(new)
    cached = REPLICATE if are_slots(used.shape, call.attrs) else 0
    if len(new) < 4:
        yield Factor((0, cached, cached, own, *same), 0, q.shape[0])
    yield Factor((*heads[:3], REPLICATE, *(1 for _ in new)), heads[3], k.shape[heads[1]])


@sharding("gated_delta_rule")
def _gated_delta_rule(call: Sharded) -> Iterable[Factor]:
    """Yield factors of the batch, of heads grouped by key head, and of columns."""
    q, count = call.inputs[0], len(call.inputs)
    yield Factor((0,) * count, 0, q.shape[0])
    yield Factor((2,) * count, 2, q.shape[2])
    of_columns = tuple(3 if at in (2, 5) else REPLICATE for at in range(count))
    yield Factor(of_columns, 3, call.output.shape[3])


@sharding("rotary_embedding")
def _rotary(call: Sharded) -> Iterable[Factor]:
    x, *caches = call.inputs
    yield Factor((0, *(0 if c.rank == 3 else REPLICATE for c in caches)), 0, x.shape[0])
    yield Factor((1, *(REPLICATE for _ in caches)), 1, x.shape[1])
    yield Factor((2, *(c.rank - 2 for c in caches)), 2, x.shape[2])


@sharding("quantize_q8_0", "dequantize_q8_0")
def _rows(call: Sharded) -> Iterable[Factor]:
    """Yield a factor for each row axis."""
    for axis, size in enumerate(call.output.shape[:-1]):
        yield Factor((axis,), axis, size)
