"""Sharding rules of ops along axes: all other axes can be sharded, and the axes of sums.

Examples: tests/ir/test_sharding_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.sharding_rule import (
    PARTIAL_MEAN,
    PARTIAL_SUM,
    REPLICATE,
    Factor,
    Sharded,
    aligned,
    all_partial_sums,
    linear_factors,
    no_sharding,
    row_factors,
    sharding,
)
from . import reduce as reduce
from . import resample as resample
from . import scan as scan
from . import softmax as softmax
from . import sort as sort


@sharding("softmax", "log_softmax")
def _softmax(call: Sharded) -> Iterable[Factor]:
    for axis, size in enumerate(call.output.shape):
        if axis != call.attrs.as_int("axis"):
            forms = tuple(aligned(t, call.output, axis) for t in call.inputs)
            yield Factor(forms, axis, size)


@sharding("layer_norm", "rms_norm")
def _norm(call: Sharded) -> Iterable[Factor]:
    return row_factors(call, range(call.attrs.as_int("axis")))


@sharding("layer_norm_backward")
def _layer_norm_backward(call: Sharded) -> Iterable[Factor]:
    whole = (REPLICATE,) * (len(call.inputs) - 2)
    for axis in range(call.attrs.as_int("axis")):
        yield Factor((axis, axis, *whole), axis, call.output.shape[axis])
    yield from linear_factors(call, 0)


@sharding("sort", "argsort")
def _sort(call: Sharded) -> Iterable[Factor]:
    return _all_but_one(call)


@sharding("cumprod")
def _scan(call: Sharded) -> Iterable[Factor]:
    return _all_but_one(call)


@sharding("cumsum")
def _cumsum(call: Sharded) -> Iterable[Factor]:
    yield from _all_but_one(call)
    yield all_partial_sums(call)


def _all_but_one(call: Sharded) -> Iterable[Factor]:
    own = call.attrs.as_int("axis")
    return row_factors(call, (axis for axis in range(call.output.rank) if axis != own))


@sharding(
    "reduce_all",
    "reduce_any",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_var",
    "argmax",
    "argmin",
)
def _reduce(call: Sharded) -> Iterable[Factor]:
    return _outer_factors(call)


@sharding("reduce_l1", "reduce_sum_square")
def _sum_of(call: Sharded) -> Iterable[Factor]:
    yield from _outer_factors(call)
    for axis in call.attrs.as_ints("axes"):
        yield Factor((axis,), PARTIAL_SUM, call.inputs[0].shape[axis])


@sharding("reduce_sum")
def _sum(call: Sharded) -> Iterable[Factor]:
    yield from _sum_of(call)
    yield all_partial_sums(call)


@sharding("reduce_mean")
def _mean(call: Sharded) -> Iterable[Factor]:
    yield from _outer_factors(call)
    for axis in call.attrs.as_ints("axes"):
        yield Factor((axis,), PARTIAL_MEAN, call.inputs[0].shape[axis])
    yield all_partial_sums(call)


def _outer_factors(call: Sharded) -> Iterable[Factor]:
    """Yield a factor for each axis that is not reduced."""
    reduced, result = set(call.attrs.as_ints("axes")), 0
    for axis, size in enumerate(call.inputs[0].shape):
        if axis not in reduced:
            yield Factor((axis,), result, size)
        result += axis not in reduced or call.attrs.as_bool("keepdims")


@sharding("resample")
def _resample(call: Sharded) -> Iterable[Factor]:
    own = call.attrs.as_int("axis")
    for axis, size in enumerate(call.output.shape):
        yield Factor((REPLICATE, 0, 0) if axis == own else (axis, REPLICATE, REPLICATE), axis, size)
    yield from linear_factors(call, 0)


no_sharding("counts over all of its operand", "nonzero")
