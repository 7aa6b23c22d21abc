"""Sharding rules of creation ops and states."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.sharding_rule import Factor, Sharded, no_sharding, sharding, with_size
from . import create as create
from . import random as random


@sharding("full")
def _full(call: Sharded) -> Iterable[Factor]:
    shape = call.output.shape
    for axis, size in enumerate(shape):
        yield Factor((), axis, size, with_size(shape, axis))


no_sharding("counts from its beginning", "arange", "linspace", "eye")
no_sharding(
    "draws by the place in the whole",
    "bernoulli",
    "random_integers",
    "random_normal",
    "random_uniform",
)
