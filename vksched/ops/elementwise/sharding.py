"""Sharding rules of elementwise ops: every axis can be sharded.

Examples: tests/ir/test_sharding_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...common.dtypes import FLOATS
from ...ir.sharding_rule import (
    PARTIAL_SUM,
    REPLICATE,
    Factor,
    Sharded,
    aligned,
    all_partial_sums,
    broadcast_factors,
    linear_factors,
    sharding,
)
from .pointwise import binary_types, unary_types

LINEAR = ("add", "sub", "neg", "positive", "mul", "div")


@sharding(*sorted({op for op, _ in (*unary_types, *binary_types)} - {*LINEAR}))
def _elementwise(call: Sharded) -> Iterable[Factor]:
    return broadcast_factors(call)


@sharding("addcmul", "bitcast")
def _like_elementwise(call: Sharded) -> Iterable[Factor]:
    return broadcast_factors(call)


@sharding("add", "sub", "neg", "positive")
def _sums(call: Sharded) -> Iterable[Factor]:
    yield from broadcast_factors(call)
    yield all_partial_sums(call)


@sharding("mul")
def _mul(call: Sharded) -> Iterable[Factor]:
    yield from broadcast_factors(call)
    yield from linear_factors(call, 0, 1)


@sharding("div")
def _div(call: Sharded) -> Iterable[Factor]:
    yield from broadcast_factors(call)
    if call.output.dtype in FLOATS:
        yield from linear_factors(call, 0)


@sharding("cast")
def _cast(call: Sharded) -> Iterable[Factor]:
    yield from broadcast_factors(call)
    if call.inputs[0].dtype in FLOATS and call.output.dtype in FLOATS:
        yield all_partial_sums(call)


@sharding("where")
def _where(call: Sharded) -> Iterable[Factor]:
    yield from broadcast_factors(call)
    yield Factor((REPLICATE, PARTIAL_SUM, PARTIAL_SUM), PARTIAL_SUM)


@sharding("dequantize_linear")
def _dequantize_linear(call: Sharded) -> Iterable[Factor]:
    """Yield factors; scales and zero points have one axis, or none."""
    own, scales = call.attrs.get("axis"), call.inputs[1:]
    for axis, size in enumerate(call.output.shape):
        form = 0 if axis == own else REPLICATE
        if axis != own or all(t.shape == (size,) for t in scales):
            first = aligned(call.inputs[0], call.output, axis)
            yield Factor((first, *(form for _ in scales)), axis, size)
