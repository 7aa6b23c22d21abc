"""Sharding rules of matrix products. Examples: tests/ir/test_sharding_rules.py."""

from __future__ import annotations

from collections.abc import Iterable

from ...common.dtypes import TensorType
from ...ir.sharding_rule import (
    PARTIAL_SUM,
    REPLICATE,
    Factor,
    Sharded,
    ShardingForm,
    linear_factors,
    sharding,
)
from . import matmul as matmul


@sharding("matmul")
def _matmul(call: Sharded) -> Iterable[Factor]:
    a, b, *bias = call.inputs
    transpose_a, transpose_b = call.attrs.as_bool("transpose_a"), call.attrs.as_bool("transpose_b")
    rows, inner = (a.rank - 1, a.rank - 2) if transpose_a else (a.rank - 2, a.rank - 1)
    depth, columns = (b.rank - 1, b.rank - 2) if transpose_b else (b.rank - 2, b.rank - 1)
    rank, whole = call.output.rank, (REPLICATE,) * len(bias)
    for axis in range(rank - 2):
        size = call.output.shape[axis]
        forms = tuple(_batch(t, axis, call.output) for t in (a, b))
        yield Factor((*forms, *whole), axis, size)
    yield Factor((rows, REPLICATE, *whole), rank - 2, a.shape[rows])
    yield Factor((REPLICATE, columns, *[0 for _ in bias]), rank - 1, b.shape[columns])
    if not bias:
        yield Factor((inner, depth), PARTIAL_SUM, a.shape[inner])
        yield from linear_factors(call, 0, 1)


def _batch(operand: TensorType, axis: int, result: TensorType) -> int | ShardingForm:
    own = axis - (result.rank - operand.rank)
    return own if own >= 0 and operand.shape[own] == result.shape[axis] != 1 else REPLICATE
