"""Options: the choices of a dynamic run, as plain values.

Problem: the best device of a piece of a graph is known only when the piece is ready. Method: each
piece is recorded on every device that supports it and has memory for it. All values between pieces
have a fixed span on each of these devices for the whole run, so that pieces may run in any order. A
device copies out the results of a piece, and copies in the operands that it lacks, one value at a
time.

    piece 0 --h--> piece 1        gpu:0   [copy in x] [0, copy out h] [copy in h] [1, copy out y]
                                  gpu:1   equal recordings; a run submits the ones that it needs

Examples: tests/planner/test_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir.graph import Graph
from ...topology.host_names import DRIVER
from ...topology.topology import Topology
from ..costs.node_cost import COPY_IN, COPY_OUT
from ..plan import Plan
from ..simulation.simulate_plan import host_seconds, overhead_seconds
from ..types.plan_types import PlanValue, Upload


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes that run as one, in order of execution.

    reads: values that other pieces or the caller produce. gives: values that other pieces or the
    caller read. seconds: its time on each device that recorded it. rank: seconds of the longest
    path from its start to the end of the graph.
    """

    nodes: tuple[int, ...]
    reads: tuple[int, ...]
    gives: tuple[int, ...]
    seconds: Mapping[int, float]
    rank: float


@dataclass(frozen=True, eq=False)
class DeviceRecordings:
    """The recordings of one device.

    plan: its memory, and a split for each recording. copies: for each value, its upload. entries:
    for each value, the split that copies it in; empty on the CPU. pieces: for each piece, its
    split.
    """

    plan: PlanValue
    copies: Mapping[int, Upload]
    entries: Mapping[int, int]
    pieces: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class Options:
    """All choices of the runs of one graph.

    pieces: in topological order. makers: for each value, the piece that produces it; all other
    values come from the caller. on: for each device, its recordings. rules: for each node that the
    user placed, its rule. notes: texts for the user.
    """

    graph: Graph
    topology: Topology
    pieces: tuple[Piece, ...]
    makers: Mapping[int, int]
    on: Mapping[int, DeviceRecordings]
    rules: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _moves: dict[tuple[str, int, int], float] = field(default_factory=dict, repr=False)

    def enters_s(self, value: int, device: int) -> float:
        """Return the seconds of the host to bring a value to a device."""
        return self._move(COPY_IN, value, device)

    def leaves_s(self, value: int, device: int) -> float:
        """Return the seconds of the host to fetch a value from a device."""
        return self._move(COPY_OUT, value, device)

    def entry_s(self, value: int, device: int) -> float:
        """Return the seconds of a device to copy in a value from its staging buffer."""
        key = "entry", value, device
        if key not in self._moves:
            found = overhead_seconds(self.graph, self.topology, device, (value,), ())
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
        """Return the seconds of the network for a value between the driver and a device; 0 for
        local devices.
        """
        host = self.topology.host_of(device)
        if host == DRIVER:
            return 0.0
        ends = (DRIVER, host) if way == COPY_IN else (host, DRIVER)
        size_bytes = self.graph.nodes[value].type.device_bytes
        return self.topology.link_between(*ends).seconds(size_bytes)


@dataclass(frozen=True, eq=False)
class DynamicPlan(Plan):
    """A run, measured or expected, as an ordinary plan.

    options: the choices of the run. Its splits are pieces in the order of submission, each with its
    uploads.
    """

    options: Options | None = None
