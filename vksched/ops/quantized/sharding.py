"""Sharding rules of quantized linear ops."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ...ir.attrs import AttrValue
from ...ir.sharding_rule import (
    PARTIAL_SUM,
    REPLICATE,
    Factor,
    Sharded,
    linear_factors,
    no_sharding,
    sharding,
)
from . import merged_linear as merged_linear
from . import merged_linear_rope as merged_linear_rope
from . import moe_linear as moe_linear
from . import quantized_linear as quantized_linear
from .gguf_formats import format_of


@sharding("dequantize")
def _dequantize(call: Sharded) -> Iterable[Factor]:
    """Yield factors of the rows, and of whole tiles of a row."""
    rank, columns = call.output.rank, call.output.shape[-1]
    whole = format_of(call.attrs["format"]).whole
    for axis, size in enumerate(call.output.shape[:-1]):
        yield Factor((axis,), axis, size)
    if columns % whole == 0:
        yield Factor((rank - 1,), rank - 1, columns // whole, partial(_columns, whole))


def _columns(whole: int, start: int, units: int) -> dict[str, AttrValue]:
    return {"columns": units * whole}


@sharding("quantized_linear")
def _quantized_linear(call: Sharded) -> Iterable[Factor]:
    x, _, *bias = call.inputs
    last, whole = x.rank - 1, (REPLICATE,) * len(bias)
    for axis in range(last):
        yield Factor((axis, REPLICATE, *whole), axis, x.shape[axis])
    yield Factor((REPLICATE, 0, *[0 for _ in bias]), last, call.output.shape[-1])
    if not bias:
        tiles = format_of(call.attrs["format"]).whole
        if x.shape[-1] % tiles == 0:
            yield Factor((last, 1), PARTIAL_SUM, x.shape[-1] // tiles)
        yield from linear_factors(call, 0)


@sharding("merged_linear")
def _merged_linear(call: Sharded) -> Iterable[Factor]:
    if merged_linear.is_stacked(call.attrs):
        return
    for axis in range(call.inputs[0].rank - 1):
        whole = (REPLICATE,) * (len(call.inputs) - 1)
        yield Factor((axis, *whole), axis, call.inputs[0].shape[axis])


no_sharding(
    "takes few rows, or has heads as matrices, which share the rotary embedding",
    "merged_linear_rope",
)


@sharding("moe_linear")
def _moe_linear(call: Sharded) -> Iterable[Factor]:
    yield from _grouped(call)
    depth = call.inputs[0].shape[-1]
    yield Factor((call.inputs[0].rank - 1, 2, REPLICATE), PARTIAL_SUM, depth)
    yield from linear_factors(call, 0, 1)


@sharding("quantized_moe_linear")
def _quantized_moe_linear(call: Sharded) -> Iterable[Factor]:
    yield from _grouped(call)
    x = call.inputs[0]
    tiles = format_of(call.attrs["format"]).whole
    if x.shape[-1] % tiles == 0:
        yield Factor((x.rank - 1, 2, REPLICATE), PARTIAL_SUM, x.shape[-1] // tiles)
    yield from linear_factors(call, 0)


def _grouped(call: Sharded) -> Iterable[Factor]:
    """Yield factors of rows, of experts of a row, and of columns."""
    x, weight, expert_ids = call.inputs
    yield Factor((0, REPLICATE, 0), 0, expert_ids.shape[0])
    yield Factor((1 if x.rank == 3 else REPLICATE, REPLICATE, 1), 1, expert_ids.shape[1])
    yield Factor((REPLICATE, 1, REPLICATE), 2, weight.shape[1])
