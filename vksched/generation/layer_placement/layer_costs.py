"""Layer costs: estimates the time and memory of each layer of a language model on each device.

    decode step, prefill microbatch --passes--> nodes by layer --plan/costs--> seconds
    in the precision of each device             '--> weights, KV cache: bytes

Nodes are assigned to layers by name: "token_embd", "blk.0", "blk.1", ..., "output". Nodes outside
of all layers, such as rotary tables and masks, count as free. A node that a device cannot run is
costed on the CPU, with the transfers there and back. Complexity: the passes and one plan for each
of the two steps and each precision mode. Examples: tests/generation/test_place_layers.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...common.dtypes import WORD_BYTES
from ...engine.request import Request
from ...ir.graph import Graph, Node
from ...ir.precision import SINGLE
from ...passes.set_precision import set_precision
from ...plan.costs import node_cost
from ...plan.costs.op_support import OpSupport
from ...plan.plan import Plan
from ...plan.types.offsets import aligned
from ...planner.planner import plan_graph
from ...topology.device_spec import DeviceSpec
from ...topology.topology import Topology
from .partition_layers import DeviceBudget, Experts, Layer

EXPERTS, INSIDE = "_exps", "experts"
"""The part of a name that marks expert weights, and the name scope of their computation."""
USED_SHARE = 0.98
"""The usable share of a device's memory, because pages are not filled completely."""
UNLIMITED_BYTES = 1 << 60
FIRST, BETWEEN, LAST = "token_embd", "blk", "output"
"""The prefix of layer names."""
_LAYER = re.compile(rf"({FIRST}|{BETWEEN}\.\d+|{LAST})[._]")


@dataclass(frozen=True)
class LayerCosts:
    """The costs of all layers. layers: in order. places: the devices of the machine, the host last.
    shared_bytes: the memory on a device that all steps need in addition to the layers' memory.
    tokens: the size of a prefill microbatch. hidden_bytes: the bytes of its hidden states.
    """

    layers: tuple[Layer, ...]
    places: tuple[DeviceBudget, ...]
    shared_bytes: int
    tokens: int
    hidden_bytes: int


def measure_layers(
    write: Graph, read: Graph, sizes: Sequence[int], topology: Topology, modes: Sequence[str] = ()
) -> LayerCosts:
    """Return the costs of layers.

    write: the decode step of one token. read: the largest step, whose sizes in tokens, from 1 on,
    are all that will be compiled. modes: the precision mode of each device; float32 if empty.
    """
    modes = modes or [SINGLE] * len(topology.devices)
    writing, reading = _StepCosts(write, topology, modes), _StepCosts(read, topology, modes)
    times = sum(sizes[1:]) / sizes[-1]
    one, many = writing.step, reading.step
    shared_bytes = round(len(sizes) * one.table_bytes + one.flow_bytes + times * many.flow_bytes)
    layers = [
        Layer(
            name,
            one.weights(name),
            one.cache_bytes(name),
            round(one.next_value_bytes(name) + (len(sizes) - 1) * many.next_value_bytes(name)),
            writing.seconds(name),
            reading.seconds(name),
            _experts(name, writing, reading),
        )
        for name in one.layers
    ]
    devices = range(len(topology.devices))
    range_s = [(one.range_s(device), many.range_s(device)) for device in devices]
    places = places_of(topology, shared_bytes, range_s)
    about = sizes[-1], many.hidden_bytes
    return LayerCosts(tuple(layers), places, shared_bytes, *about)


def places_of(
    topology: Topology, shared_bytes: int, range_s: Sequence[tuple[float, float]]
) -> tuple[DeviceBudget, ...]:
    """Return the devices with their current memory budgets. range_s: for each device, the overhead
    of a layer range for one token and for one prefill microbatch, in seconds.
    """
    return tuple(
        DeviceBudget(
            math.inf if spec.kind == "cpu" else USED_SHARE * spec.memory_bytes - shared_bytes,
            *seconds,
        )
        for spec, seconds in zip(topology.devices, range_s, strict=True)
    )


def _experts(name: str, writing: _StepCosts, reading: _StepCosts) -> Experts | None:
    size_bytes = sum(b for key, b in writing.step.weights(name).items() if EXPERTS in key)
    if not size_bytes:
        return None
    return Experts(size_bytes, writing.experts_s(name), reading.experts_s(name))


class _StepCosts:
    """The seconds of one step on a machine whose devices compute in their own precision modes.

    step: the step in the first device's mode, which has the sizes.
    """

    def __init__(self, graph: Graph, topology: Topology, modes: Sequence[str]) -> None:
        self._cpu = topology.cpu
        by_mode = {
            mode: _Step(set_precision(graph, {n.id: mode for n in graph.nodes}), topology)
            for mode in dict.fromkeys(modes)
        }
        self._by_device = [by_mode[mode] for mode in modes]
        self.step = self._by_device[0]

    def seconds(self, name: str) -> tuple[float, ...]:
        """Return the seconds of a layer's nodes on each device."""
        return tuple(step.seconds(name, d) for d, step in enumerate(self._by_device))

    def experts_s(self, name: str) -> tuple[float, ...]:
        """Return, for each device, the extra seconds of a layer whose experts are on the CPU."""
        on_cpu_s = self._by_device[self._cpu].experts_s(name, self._cpu)
        return tuple(
            on_cpu_s - step.experts_s(name, device) + step.round_trip_s(device)
            for device, step in enumerate(self._by_device)
        )


