"""Choose shardings: compute each node replicated or in shards, whichever is cheapest.

A section of the config starts a sharding: `axis` shards its inputs, `weights` the weights of its
matmuls. From there it propagates: a node with sharded operands is computed in corresponding shards
if its sharding rule allows this, or after a gather or a reduction, depending on the costs of
transfers and of the work.

    x (whole) --slice--> x@0 --matmul--> h@0 --relu--> ... --sum--> loss       device 0
              `--------> x@1 --matmul--> h@1 --relu--> ... ---^                device 1

Without sections that shard, nodes are unchanged. Complexity: O(edges * factors * devices^2).
Examples: tests/parallel/test_shard.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ...common.errors import PlanError
from ...ir.graph import Graph, Node, readers_of
from ...ir.graph_builder import BuildResult, GraphBuilder
from ...ir.sharding_rule import PARTIAL_SUM, Factor, factors_of
from ...topology.topology import Topology
from ..config.config_types import AUTO, COLUMNS, Section, Shard
from .reshard_cost import ReshardCosts
from .sharded_values import SMALL, ShardedValues
from .sharding_strategy import Devices, ShardedAxis, ShardingStrategy, divides, shares, units_of


class Pace(Protocol):
    """The costs of nodes of the original graph."""

    def seconds(self, node: int, device: str) -> float:
        """Return the expected seconds of a whole node on a device."""


class Sharder:
    """Shards one graph; `sections` holds that of each node, without `auto` except in ratios."""

    def __init__(
        self,
        graph: Graph,
        sections: Sequence[Section | None],
        topology: Topology,
        pace: Pace,
        pieces: Mapping[int, tuple[Devices, ShardedAxis] | None],
        pipeline_order: Mapping[str, int],
    ) -> None:
        self.graph = graph
        self.sections = sections
        self.topology = topology
        self.pace = pace
        self._ratios: dict[str, tuple[float, ...]] = {}
        self._by_group: dict[Devices, tuple[float, ...]] = {}
        self._batch: dict[str, int] = {}
        host = topology.devices[topology.cpu].name
        self.shard: set[str] = set()
        """The names of sections with a sharded node."""
        self.builder = GraphBuilder(graph)
        self.values = ShardedValues(
            graph, self.builder, host, self._weights_of, pieces, pipeline_order
        )
        self.prices = ReshardCosts(self.values, topology)
        self._readers = readers_of(graph)

    def run(self, shown: Sequence[int]) -> BuildResult:
        """Return the new graph. shown: nodes whose full values are needed besides outputs."""
        values = self.values
        for node in self.graph.nodes:
            if node.op == "input":
                values.held[node.id].whole[None] = self.builder.leaf(node)
            elif node.op == "assign":
                values.assign(node)
            elif node.id not in values.lazy:
                self._visit(node)
        outputs = {name: self._shown(i) for name, i in self.graph.outputs}
        seen = [self._shown(node_id) for node_id in shown]
        old = {node.name: values.held[node.id].nodes() for node in self.graph.nodes}
        old |= {name: values.held[at].nodes() for name, at in self.graph.aliases.items()}
        return self.builder.finish(outputs, seen, old)

    def _shown(self, node_id: int) -> int:
        """Return the node with all of a value, gathered on the host if no device has it."""
        held = self.values.held[node_id]
        if held.whole or node_id in self.values.lazy:
            return self.values.whole(node_id, next(iter(held.whole), None))
        return self.values.whole(node_id, self.values.host)

    # -- the choice --------------------------------------------------------------------------------

    def _visit(self, node: Node) -> None:
        section = self.sections[node.id]
        group = self._group(section)
        one = section.devices[0] if section and section.devices and not group else None
        strategy = None if one else self._strategy(node, section, group)
        if strategy is not None:
            if section is not None and group:
                self.shard.add(section.name)
            self.values.put(node, strategy)
            if strategy.result(self.values.call(node)) is None and not self._may_wait(node):
                self.values.settle(node.id)
        elif one or not (group or self._spread(node)):
            self.values.compute(node, [one])
        else:
            self.values.compute(node, self._places(node, group or self._spread(node)))

    def _group(self, section: Section | None) -> Devices:
        """Return the devices over which a section shards; () if it does not."""
        if section is None or section.shard is None:
            return ()
        devices = section.devices
        if len(devices) > 1:
            self._by_group.setdefault(devices, self._ratio(section))
        return devices if len(devices) > 1 else ()

    def _spread(self, node: Node) -> Devices:
        """Return the devices of the first sharded operand; () if there is none."""
        for operand in node.inputs:
            held = self.values.held[operand]
            if held.shardings and not held.whole:
                return next(iter(held.shardings))[0]
            if held.terms and not held.whole:
                return held.terms[0]
        return ()

    def _strategy(
        self, node: Node, section: Section | None, group: Devices
    ) -> ShardingStrategy | None:
        """Return the cheapest strategy of a node; None if replication is cheaper."""
        factors = factors_of(node.op, self.values.call(node))
        if not factors:
            return None
        shard = section.shard if section and group else None
        if shard and shard.weights:
            product = [f for f in factors if self._shards_weight(node, f)]
            if product:
                return self._by_weights(node, shard, group, product)
        strategies = list(dict.fromkeys(self._like_operands(node, factors, group)))
        if not strategies:
            seed = shard is not None and shard.axis is not None and section is not None
            return self._seed(node, section, group, factors) if seed and section else None
        best_s, strategy = min(
            (
                (self._price(node, strategy), position)
                for position, strategy in enumerate(strategies)
            ),
        )
        places = self._places(node, group or strategies[strategy].devices)
        return strategies[strategy] if best_s <= self._price_whole(node, places) else None

    def _like_operands(
        self, node: Node, factors: Sequence[Factor], group: Devices
    ) -> Iterator[ShardingStrategy]:
        """Yield the strategies by which an operand is sharded, possibly on other devices."""
        call = self.values.call(node)
        for factor in factors:
            if not factor.units:
                yield from self._as_terms(node, factor)
                continue
            for position, operand in enumerate(node.inputs):
                axis = factor.operands[position]
                for devices, shard in self.values.held[operand].shardings:
                    if shard.axis != axis:
                        continue
                    units = units_of(shard, factor, call.inputs[position].shape[axis])
                    if units is not None and (not group or devices == group):
                        yield ShardingStrategy(factor, devices, units)
                    elif group and devices != group and factor.units >= len(group):
                        yield self._own(factor, group)

    def _as_terms(self, node: Node, factor: Factor) -> Iterator[ShardingStrategy]:
        """Yield the strategy in which all operands that may be partial sums are."""
        held = [self.values.held[i].terms for i in node.inputs]
        found = [
            h and h[0] for h, form in zip(held, factor.operands, strict=True) if form is PARTIAL_SUM
        ]
        if found and found[0] and len(set(found)) == 1:
            yield ShardingStrategy(factor, found[0])

    def _seed(
        self, node: Node, section: Section, group: Devices, factors: Sequence[Factor]
    ) -> ShardingStrategy | None:
        """Return the strategy that shards the inputs of a section along its axis."""
        assert section.shard is not None and section.shard.axis is not None
        axis, call = section.shard.axis, self.values.call(node)
        for factor in factors:
            for position, operand in enumerate(node.inputs):
                type_ = call.inputs[position]
                at = axis + type_.rank if axis < 0 else axis
                if factor.operands[position] != at or operand in self.values.lazy:
                    continue
                length = type_.shape[at]
                if self._batch.setdefault(section.name, length) != length:
                    continue
                if factor.units < len(group) or not self._divides(factor.units, section):
                    raise PlanError(_uneven(self.graph.nodes[operand].name, at, length, section))
                return self._own(factor, group)
        return None

    def _by_weights(
        self, node: Node, shard: Shard, group: Devices, factors: Sequence[Factor]
    ) -> ShardingStrategy | None:
        """Return the strategy that shards the weight of a matmul, or follows its operand."""
        section = self.sections[node.id]
        assert section is not None
        across = [f for f in factors if isinstance(f.result, int)]
        along = [f for f in factors if f.result is PARTIAL_SUM]
        strategies = [w for w in self._like_operands(node, factors, group) if w.devices == group]
        for factor in across if shard.weights == COLUMNS else along:
            grain = self._grain(node, factor)
            count = factor.units // grain
            if count < len(group) or not self._divides(count, section):
                raise PlanError(_uneven(node.name, factor.result, factor.units, section))
            units = tuple(n * grain for n in shares(count, self._by_group[group]))
            strategies.append(ShardingStrategy(factor, group, units))
        if not strategies:
            return None
        return min(strategies, key=lambda strategy: self._price(node, strategy))

    def _shards_weight(self, node: Node, factor: Factor) -> bool:
        """Return True if a factor shards a weight that is multiplied with data."""
        if all(i in self.values.lazy for i in node.inputs):
            return False
        factors = factors_of(node.op, self.values.call(node))
        for position, operand in enumerate(node.inputs):
            type_ = self.graph.nodes[operand].type
            large = operand in self.values.lazy and type_.rank > 1 and type_.size >= SMALL
            sums = any(
                f.result is PARTIAL_SUM and f.units and isinstance(f.operands[position], int)
                for f in factors
            )
            if large and sums and isinstance(factor.operands[position], int):
                return True
        return False

    def _own(self, factor: Factor, group: Devices) -> ShardingStrategy:
        return ShardingStrategy(factor, group, shares(factor.units, self._by_group[group]))

    def _may_wait(self, node: Node) -> bool:
        """Return True if the only reader of partial sums accepts them unreduced."""
        readers = self._readers[node.id]
        if len(readers) != 1 or any(i == node.id for _, i in self.graph.outputs):
            return False
        reader = self.graph.nodes[readers[0]]
        factors = factors_of(reader.op, self.values.call(reader))
        return any(
            factor.operands[position] is PARTIAL_SUM and not factor.units
            for factor in factors
            for position, operand in enumerate(reader.inputs)
            if operand == node.id
        )

    def _places(self, node: Node, group: Devices) -> Sequence[str | None]:
        """Return the devices that compute a replicated node: the whole group if all have its
        operands, else the device that finishes first.
        """
        prices = self.prices
        if all(
            prices.whole(i, device, group) == 0 or self.graph.nodes[i].op == "input"
            for i in node.inputs
            for device in group
        ):
            return group
        return [min(group, key=lambda device: self._whole_on(node, device))]

    def _whole_on(self, node: Node, device: str) -> float:
        comes = sum(self.prices.whole(i, device, (device,)) for i in node.inputs)
        return comes + self.pace.seconds(node.id, device)

    def _price_whole(self, node: Node, places: Sequence[str | None]) -> float:
        return max(self._whole_on(node, place) for place in places if place)

    def _price(self, node: Node, strategy: ShardingStrategy) -> float:
        total = sum(strategy.units) or 1
        works = (
            self.pace.seconds(node.id, device)
            * (strategy.units[part] / total if strategy.units else 1.0)
            for part, device in enumerate(strategy.devices)
        )
        return self.prices.strategy(node.id, strategy) + max(works)

    # -- how much each device takes ----------------------------------------------------------------

    def _weights_of(self, devices: Devices) -> Sequence[float]:
        return self._by_group.get(devices) or (1.0,) * len(devices)

    def _ratio(self, section: Section) -> tuple[float, ...]:
        assert section.shard is not None
        if section.shard.ratio != AUTO:
            ratio = section.shard.ratio or (1,) * len(section.devices)
            return tuple(float(part) for part in ratio)
        if section.name not in self._ratios:
            inside = [
                i
                for i, own in enumerate(self.sections)
                if own is not None
                and own.name == section.name
                and i not in self.values.lazy
                and not self.graph.nodes[i].declaration.leaf
            ]
            seconds = [sum(self.pace.seconds(i, d) for i in inside) for d in section.devices]
            self._ratios[section.name] = tuple(1 / max(s, 1e-12) for s in seconds)
        return self._ratios[section.name]

    def _divides(self, units: int, section: Section) -> bool:
        assert section.shard is not None
        return section.shard.ratio == AUTO or divides(units, self._ratio(section))

    def _grain(self, node: Node, factor: Factor) -> int:
        """Return how many units of a factor must stay together for its readers, such as the columns
        of one attention head.
        """
        if not isinstance(factor.result, int):
            return 1
        length = node.type.shape[factor.result]
        grain, seen = 1, {node.id}
        queue = [(node.id, factor.result)]
        while queue and len(seen) < 32:
            value, axis = queue.pop(0)
            for reader in self._readers[value]:
                user = self.graph.nodes[reader]
                for each in factors_of(user.op, self.values.call(user)):
                    position = user.inputs.index(value)
                    if each.operands[position] != axis or not isinstance(each.result, int):
                        continue
                    if each.units < length and length % each.units == 0:
                        grain = max(grain, length // each.units)
                    elif reader not in seen:
                        seen.add(reader)
                        queue.append((reader, each.result))
        return grain if factor.units % grain == 0 else 1


def _uneven(name: str, axis: object, length: int, section: Section) -> str:
    assert section.shard is not None
    ratio = section.shard.ratio or (1,) * len(section.devices)
    ratio_text = ":".join(map(str, ratio)) if not isinstance(ratio, str) else ratio
    return (
        f"[config] {section.name}: expected parts of {ratio_text} for "
        f"{', '.join(section.devices)}, got {length} elements along axis {axis} of {name}, "
        "which cannot be cut so; try ratio: auto, or other sizes"
    )
