"""Sharding rules of quantized linear ops."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ...ir.attrs import AttrValue
from ...ir.sharding_rule import TERMS, WHOLE, Factor, Sharded, linear_factors, sharding
from . import merged_linear as merged_linear
from . import moe_linear as moe_linear
from . import quantized_linear as quantized_linear
from .gguf_formats import format_of


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
