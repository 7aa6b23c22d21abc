"""Placing: where nodes are so far, which devices may still take them, and how they follow others.

    caps + support + room -> supports(node, device)        put(node, device, rule)
    place_remaining: a @ gpu:1 -> b -> c                        b and c follow a

Complexity: O(edges) for a sweep. Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ...common.dtypes import WORD_BYTES
from ...ir.graph import Node
from ...plan.costs.op_support import OpSupport
from .memory_budget import MemoryBudget

NONE = -1
"""The cap of a device that must not take any node, not even one that streams its weights."""


@dataclass
class Caps:
    """What each device must not take, as it would not fit: nodes by their number in order.

    first: the first one; None: it may take all, NONE: nothing. peaks: those around the moment that
    takes most.
    """

    first: list[int | None]
    peaks: list[range]


@dataclass(frozen=True, slots=True)
class PlacementHints:
    """Where nodes shall run if they can.

    order: all devices, the best one first. on: the device of single nodes, by id, with the rule to
    tell the user. A node with a device of its own follows no neighbour. streams: flops for each
    byte of its weights in host memory from which on a node runs on a device that streams weights;
    None: as each device says. spread: weights that stay in host memory, so that others fit.
    """

    order: tuple[int, ...]
    on: Mapping[int, int]
    reason: str
    streams: float | None = None
    spread: frozenset[int] = frozenset()


class Placing:
    """The state of one pass; `device` and `rule` grow from stage to stage."""

    def __init__(self, support: OpSupport, caps: Caps, hints: PlacementHints) -> None:
        self.support = support
        self.hints = hints
        self.graph = support.graph
        self.topology = support.topology
        self._is_cpu = self.topology.is_cpu
        self._gpus = tuple(takewhile(lambda d: not self._is_cpu(d), hints.order))
        """Devices that are asked before a CPU."""
        self.caps = caps
        self.device: dict[int, int] = {}
        self.reason: dict[int, str] = {}
        self.fixed: set[int] = set()
        self.pinned_devices: dict[int, int] = dict(support.state_devices)
        self.passed_over: dict[int, str] = {}
        self.kept: dict[int, str] = {}
        self._others = {d for d in range(self.topology.cpu) if not self._is_cpu(d)}
        """All devices but CPUs."""
        self._weights = frozenset(n.id for n in self.graph.nodes if n.op in ("weight", "state"))
        self.notes: list[str] = []
        self._rank = {n.id: position for position, n in enumerate(support.computed)}
        self.budget = MemoryBudget(support)

    def unsupported_reason(self, node: Node, device: int) -> str | None:
        cap, number = self.caps.first[device], self._rank[node.id]
        if (cap is not None and number >= cap) or number in self.caps.peaks[device]:
            return f"{self.topology.devices[device].name} is full"
        return self.support.unsupported_reason(node, device)

    def supports(self, node: Node, device: int) -> bool:
        """Whether a device may take a node: beyond its cap only beside what streams there."""
        if self.unsupported_reason(node, device) is None:
            return True
        at_peak = self._rank[node.id] in self.caps.peaks[device]
        beside = not at_peak and self._beside_streams(node, device)
        return beside and self.support.supports(node, device)

    def _beside_streams(self, node: Node, device: int) -> bool:
        cap = self.caps.first[device]
        neighbours = (*self.support.operands[node.id], *self.support.readers[node.id])
        if cap is None or cap == NONE:  # a state that lives there keeps nothing beside it
            return False
        return any(self.device.get(n) == device and self._rank[n] >= cap for n in neighbours)

    def _first_candidate(self, node: Node) -> int:
        first = next(d for d in self.hints.order if self.supports(node, d))
        return self._near_cpu(node) if self._gpus and self._is_cpu(first) else first

    def _near_cpu(self, node: Node) -> int:
        """Return the CPU that takes what no other device supports: that of the host which has most
        of what a node reads, else of one that reads its result.
        """
        if len(self.topology.hosts) == 1:
            return self.topology.cpu
        placed = [n for n in self.support.operands[node.id] if n in self.device]
        beside = sorted(placed, key=lambda n: (-self._bytes(n), n))
        beside += [n for n in self.support.readers[node.id] if n in self.device]
        cpus = (self.topology.cpu_of(self.device[n]) for n in beside)
        return next(
            (d for d in cpus if d is not None and self.supports(node, d)), self.topology.cpu
        )

    def put(self, node: Node, device: int, rule: str) -> None:
        self.device[node.id] = device
        self.reason[node.id] = rule

    def place_remaining(self, late: Collection[int] = ()) -> None:
        """Carry devices along the edges; not the CPU's, which one op there would else give to all
        that nothing holds. late: nodes that get their device otherwise, and states with them.
        """
        carried = self._others or set(range(self.topology.cpu))
        apart = {*late, *self.graph.states}
        for node in [n for n in self._left() if n.id not in apart]:
            self._place_with_neighbour(node, self.support.operands[node.id], carried)
        for node in [n for n in reversed(self._left()) if n.id not in apart]:
            self._place_with_neighbour(node, self.support.readers[node.id], carried)

    def _left(self) -> list[Node]:
        """The nodes without a device."""
        return [n for n in self.support.computed if n.id not in self.device]

    def _place_with_neighbour(
        self, node: Node, neighbours: Sequence[int], devices: set[int]
    ) -> None:
        placed = [n for n in neighbours if self.device.get(n) in devices]
        if len(placed) > 1:
            placed.sort(key=lambda n: (-self._bytes(n), n))
        for other in placed:
            if self.supports(node, self.device[other]):
                self.put(node, self.device[other], f"beside {self.graph.nodes[other].name}")
                return

    def _bytes(self, node_id: int) -> int:
        return self.graph.words[node_id] * WORD_BYTES