class _Step:
    """One step on a machine, in one precision mode."""

    def __init__(self, graph: Graph, topology: Topology) -> None:
        # weights of pinned layers are not converted to another type
        pinned = [("*", spec.name) for spec in topology.devices if not spec.disabled_reason]
        self.graph = Request(graph, tuple(pinned[:1]), {}).optimized(topology).graph
        self.topology = topology
        self._support = OpSupport(self.graph, topology)
        self._plan = _planned(self.graph, topology)
        self._written = frozenset(self._plan.in_place.values())
        found: dict[str, list[Node]] = {}
        for node in self._support.computed:
            in_place = node.op == "assign" and self.graph.states[node.id] in self._written
            if (layer := _LAYER.match(node.name)) and not in_place:
                found.setdefault(layer[1], []).append(node)
        self.layers = {name: found[name] for name in sorted(found, key=_position)}
        """The nodes of each layer, without nodes of states that are updated in place."""

    def weights(self, name: str) -> dict[str, int]:
        """Return the bytes of a layer's weights by their names."""
        graph = self.graph
        read = {leaf for node in self.layers[name] for leaf in graph.leaves_read(node)}
        return {graph.nodes[w].name: self._bytes(w) for w in sorted(read & graph.data.keys())}

    def cache_bytes(self, name: str) -> int:
        """Return the bytes of a layer's KV cache."""
        return sum(map(self._bytes, self._states(name)))

    def next_value_bytes(self, name: str) -> int:
        """Return the bytes of the KV cache's next values that are not written in place."""
        return sum(self._bytes(s) for s in self._states(name) if s not in self._written)

    @property
    def table_bytes(self) -> int:
        """The bytes of constants and weights outside of all layers, such as rotary tables."""
        held = {key: size for name in self.layers for key, size in self.weights(name).items()}
        return self._plan.memory[0].weight_bytes - sum(held.values())

    @property
    def flow_bytes(self) -> int:
        """The bytes of a run's intermediate results and transfers on a device, without
        `next_value_bytes`.
        """
        memory = self._plan.memory[0]
        held = (
            memory.weight_bytes + memory.state_bytes + sum(map(self.next_value_bytes, self.layers))
        )
        return max(0, memory.peak_bytes - held) + 2 * self._crossing_bytes

    def seconds(self, name: str, device: int) -> float:
        """Return the seconds of a layer's nodes on a device."""
        return sum(self._node_s(node, device) for node in self.layers[name])

    def experts_s(self, name: str, device: int) -> float:
        """Return the seconds of a layer's experts on a device."""
        inside = f"{name}.{INSIDE}."
        nodes = (node for node in self.layers[name] if node.name.startswith(inside))
        return sum(self._node_s(node, device) for node in nodes)

    def range_s(self, device: int) -> float:
        """Return the overhead of a layer range in seconds: transfers of hidden states to and from
        the device.
        """
        return node_cost.submission_seconds(self.topology.devices[device]) + self._transfer_s(
            device
        )

    def _node_s(self, node: Node, device: int) -> float:
        if self._support.supports(node, device):
            return self._support.node_seconds(node.id, device)
        return self._support.node_seconds(node.id, self.topology.cpu) + self.round_trip_s(device)

    def round_trip_s(self, device: int) -> float:
        """Return the seconds of a round trip from a device to the CPU."""
        specs = self.topology.devices
        both = node_cost.submission_seconds(specs[device]) + node_cost.submission_seconds(specs[-1])
        return both + self._transfer_s(device)

    def _transfer_s(self, device: int) -> float:
        """Return the seconds that hidden states take to a device and back."""
        way, cpu, size_bytes = self.topology.route, self.topology.cpu, self.hidden_bytes
        if device == cpu:
            return 0.0
        return way(cpu, device).seconds(size_bytes) + way(device, cpu).seconds(size_bytes)

    @cached_property
    def hidden_bytes(self) -> int:
        return self.layers[FIRST][-1].type.device_bytes

    @cached_property
    def _crossing_bytes(self) -> int:
        """The bytes that a layer range receives: hidden states, and values outside of all layers
        that all layers read, such as rotary tables.
        """
        mine = {node.id for nodes in self.layers.values() for node in nodes}
        read = {i for n in mine for i in self._support.operands[n] if i not in mine}
        others = (n.id for n in self._support.computed if n.id in read)
        return self.hidden_bytes + sum(map(self._bytes, others))

    def _states(self, name: str) -> list[int]:
        return [node.id for node in self.layers[name] if node.op == "state"]

    def _bytes(self, value: int) -> int:
        return aligned(self.graph.words[value]) * WORD_BYTES


def _position(name: str) -> tuple[int, int]:
    """Return the sort key of a layer."""
    first, _, number = name.partition(".")
    return (FIRST, BETWEEN, LAST).index(first), int(number or 0)


def _planned(graph: Graph, topology: Topology) -> Plan:
    """Return the plan of a step on the first enabled device, with unlimited memory."""
    working = [spec for spec in topology.devices[:-1] if not spec.disabled_reason]
    roomy: list[DeviceSpec] = [
        replace(spec, memory_bytes=UNLIMITED_BYTES, memory_node="") for spec in working[:1]
    ]
    return plan_graph(graph, Topology((*roomy, topology.devices[-1])), policy="priority")
