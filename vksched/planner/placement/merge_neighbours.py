"""Merge neighbours: move unconstrained nodes to the devices of their neighbours to reduce
transfers.

Problem: a transferred value costs a wait and a copy. A single node between two devices is easy to
move; a chain that pays off only as a whole is not moved node by node. Method: sweeps over single
nodes, then over groups, the connected nodes of one device, each moved as a whole. A group moves to
another GPU that is not full if all of it can run there, if it reduces the transferred bytes without
more transferred values, and if the saved link time exceeds the additional compute time: otherwise
one CPU op at its end would draw a model to the CPU.

    a -> b -> gather -> c -> d        single nodes  b or c alone: the transfers do not shrink
    gpu:0     gpu:1     gpu:0         groups        {a, b} to gpu:1, {c, d} to gpu:1: no transfer

Complexity: O(sweeps * edges * devices). Examples: tests/planner/test_merging.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ...common.dtypes import WORD_BYTES
from ...ir.graph import Node
from ...plan.costs.node_cost import submission_seconds
from ...plan.costs.op_support import OpSupport
from ...plan.types.plan_types import value_of

MERGE_SWEEPS = 8
GROUP_SWEEPS = 2
MAX_GROUP_NODES = 64
"""Maximum nodes of a group; larger ones rarely move as a whole and are slow to evaluate."""


class _Moves:
    """The common state of moves of nodes and groups.

    `device` holds the device of each node that runs; `put` changes it and records the reason.
    """

    def __init__(
        self,
        support: OpSupport,
        device: MutableMapping[int, int],
        supports: Callable[[Node, int], bool],
        put: Callable[[Node, int, str], None],
    ) -> None:
        self.support = support
        self.graph = support.graph
        self.device = device
        self.supports = supports
        self.put = put
        self._reads: dict[int, Counter[int]] = {}
        """The number of readers of a value, or of a part, by device; computed on first use."""


class Merger(_Moves):
    """Move single nodes, then groups."""

    def merge(self, free: Sequence[Node], roomy: Collection[int]) -> None:
        """Move some of the unconstrained nodes, which are in topological order.

        roomy: GPUs that groups may move to.
        """
        if free and len(set(self.device.values())) > 1:
            self._merge_nodes(free)
            Groups(self).merge(free, roomy)

    def _merge_nodes(self, free: Sequence[Node]) -> None:
        pending = {n.id for n in free}
        for _ in range(MERGE_SWEEPS):
            for node in free if pending else ():
                if node.id in pending:
                    pending.discard(node.id)
                    before = self.device[node.id]
                    if self._move(node):
                        pending.update(self._moved_by(node, before))

    def _moved_by(self, node: Node, before: int) -> Iterator[int]:
        """Yield the nodes whose best device may have changed by a move."""
        yield from (node.id, *self.support.readers[node.id])
        for value in self.support.operands[node.id]:
            yield value
            reads = self._readers_by_device(value)
            if reads[before] <= 1 or reads[self.device[node.id]] <= 2:
                yield from self.support.readers[value]

    def _move(self, node: Node) -> bool:
        device, here = self.device, self.device[node.id]
        operands, readers = self.support.operands[node.id], self.support.readers[node.id]
        nearby = {device[n] for n in readers}
        nearby.update([device.get(n, here) for n in operands])
        nearby.discard(here)
        if not nearby:
            return False
        now = self._crossing_bytes(node)
        best, best_bytes = here, now
        for option in sorted(nearby):
            if not self.supports(node, option):
                continue
            self._relocate(node, option)
            then = self._crossing_bytes(node)
            if then < best_bytes:
                best, best_bytes = option, then
        self._relocate(node, best)
        if best == here:
            return False
        neighbour = next(n for n in (*operands, *readers) if device.get(n) == best)
        saved = now - best_bytes
        name = self.graph.nodes[neighbour].name
        self.put(node, best, f"moved next to {name}: {saved} bytes less transferred")
        return True

    def _crossing_bytes(self, node: Node) -> int:
        """Return the transferred bytes of the result and the operands of a node."""
        words = 0
        for value in (node.id, *self.support.operands[node.id]):
            here = self.device.get(value)
            if here is not None:
                for device, count in self._readers_by_device(value).items():
                    if count and device != here:
                        words += self.graph.words[value]
        return words * WORD_BYTES

    def _relocate(self, node: Node, device: int) -> None:
        """Move a node, and count its reads on the new device."""
        for operand in self.support.operands[node.id]:
            reads = self._readers_by_device(operand)
            reads[self.device[node.id]] -= 1
            reads[device] += 1
        self.device[node.id] = device

    def _readers_by_device(self, value: int) -> Counter[int]:
        """Return the number of readers of a value by device; cached."""
        found = self._reads.get(value)
        if found is None:
            found = Counter([self.device[r] for r in self.support.readers[value]])
            self._reads[value] = found
        return found


class CrossedTransfers(NamedTuple):
    """The transfers of some values; `seconds` includes the submissions that they cause."""

    size_bytes: int
    values: int
    seconds: float


class Groups(_Moves):
    """Move groups. Parts of values are counted separately, so that no move adds transfers."""

    def __init__(self, single: Merger) -> None:
        super().__init__(single.support, single.device, single.supports, single.put)
        # computed on first use
        self._parts_of: dict[int, tuple[int, ...]] = {}  # the parts of each node that are read
        self._count: dict[int, int] = {}  # the number of readers of a part on all devices
        self._way = lru_cache(maxsize=None)(self.support.topology.route)

    def _read_by(self, node: Node) -> tuple[int, ...]:
        """Return the computed values that a node reads, parts separately."""
        graph, roots = self.graph, self.graph.view_bases
        found = (value_of(graph, i, False) for i in node.inputs if roots[i] in self.device)
        return tuple(dict.fromkeys(found))

    def _parts_read(self, node_id: int) -> tuple[int, ...]:
        """Return the parts of a node that others read; counts the readers."""
        found = self._parts_of.get(node_id)
        if found is None:
            reads: dict[int, Counter[int]] = {}
            for reader in self.support.readers[node_id]:
                for part in self._read_by(self.graph.nodes[reader]):
                    if self.graph.view_bases[part] == node_id:
                        reads.setdefault(part, Counter())[self.device[reader]] += 1
            self._reads.update(reads)
            self._count.update({part: sum(on.values()) for part, on in reads.items()})
            found = self._parts_of[node_id] = tuple(reads)
        return found

    def merge(self, free: Sequence[Node], roomy: Collection[int]) -> None:
        """Move groups until nothing changes, at most GROUP_SWEEPS times."""
        changed = {node.id for node in free}  # nodes whose best device may have changed
        for _ in range(GROUP_SWEEPS if roomy else 0):
            values: set[int] = set()
            for group in self._find(free):
                if len(group) > MAX_GROUP_NODES:
                    continue
                if any(node.id in changed for node in group) and self._move(group, roomy):
                    for node in group:
                        values.update((node.id, *self.support.operands[node.id]))
            if not values:
                return
            changed = values.union(*(self.support.readers[value] for value in values))

    def _find(self, free: Sequence[Node]) -> list[list[Node]]:
        """Return the groups, in order of their first node."""
        first = {node.id: node.id for node in free}

        def find(value: int) -> int:
            while first[value] != value:
                first[value] = value = first[first[value]]
            return value

        for node in free:
            for value in self.support.operands[node.id]:
                if value in first and self.device[value] == self.device[node.id]:
                    one, two = find(value), find(node.id)
                    first[max(one, two)] = min(one, two)
        members: dict[int, list[Node]] = {}
        for node in free:
            members.setdefault(find(node.id), []).append(node)
        return list(members.values())

    def _move(self, group: Sequence[Node], roomy: Collection[int]) -> bool:
        device, here = self.device, self.device[group[0].id]
        neighbours: dict[int, int] = {}  # a neighbour of the group on each device
        for node in group:
            for other in self._around(node):
                neighbours.setdefault(device.get(other, here), other)
        options = sorted(d for d in neighbours if d != here and d in roomy)
        if not options:
            return False
        inner = {node.id for node in group}
        reads = Counter([part for node in group for part in self._read_by(node)])
        outputs = [part for node in group for part in self._parts_read(node.id)]
        # parts that only the group reads are not transferred
        parts = [part for part in outputs if self._count[part] > reads[part]]
        for root in dict.fromkeys(self.graph.view_bases[part] for part in reads):
            if (
                root not in inner
            ):  # all parts: one that was covered by a transfer of the whole may need its own
                parts += self._parts_read(root)
        now = self._transfers(parts, inner, reads, here, here)
        best, least = here, now
        for option in options:
            then = self._transfers(parts, inner, reads, here, option)
            less = then.size_bytes < least.size_bytes and then.values <= now.values
            if less and self._pays(group, option, now.seconds - then.seconds):
                best, least = option, then
        if best == here:
            return False
        for part, count in reads.items():
            self._reads[part][here] -= count
            self._reads[part][best] += count
        as_one = f", {len(group)} nodes as one" if len(group) > 1 else ""
        saved = now.size_bytes - least.size_bytes
        name = self.graph.nodes[neighbours[best]].name
        for node in group:
            self.put(node, best, f"moved next to {name}{as_one}: {saved} bytes less transferred")
        return True

    def _around(self, node: Node) -> tuple[int, ...]:
        return (*self.support.operands[node.id], *self.support.readers[node.id])

    def _transfers(
        self, parts: Sequence[int], inner: set[int], reads: Counter[int], here: int, there: int
    ) -> CrossedTransfers:
        """Return the transfers of some values if the group `inner`, which is on `here`, were on
        `there`.

        reads: the number of nodes of the group that read each value.
        """
        total = count = 0
        seconds = 0.0

        def reading(part: int) -> set[int]:
            found = self._reads.get(part, Counter[int]()).items()
            on = {device for device, n in found if n > (device == here) * reads[part]}
            return on | {there} if reads[part] else on

        for part in parts:
            root = self.graph.view_bases[part]
            on = reading(part)
            if root != part:  # a transfer of the whole covers the part
                on -= reading(root)
            source = there if root in inner else self.device[root]
            size_bytes = self.graph.words[part] * WORD_BYTES
            for target in sorted(on - {source}):
                total += size_bytes
                count += 1
                seconds += self._seconds(source, target, size_bytes)
        return CrossedTransfers(total, count, seconds)

    def _seconds(self, source: int, target: int, size_bytes: int) -> float:
        """Return the seconds to transfer a value, with the submission that follows."""
        spec = self.support.topology.devices[target]
        return self._way(source, target).seconds(size_bytes) + submission_seconds(spec)

    def _pays(self, group: Sequence[Node], there: int, saved_s: float) -> bool:
        """Return True if a device can run a group, and saved transfers outweigh compute time."""
        if not all(self.supports(node, there) for node in group):
            return False
        ids, here = [node.id for node in group], self.device[group[0].id]
        longer_s = self.support.split_seconds(ids, there) - self.support.split_seconds(ids, here)
        return longer_s <= saved_s
