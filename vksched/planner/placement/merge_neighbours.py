"""Merging: moves what nothing holds to a device beside it, so that fewer bytes cross.

Problem: a value that crosses costs a wait and a copy. A node that stands alone between two devices
is easy to move; of a chain that pays only as a whole no node moves alone. Method: sweeps over
single nodes, then over groups, the nodes of one device that hand values to each other, each moved
as one. A group goes to another GPU, one that is not full, where all of it can run, fewer bytes and
no more values cross, and what the links of the machine take less is worth the time that it takes
longer there: else one node for numpy at its end would draw a model to the CPU.

    a -> b -> gather -> c -> d        node by node  b or c alone: as many bytes cross as before
    gpu:0     gpu:1     gpu:0         in groups     {a, b} to gpu:1, {c, d} to gpu:1: none do

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
LARGEST_GROUP = 64
"""Nodes: larger ones seldom move as a whole, and take long to weigh."""


class _Moves:
    """What single nodes and groups are moved by. device: of each node that runs; `put` changes it,
    with the rule.
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
        """How many readers a value, or a part, has on each device; found when first asked."""


class Merger(_Moves):
    """Moves nodes one by one, then groups."""

    def merge(self, free: Sequence[Node], roomy: Collection[int]) -> None:
        """Move some of the nodes that nothing holds, given in topological order.

        roomy: GPUs that may take groups.
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
        """The nodes for which another device may be better now that this one has moved."""
        yield from (node.id, *self.support.readers[node.id])
        for value in self.support.operands[node.id]:
            yield value
            reads = self._readers_by_device(value)
            if reads[before] <= 1 or reads[self.device[node.id]] <= 2:
                yield from self.support.readers[value]

    def _move(self, node: Node) -> bool:
        device, here = self.device, self.device[node.id]
        operands, readers = self.support.operands[node.id], self.support.readers[node.id]
        around = {device[n] for n in readers}
        around.update([device.get(n, here) for n in operands])
        around.discard(here)
        if not around:
            return False
        now = self._crossing_bytes(node)
        best, best_bytes = here, now
        for option in sorted(around):
            if not self.supports(node, option):
                continue
            self._stand(node, option)
            then = self._crossing_bytes(node)
            if then < best_bytes:
                best, best_bytes = option, then
        self._stand(node, best)
        if best == here:
            return False
        beside = next(n for n in (*operands, *readers) if device.get(n) == best)
        saved = now - best_bytes
        name = self.graph.nodes[beside].name
        self.put(node, best, f"moved beside {name}: {saved} bytes less cross")
        return True

    def _crossing_bytes(self, node: Node) -> int:
        """Bytes that cross because of where this node stands, of its result and its operands."""
        words = 0
        for value in (node.id, *self.support.operands[node.id]):
            here = self.device.get(value)
            if here is not None:
                for device, count in self._readers_by_device(value).items():
                    if count and device != here:
                        words += self.graph.words[value]
        return words * WORD_BYTES

    def _stand(self, node: Node, device: int) -> None:
        """Move a node, and its reads with it."""
        for operand in self.support.operands[node.id]:
            reads = self._readers_by_device(operand)
            reads[self.device[node.id]] -= 1
            reads[device] += 1
        self.device[node.id] = device

    def _readers_by_device(self, value: int) -> Counter[int]:
        """How many readers a value has on each device; counted when first asked, kept from then."""
        found = self._reads.get(value)
        if found is None:
            found = Counter([self.device[r] for r in self.support.readers[value]])
            self._reads[value] = found
        return found


class Crossed(NamedTuple):
    """What crosses of some values; seconds: on the links, and for submissions that begin by it."""

    size_bytes: int
    values: int
    seconds: float


class Groups(_Moves):
    """Counts exactly what crosses, parts of values on their own, so that no move adds anything."""

    def __init__(self, single: Merger) -> None:
        super().__init__(single.support, single.device, single.supports, single.put)
        # found when first asked, and kept from then
        self._parts_of: dict[int, tuple[int, ...]] = {}  # what is read of each node
        self._count: dict[int, int] = {}  # how many readers a part has on all devices
        self._way = lru_cache(maxsize=None)(self.support.topology.route)

    def _read_by(self, node: Node) -> tuple[int, ...]:
        """Returns what a node reads of computed values, parts on their own."""
        graph, roots = self.graph, self.graph.view_bases
        found = (value_of(graph, i, False) for i in node.inputs if roots[i] in self.device)
        return tuple(dict.fromkeys(found))

    def _made_by(self, node_id: int) -> tuple[int, ...]:
        """Returns what others read of a node, parts on their own; counts the readers."""
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
        stirred = {node.id for node in free}  # another device may be better for these now
        for _ in range(GROUP_SWEEPS if roomy else 0):
            values: set[int] = set()
            for group in self._find(free):
                if len(group) > LARGEST_GROUP:
                    continue
                if any(node.id in stirred for node in group) and self._move(group, roomy):
                    for node in group:
                        values.update((node.id, *self.support.operands[node.id]))
            if not values:
                return
            stirred = values.union(*(self.support.readers[value] for value in values))

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
        beside: dict[int, int] = {}  # for each device around the group a node there
        for node in group:
            for other in self._around(node):
                beside.setdefault(device.get(other, here), other)
        options = sorted(d for d in beside if d != here and d in roomy)
        if not options:
            return False
        inner = {node.id for node in group}
        reads = Counter([part for node in group for part in self._read_by(node)])
        made = [part for node in group for part in self._made_by(node.id)]
        # what is made and read in the group alone crosses nowhere
        parts = [part for part in made if self._count[part] > reads[part]]
        for root in dict.fromkeys(self.graph.view_bases[part] for part in reads):
            if (
                root not in inner
            ):  # all parts: one that does not cross beside the whole may do so now
                parts += self._made_by(root)
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
        name = self.graph.nodes[beside[best]].name
        for node in group:
            self.put(node, best, f"moved beside {name}{as_one}: {saved} bytes less cross")
        return True

    def _around(self, node: Node) -> tuple[int, ...]:
        return (*self.support.operands[node.id], *self.support.readers[node.id])

    def _transfers(
        self, parts: Sequence[int], inner: set[int], reads: Counter[int], here: int, there: int
    ) -> Crossed:
        """Returns what crosses of some values, were the group `inner`, which is `here`, `there`.

        reads: how many nodes of the group read each.
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
            if root != part:  # a device that reads the whole has the part
                on -= reading(root)
            source = there if root in inner else self.device[root]
            size_bytes = self.graph.words[part] * WORD_BYTES
            for target in sorted(on - {source}):
                total += size_bytes
                count += 1
                seconds += self._seconds(source, target, size_bytes)
        return Crossed(total, count, seconds)

    def _seconds(self, source: int, target: int, size_bytes: int) -> float:
        """Returns what a value takes from one device to another, and the submission behind it."""
        spec = self.support.topology.devices[target]
        return self._way(source, target).seconds(size_bytes) + submission_seconds(spec)

    def _pays(self, group: Sequence[Node], there: int, saved_s: float) -> bool:
        """Whether all of a group can run on a device, and what crosses less is worth the time that
        it takes longer there.
        """
        if not all(self.supports(node, there) for node in group):
            return False
        ids, here = [node.id for node in group], self.device[group[0].id]
        longer_s = self.support.split_seconds(ids, there) - self.support.split_seconds(ids, here)
        return longer_s <= saved_s
