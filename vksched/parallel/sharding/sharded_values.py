"""Sharded values: the layouts of each value of the original graph in the new one, and conversions.

    shards -> whole         all-gather: each device concatenates the shards
    whole -> shards         a shard is sent to each device that does not have the whole value
    partial sums -> shards  reduce-scatter: each device sums its shard of all partial sums
    partial sums -> whole   all-reduce, as both of the above: n devices each send 2 (n - 1) / n of
                            the bytes

Values that depend only on weights and states are computed where they are needed, in the layout that
is needed. A state has the layout in which it is needed first. All conversions are ordinary nodes,
and transfers are those of the plan. Complexity: O(devices^2) nodes for a conversion. Examples:
tests/parallel/test_shard.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...ir.attrs import Attrs
from ...ir.graph import Graph, Node
from ...ir.graph_builder import GraphBuilder
from ...ir.sharding_rule import ANY, PARTIAL_SUM, Sharded, factors_of
from ...ops.creation.state import StatePiece
from .resharding import MoveEmitter
from .sharding_strategy import Devices, ShardedAxis, ShardingStrategy, shares, units_of

SMALL = 1024
"""Minimum size of values that are reduced in shards, and of states that are sharded."""


@dataclass
class ShardedValue:
    """The nodes of the new graph that represent a value.

    `whole` holds replicas by device, None for an unknown one; `shardings` a node for each shard;
    `terms` the devices and a node for each partial sum.
    """

    whole: dict[str | None, int] = field(default_factory=dict)
    shardings: dict[tuple[Devices, ShardedAxis], tuple[int, ...]] = field(default_factory=dict)
    terms: tuple[Devices, tuple[int, ...]] | None = None

    def nodes(self) -> list[int]:
        """Return the nodes that are the value or parts of it, the most complete ones first."""
        ids = [*self.whole.values(), *(i for parts in self.shardings.values() for i in parts)]
        return [*ids, *(self.terms[1] if self.terms else ())]


class ShardedValues:
    """The layouts of all values.

    `lazy` nodes depend only on weights, constants and states; `weights_of` returns the shares of
    the devices of a group; `pieces` are states with a layout already; `host` names the CPU.
    """

    def __init__(
        self,
        graph: Graph,
        builder: GraphBuilder,
        host: str,
        weights_of: Callable[[Devices], Sequence[float]],
        pieces: Mapping[int, tuple[Devices, ShardedAxis] | None],
        pipeline_order: Mapping[str, int],
    ) -> None:
        self.graph = graph
        self.builder = builder
        self._moves = MoveEmitter(builder)
        self.host = host
        self.held = [ShardedValue() for _ in graph.nodes]
        self.lazy = input_independent_nodes(graph)
        self._weights_of = weights_of
        self._pipeline_order = pipeline_order
        self._stored: dict[int, tuple[Devices, ShardedAxis] | None] = dict(pieces)

    # -- queries and conversions -------------------------------------------------------------------

    def is_free(self, value: int) -> bool:
        """Return True if a value is a state without a layout."""
        return self.graph.nodes[value].op == "state" and value not in self._stored

    def call(self, node: Node) -> Sharded:
        """Return a node as a sharding rule sees it."""
        return Sharded(self.graph.input_types(node), node.type, node.attrs)

    def even_shard(self, value: int, devices: Devices) -> ShardedAxis | None:
        """Return the sharding along the first axis that is long enough; None for small values."""
        type_ = self.graph.nodes[value].type
        if type_.size < SMALL:
            return None
        axis = next((a for a, n in enumerate(type_.shape) if n >= len(devices)), None)
        if axis is None:
            return None
        return ShardedAxis(axis, shares(type_.shape[axis], self._weights_of(devices)))

    def whole(self, value: int, device: str | None, group: Devices = ()) -> int:
        """Return the node with all of a value on a device, or one to transfer there."""
        held, node = self.held[value], self.graph.nodes[value]
        if device in held.whole:
            return held.whole[device]
        if value in self.lazy and not node.declaration.leaf and node.op != "state":
            inputs = [self.whole(i, device, group) for i in node.inputs]
            new = self.builder.emit(node.op, inputs, node.attrs, node.name, device)
        elif held.whole and not self.gathers(value, device):
            return next(iter(held.whole.values()))
        elif node.op == "state" and not held.shardings:
            return self._whole_state(node, device, group)
        elif node.declaration.leaf:
            device, new = None, self.builder.leaf(node)
        elif held.shardings:
            new, device = self._gather(value, device)
        else:
            new, device = self._summed(value, device)
        held.whole[device] = new
        return new

    def gathers(self, value: int, device: str | None) -> bool:
        """Return True if a device has a shard and gathers the others, for fewer transfers."""
        leaf = self.graph.nodes[value].declaration.leaf
        return not leaf and any(device in devices for devices, _ in self.held[value].shardings)

    def shard(self, value: int, devices: Devices, shard: ShardedAxis) -> tuple[int, ...]:
        """Return the nodes that are the shards of a value."""
        held, node = self.held[value], self.graph.nodes[value]
        key = devices, shard
        if key not in held.shardings:
            if self.is_free(value):
                self._stored[value] = key
            if node.op == "state" and self._stored.get(value) == key:
                held.shardings[key] = self._state_pieces(node, devices, shard)
            elif node.op in ("weight", "constant"):
                held.shardings[key] = self._leaf_parts(node, devices, shard)
            else:
                held.shardings[key] = self._lazy_shard(node, *key) or self._converted(value, *key)
        return held.shardings[key]

    def put(self, node: Node, strategy: ShardingStrategy) -> None:
        """Compute a node in shards."""
        call, factor = self.call(node), strategy.factor
        operands = [self._operand(i, p, call, strategy) for p, i in enumerate(node.inputs)]
        built: list[int] = []
        first = 0
        for part, device in enumerate(strategy.devices):
            size = strategy.units[part] if strategy.units else 0
            changed = factor.attrs(first, size) if strategy.units else {}
            inputs = [ids[part] for ids in operands]
            attrs = {**node.attrs, **changed}
            name = f"{node.name}@{part}"
            position = self.turn(node)
            built.append(self.builder.emit(node.op, inputs, attrs, name, device, position))
            first += size
        shard = strategy.result(call)
        if shard is not None:
            self.held[node.id].shardings[strategy.devices, shard] = tuple(built)
        else:
            self.held[node.id].terms = strategy.devices, self._weighted(node, strategy, built)

    def settle(self, value: int) -> None:
        """Reduce partial sums, each shard on its device."""
        terms = self.held[value].terms
        assert terms is not None
        shard = self.even_shard(value, terms[0])
        if shard is None:
            self.whole(value, terms[0][0])
        else:
            self.shard(value, terms[0], shard)

    def compute(self, node: Node, devices: Sequence[str | None]) -> None:
        """Compute a whole node on each of some devices."""
        group = tuple(device for device in devices if device is not None)
        for device in devices:
            inputs = [self.whole(i, device, group) for i in node.inputs]
            position = self.turn(node)
            new = self.builder.emit(node.op, inputs, node.attrs, node.name, device, position)
            self.held[node.id].whole[device] = new

    def assign(self, node: Node) -> None:
        """Write the next value of a state, shard by shard."""
        state, value = node.inputs
        shardings = self.held[value].shardings
        if self.is_free(state):
            self._stored[state] = next(iter(shardings)) if shardings else None
        stored = self._stored[state]
        if stored is None:
            self.compute(node, [None])
            return
        parts = zip(self.shard(state, *stored), self.shard(value, *stored), stored[0], strict=True)
        built = [
            self.builder.emit("assign", (held, new), {}, f"{node.name}@{part}", device)
            for part, (held, new, device) in enumerate(parts)
        ]
        self.held[node.id].shardings[stored] = tuple(built)

    def turn(self, node: Node) -> int | None:
        """Return the pipeline position of a node; None if it has none."""
        return None if node.id in self.lazy else self._pipeline_order.get(node.name)

    # -- construction ------------------------------------------------------------------------------

    def _operand(
        self, value: int, position: int, call: Sharded, strategy: ShardingStrategy
    ) -> tuple[int, ...]:
        shard = strategy.operand(call, position)
        if shard is not None:
            return self.shard(value, strategy.devices, shard)
        held = self.held[value]
        if strategy.factor.operands[position] is ANY:
            for there, ids in [
                *((key[0], ids) for key, ids in held.shardings.items()),
                held.terms or ((), ()),
            ]:
                if there == strategy.devices:
                    return ids
        if (
            held.terms is not None
            and held.terms[0] == strategy.devices
            and strategy.accepts_partial_sum(position)
        ):
            return held.terms[1]
        if strategy.factor.operands[position] is PARTIAL_SUM and strategy.units:
            return self._as_terms(value, strategy.devices)
        return tuple(self.whole(value, device, strategy.devices) for device in strategy.devices)

    def _as_terms(self, value: int, devices: Devices) -> tuple[int, ...]:
        """Return a value as partial sums of which all but the first are zeros."""
        node = self.graph.nodes[value]
        attrs = Attrs({"shape": node.type.shape, "value": 0.0, "dtype": node.type.dtype})
        zeros = [
            self.builder.emit("full", (), attrs, f"{node.name}.zeros@{part}", device)
            for part, device in enumerate(devices[1:], 1)
        ]
        return (self.whole(value, devices[0], devices), *zeros)

    def _weighted(
        self, node: Node, strategy: ShardingStrategy, parts: list[int]
    ) -> tuple[int, ...]:
        if not strategy.is_mean:
            return tuple(parts)
        total = sum(strategy.units)
        out: list[int] = []
        for part, (one, units) in enumerate(zip(parts, strategy.units, strict=True)):
            share = self.builder.scalar(units / total, node.type.dtype)
            name = f"{node.name}.share@{part}"
            out.append(self.builder.emit("mul", (one, share), {}, name, strategy.devices[part]))
        return tuple(out)

    def _whole_state(self, node: Node, device: str | None, group: Devices) -> int:
        if self.is_free(node.id):
            shard = self.even_shard(node.id, group) if len(group) > 1 else None
            self._stored[node.id] = None if shard is None else (group, shard)
        stored = self._stored[node.id]
        if stored is None:
            home = group[0] if len(group) > 1 else None
            # an unpinned state is placed with its readers: the first device counts
            new = self.held[node.id].whole[home or device] = self.builder.leaf(node, home)
            return new
        self.shard(node.id, *stored)
        new, where = self._gather(node.id, device)
        self.held[node.id].whole[where] = new
        return new

    def _state_pieces(self, node: Node, devices: Devices, shard: ShardedAxis) -> tuple[int, ...]:
        out: list[int] = []
        state = self.graph.keys[node.id]
        for part, (begin, end) in enumerate(shard.ranges()):
            key = StatePiece(state, shard.axis, begin, end - begin)  # type: ignore[arg-type]
            about = shard.axis, begin, end - begin, f"{node.name}@{part}", key, devices[part]
            out.append(self.builder.part_of_leaf(node, *about))
        return tuple(out)

    def _leaf_parts(self, node: Node, devices: Devices, shard: ShardedAxis) -> tuple[int, ...]:
        out: list[int] = []
        for part, (begin, end) in enumerate(shard.ranges()):
            key = ("part", self.graph.keys[node.id], shard.axis, begin, end)
            about = shard.axis, begin, end - begin, f"{node.name}@{part}", key, devices[part]
            out.append(self.builder.part_of_leaf(node, *about))
        return tuple(out)

    def _lazy_shard(
        self, node: Node, devices: Devices, shard: ShardedAxis
    ) -> tuple[int, ...] | None:
        """Compute the shards of a lazy value, each on its device, if possible."""
        if node.id not in self.lazy or node.declaration.leaf or node.op == "state":
            return None
        call = self.call(node)
        for factor in factors_of(node.op, call):
            if factor.result == shard.axis:
                units = units_of(shard, factor, node.type.shape[shard.axis])
                if units is not None:
                    self.put(node, ShardingStrategy(factor, devices, units))
                    return self.held[node.id].shardings[devices, shard]
        return None

    def _converted(self, value: int, devices: Devices, shard: ShardedAxis) -> tuple[int, ...]:
        held, node = self.held[value], self.graph.nodes[value]
        if node.id in self.lazy or (not held.shardings and held.terms is None):
            return self._from_whole(value, devices, shard)
        if all(device in held.whole for device in devices):
            return self._from_whole(value, devices, shard)
        if held.shardings:
            (source, other), ids = next(iter(held.shardings.items()))
            ranges = [(i, d, r) for i, d, r in zip(ids, source, other.ranges(), strict=True)]
            return tuple(
                self._moves.range_of(
                    ranges, other.axis, shard.axis, begin_end, f"{node.name}.part@{part}", device
                )
                for part, (device, begin_end) in enumerate(
                    zip(devices, shard.ranges(), strict=True)
                )
            )
        assert held.terms is not None
        return self._moves.scattered(node.name, held.terms, devices, shard)

    def _from_whole(self, value: int, devices: Devices, shard: ShardedAxis) -> tuple[int, ...]:
        node, out = self.graph.nodes[value], list[int]()
        for part, (device, (begin, end)) in enumerate(zip(devices, shard.ranges(), strict=True)):
            source = self.whole(value, device, devices)
            # the host slices inputs that are no views, so that only the shard is transferred
            there = self.host if node.op == "input" else self.builder.pinned_device(source)
            about = shard.axis, begin, end, f"{node.name}.part@{part}"
            out.append(self._moves.slice(source, *about, there))
        return tuple(out)

    def _gather(self, value: int, device: str | None) -> tuple[int, str | None]:
        node = self.graph.nodes[value]
        shardings = self.held[value].shardings
        # prefer a sharding with a shard on the device: fewer transfers
        devices, shard = next((key for key in shardings if device in key[0]), next(iter(shardings)))
        there, ids = device or devices[0], shardings[devices, shard]
        return self._moves.concat(ids, shard.axis, node.name, there), there

    def _summed(self, value: int, device: str | None) -> tuple[int, str | None]:
        held, node = self.held[value], self.graph.nodes[value]
        assert held.terms is not None, node
        devices, ids = held.terms
        shard = self.even_shard(value, devices)
        if shard is not None:
            self.shard(value, devices, shard)
            return self._gather(value, device)
        there = device or devices[0]
        return self._moves.add(ids, node.name, there), there


def input_independent_nodes(graph: Graph) -> frozenset[int]:
    """Return the nodes that do not depend on inputs, leaves included."""
    out: set[int] = set()
    for node in graph.nodes:
        if node.op != "input" and node.op != "assign" and out.issuperset(node.inputs):
            out.add(node.id)
    return frozenset(out)
