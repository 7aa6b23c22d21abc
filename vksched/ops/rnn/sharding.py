"""Sharding rules of recurrent networks. Examples: tests/ir/test_sharding_rules.py."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.sharding_rule import (
    REPLICATE,
    Factor,
    Sharded,
    sharding,
)
from . import rnn_scan as rnn_scan
from .cell import cell_of


@sharding("rnn_scan")
def _rnn_scan(call: Sharded) -> Iterable[Factor]:
    """Yield the factor of sequences. Directions are independent, but have different attributes."""
    cell = cell_of(call.attrs)
    own, lengths = (REPLICATE,) * cell.own, (0,) * cell.masked
    yield Factor((2, REPLICATE, 2, *own, *lengths), 2, call.output.shape[2])
