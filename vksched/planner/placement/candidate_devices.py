"""Placement state: the devices of nodes so far, candidate devices, and placement next to
neighbours.

    caps + op support + memory budget -> supports(node, device)    put(node, device, reason)
    place_remaining: a @ gpu:1 -> b -> c                           b and c follow a

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
"""The cap of a device that must not run any node, not even one that streams its weights."""


@dataclass
class Caps:
    """The nodes that a device must not run because they would not fit, by number in order.

    `first` holds by device the first one, None for no limit, or NONE for all nodes; `peaks` the
    nodes around the moment of peak memory.
    """

    first: list[int | None]
    peaks: list[range]


@dataclass(frozen=True, slots=True)
class PlacementHints:
    """The preferred devices of nodes.

    Parameters
    ----------
    order
        All devices, the preferred one first.
    on
        The devices of single nodes by id. A node with a hint does not follow its neighbours.
    reason
        The reason of `on` that is shown to the user.
    streams
        Minimum flops per byte of weights in host memory for which a node runs on a device that
        streams them; None: the threshold of each device.
    spread
        Weights that stay in host memory, so that others fit.
    """

    order: tuple[int, ...]
    on: Mapping[int, int]
    reason: str
    streams: float | None = None
    spread: frozenset[int] = frozenset()


class PlacementState:
    """The state of one placement; `device` and `reason` are filled step by step."""

    def __init__(self, support: OpSupport, caps: Caps, hints: PlacementHints) -> None:
        self.support = support
        self.hints = hints
        self.graph = support.graph
        self.topology = support.topology
        self._is_cpu = self.topology.is_cpu
        self._gpus = tuple(takewhile(lambda d: not self._is_cpu(d), hints.order))
        """Devices that are preferred to a CPU."""
        self.caps = caps
        self.device: dict[int, int] = {}
        self.reason: dict[int, str] = {}
        self.fixed: set[int] = set()
        self.pinned_devices: dict[int, int] = dict(support.state_devices)
        self.passed_over: dict[int, str] = {}
        self.user_reasons: dict[int, str] = {}
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
        """Return True if a device may run a node; beyond its cap, only neighbours of streams."""
        if self.unsupported_reason(node, device) is None:
            return True
        at_peak = self._rank[node.id] in self.caps.peaks[device]
        is_near = not at_peak and self._near_streams(node, device)
        return is_near and self.support.supports(node, device)

    def _near_streams(self, node: Node, device: int) -> bool:
        cap = self.caps.first[device]
        neighbours = (*self.support.operands[node.id], *self.support.readers[node.id])
        if cap is None or cap == NONE:  # a state that lives there attracts no neighbours
            return False
        return any(self.device.get(n) == device and self._rank[n] >= cap for n in neighbours)

    def _first_candidate(self, node: Node) -> int:
        first = next(d for d in self.hints.order if self.supports(node, d))
        return self._near_cpu(node) if self._gpus and self._is_cpu(first) else first

    def _near_cpu(self, node: Node) -> int:
        """Return the CPU for a node that no other device supports: that of the host with most of
        its operands, else that of a host which reads its result.
        """
        if len(self.topology.hosts) == 1:
            return self.topology.cpu
        placed = [n for n in self.support.operands[node.id] if n in self.device]
        neighbours = sorted(placed, key=lambda n: (-self._bytes(n), n))
        neighbours += [n for n in self.support.readers[node.id] if n in self.device]
        cpus = (self.topology.cpu_of(self.device[n]) for n in neighbours)
        return next(
            (d for d in cpus if d is not None and self.supports(node, d)), self.topology.cpu
        )

    def put(self, node: Node, device: int, rule: str) -> None:
        self.device[node.id] = device
        self.reason[node.id] = rule

    def place_remaining(self, late: Collection[int] = ()) -> None:
        """Place nodes next to placed operands, then next to placed readers. CPU placements are not
        propagated, because one op there would attract all unconstrained nodes. late: nodes that are
        placed separately, like states.
        """
        devices = self._others or set(range(self.topology.cpu))
        skipped = {*late, *self.graph.states}
        for node in [n for n in self._left() if n.id not in skipped]:
            self._place_with_neighbour(node, self.support.operands[node.id], devices)
        for node in [n for n in reversed(self._left()) if n.id not in skipped]:
            self._place_with_neighbour(node, self.support.readers[node.id], devices)

    def _left(self) -> list[Node]:
        """Return the nodes without a device."""
        return [n for n in self.support.computed if n.id not in self.device]

    def _place_with_neighbour(
        self, node: Node, neighbours: Sequence[int], devices: set[int]
    ) -> None:
        placed = [n for n in neighbours if self.device.get(n) in devices]
        if len(placed) > 1:
            placed.sort(key=lambda n: (-self._bytes(n), n))
        for other in placed:
            if self.supports(node, self.device[other]):
                self.put(node, self.device[other], f"next to {self.graph.nodes[other].name}")
                return

    def _bytes(self, node_id: int) -> int:
        return self.graph.words[node_id] * WORD_BYTES
