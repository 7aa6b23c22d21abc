"""Resharding: emit the nodes that bring shards and partial sums of values to other devices.

    slice      a range of one node
    concat     the concatenation of ranges
    add        the sum of partial sums
    range_of   a range of a sharded value, along any axis
    scattered  the shards of a sum, each reduced on its device (reduce-scatter)

Complexity: O(devices) nodes for a range. Examples: tests/parallel/test_shard.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph_builder import GraphBuilder
from .sharding_strategy import Devices, ShardedAxis


class MoveEmitter:
    """Emits moves into a new graph. Each method returns the node with the result."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder

    def slice(
        self, source: int, axis: int, begin: int, end: int, name: str, device: str | None
    ) -> int:
        """Return a range of an axis; the source itself if that is all of it."""
        if (begin, end) == (0, self._builder[source].type.shape[axis]):
            return source
        attrs = {"axes": (axis,), "starts": (begin,), "stops": (end,), "steps": (1,)}
        return self._builder.emit("slice", (source,), attrs, name, device)

    def concat(self, ids: Sequence[int], axis: int, name: str, device: str) -> int:
        """Return the concatenation of ranges of an axis."""
        if len(ids) == 1:
            return ids[0]
        return self._builder.emit("concat", ids, {"axis": axis}, name, device)

    def add(self, ids: Sequence[int], name: str, device: str) -> int:
        """Return the sum of partial sums, added in their order."""
        total = ids[0]
        for i in ids[1:]:
            total = self._builder.emit("add", (total, i), {}, name, device)
        self._builder.note_all_reduce((*ids, total))
        return total

    def range_of(
        self,
        ranges: Sequence[tuple[int, str, tuple[int, int]]],
        source_axis: int,
        axis: int,
        wanted: tuple[int, int],
        name: str,
        device: str,
    ) -> int:
        """Return a range along `axis` of a value that is sharded along `source_axis`.

        ranges: node, device, start and end of each shard.
        """
        found: list[int] = []
        for one, there, (begin, end) in ranges:
            if source_axis != axis:
                found.append(self.slice(one, axis, *wanted, name, there))
                continue
            low, high = max(begin, wanted[0]), min(end, wanted[1])
            if low < high:
                found.append(self.slice(one, axis, low - begin, high - begin, name, there))
        return self.concat(found, source_axis, name, device)

    def scattered(
        self,
        name: str,
        terms: tuple[Devices, tuple[int, ...]],
        devices: Devices,
        shard: ShardedAxis,
    ) -> tuple[int, ...]:
        """Return the shards of a sum, each reduced on its device."""
        out: list[int] = []
        for part, (device, (begin, end)) in enumerate(zip(devices, shard.ranges(), strict=True)):
            found = [
                self.slice(term, shard.axis, begin, end, f"{name}.term@{part}", there)
                for there, term in zip(*terms, strict=True)
            ]
            out.append(self.add(found, f"{name}.sum@{part}", device))
        return tuple(out)
