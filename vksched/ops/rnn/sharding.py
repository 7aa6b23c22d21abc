"""Sharding rules of recurrent networks. Examples: tests/ir/test_sharding_rules.py."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.sharding_rule import (
    WHOLE,
    Factor,
    Sharded,
    sharding,
)
from . import rnn_scan as rnn_scan
from .cell import cell_of


@sharding("recurrent")
def _recurrent(call: Sharded) -> Iterable[Factor]:
    """Sequences; directions share nothing, but each has attributes of its own."""
    cell = cell_of(call.attrs)
    own, lengths = (WHOLE,) * cell.own, (0,) * cell.masked
    yield Factor((2, WHOLE, 2, *own, *lengths), 2, call.output.shape[2])
