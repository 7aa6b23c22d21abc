"""Options: what a run that decides while it goes may choose from, as plain values.

Problem: where a piece of a graph is best run is known only when it is ready. Method: each piece is
recorded on every device that can run it and has room for it. All values that go from piece to piece
have a place of their own on each such device, for the whole run, so that pieces may run in any
order. A device copies out what a piece gives, and copies in what it has not got, one value at a
time.

    piece 0 --h--> piece 1        gpu:0   [copy in x] [0, copy out h] [copy in h] [1, copy out y]
                                  gpu:1   the same: of each recording a run submits what it needs

Examples: tests/planner/test_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir.graph import Graph
from ...topology.host_names import CALLER
from ...topology.topology import Topology
from ..costs.node_cost import COPY_IN, COPY_OUT
from ..plan import Plan
from ..simulation.simulate_plan import beside_seconds, host_seconds
from ..types.plan_types import CopyIn, PlanValue


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes that run as one, in order of execution.

    reads: values that other pieces or the caller give. gives: values that others or the caller
    read. seconds: what it takes on each device that has it. rank: seconds of the longest way from
    its start to the end of the graph.
    """

    nodes: tuple[int, ...]
    reads: tuple[int, ...]
    gives: tuple[int, ...]
    seconds: Mapping[int, float]
    rank: float


@dataclass(frozen=True, eq=False)
class Recorded:
    """What one device has recorded. plan: its memory, and a split for each thing that may be
    submitted there. copies: by value how it enters. entries: by value the split that copies it in;
    none on the CPU. pieces: by piece its split.
    """

    plan: PlanValue
    copies: Mapping[int, CopyIn]
    entries: Mapping[int, int]
    pieces: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class Options:
    """All that runs of one graph may choose from.

    pieces: in topological order. makers: by value the piece that gives it; what is not there comes
    from the caller. on: by device, what it has recorded. rules: of nodes that the user placed.
    notes: for the user.
    """

    graph: Graph
    topology: Topology
    pieces: tuple[Piece, ...]
    makers: Mapping[int, int]
    on: Mapping[int, Recorded]
    rules: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _moves: dict[tuple[str, int, int], float] = field(default_factory=dict, repr=False)

    def enters_s(self, value: int, device: int) -> float:
        """Returns what the host takes to bring a value to a device."""
        return self._move(COPY_IN, value, device)

    def leaves_s(self, value: int, device: int) -> float:
        """Returns what the host takes to get a value from a device."""
        return self._move(COPY_OUT, value, device)

    def entry_s(self, value: int, device: int) -> float:
        """Returns what a device takes to copy in a value that the host has brought."""
        key = "entry", value, device
        if key not in self._moves:
            found = beside_seconds(self.graph, self.topology, device, (value,), ())
            self._moves[key] = 0.0 if self.topology.is_cpu(device) else found
        return self._moves[key]

    def _move(self, way: str, value: int, device: int) -> float:
        key = way, value, device
        if key not in self._moves:
            size_bytes = self.graph.nodes[value].type.device_bytes
            seconds = host_seconds(self.topology, device, way, size_bytes)
            self._moves[key] = seconds + self.network_s(value, device, way)
        return self._moves[key]

    def network_s(self, value: int, device: int, way: str = COPY_IN) -> float:
        """Returns what the network takes of that, as who decides has each value: none at home."""
        host = self.topology.host_of(device)
        if host == CALLER:
            return 0.0
        ends = (CALLER, host) if way == COPY_IN else (host, CALLER)
        size_bytes = self.graph.nodes[value].type.device_bytes
        return self.topology.link_between(*ends).seconds(size_bytes)


@dataclass(frozen=True, eq=False)
class DynamicPlan(Plan):
    """What a run did, or is expected to do, as a plan like any other. options: what it chose from.

    Its splits are pieces, in the order in which they were submitted, each with what was copied in
    for it.
    """

    options: Options | None = None
