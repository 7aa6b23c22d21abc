"""Sharding rules of ops with sliding windows: batch and channels.

Examples: tests/ir/test_sharding_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...ir.attrs import AttrValue
from ...ir.sharding_rule import (
    PARTIAL_SUM,
    REPLICATE,
    Factor,
    Sharded,
    all_partial_sums,
    linear_factors,
    no_sharding,
    row_factors,
    sharding,
)
from . import conv as conv
from . import pool as pool
from . import winograd as winograd


def _groups(start: int, units: int) -> Mapping[str, AttrValue]:
    return {"groups": units}


@sharding("conv")
def _conv(call: Sharded) -> Iterable[Factor]:
    return _conv_factors(call, 0, 1)


@sharding("conv_transpose")
def _conv_transpose(call: Sharded) -> Iterable[Factor]:
    return _conv_factors(call, 1, 0)


@sharding("depthwise_conv_weight_grad")
def _depthwise_conv_weight_grad(call: Sharded) -> Iterable[Factor]:
    images, channels = call.inputs[0].shape[:2]
    yield Factor((1, 1), 0, channels)
    yield Factor((0, 0), PARTIAL_SUM, images)
    yield from linear_factors(call, 0, 1)


@sharding("flip_filters")
def _flip_filters(call: Sharded) -> Iterable[Factor]:
    rows, channels = call.inputs[0].shape[:2]
    groups = call.attrs.as_int("groups")
    if groups > 1:
        yield Factor((0,), 0, groups, _groups)
    else:
        yield Factor((0,), 1, rows)
        yield Factor((1,), 0, channels)


def _conv_factors(call: Sharded, out: int, into: int) -> Iterable[Factor]:
    """Yield the factors of a convolution.

    `out` and `into` are the weight axes for the channels of the result and of x.
    """
    x, w, *bias = call.inputs
    groups = call.attrs.as_int("groups")
    yield Factor((0, *(REPLICATE for _ in call.inputs[1:])), 0, x.shape[0])
    if groups > 1:
        yield Factor((1, 0, *(0 for _ in bias)), 1, groups, _groups)
    else:
        yield Factor((REPLICATE, out, *(0 for _ in bias)), 1, w.shape[out])
        if not bias:
            yield Factor((1, into), PARTIAL_SUM, w.shape[into])
    if not bias:
        yield from linear_factors(call, 0, 1)


@sharding("max_pool", "adaptive_max_pool", "lp_pool")
def _pool(call: Sharded) -> Iterable[Factor]:
    return row_factors(call, (0, 1))


@sharding("average_pool", "adaptive_average_pool")
def _average(call: Sharded) -> Iterable[Factor]:
    yield from row_factors(call, (0, 1))
    yield all_partial_sums(call)


@sharding("grid_sample")
def _grid_sample(call: Sharded) -> Iterable[Factor]:
    yield Factor((0, 0), 0, call.output.shape[0])
    yield Factor((1, REPLICATE), 1, call.output.shape[1])
    for axis in range(2, call.output.rank):
        yield Factor((REPLICATE, axis - 1), axis, call.output.shape[axis])


no_sharding("counts positions over all of x", "max_pool_indices")
no_sharding(
    "is created by passes from ops that were sharded before", "winograd_conv", "winograd_weights"
)
