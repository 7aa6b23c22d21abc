"""Microbatches: compute each part of a batch separately, and sum partial results.

    x (8, ...) --> x.0 (4, ...) --> h.0 --> dw.0 --.
              `--> x.1 (4, ...) --> h.1 --> dw.1 --+--> dw      the gradient of the whole batch

The batch axis propagates by the sharding rules of the ops, as for devices: a microbatch is a shard
in time. An op that mixes microbatches before the end is an error, because it would make all of them
wait. Complexity: O(edges * microbatches). Examples: tests/parallel/test_arrange.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...common.errors import PlanError
from ...ir.attrs import Attrs
from ...ir.graph import Graph, Node
from ...ir.graph_builder import BuildResult, GraphBuilder
from ...ir.sharding_rule import ANY, PARTIAL_SUM, Factor, Sharded, factors_of
from ..sharding.sharding_strategy import ShardedAxis, ShardingStrategy, units_of
from .batch_axes import regroup


@dataclass
class _Value:
    """A value of the original graph.

    `whole` is its node; `shard` the axis and sizes of its parts; `outer` the number of blocks of
    that axis, in each of which a part has a run (batch_axes.py); `parts` a node for each
    microbatch.
    """

    whole: int | None = None
    shard: ShardedAxis | None = None
    outer: int = 1
    parts: tuple[int, ...] = ()

    def nodes(self) -> list[int]:
        """Return the nodes that are the value or parts of it."""
        return [*self.parts] if self.whole is None else [self.whole, *self.parts]


@dataclass(frozen=True)
class Microbatches:
    """How a graph is split into microbatches.

    `strategies` holds the nodes computed in parts; `added_up` those of them whose results are
    summed; `outers` the number of runs of their parts, if several; `reads` the number of runs in
    operands.
    """

    count: int
    strategies: Mapping[int, ShardingStrategy]
    added_up: frozenset[int]
    outers: Mapping[int, int]
    reads: Mapping[int, int]


@dataclass(frozen=True)
class Slot:
    """The device and the pipeline position of a node for one microbatch."""

    device: str
    turn: int


def find_batches(graph: Graph, count: int, axis: int, first: Callable[[str], bool]) -> Microbatches:
    """Return which nodes are computed in parts.

    axis: the batch axis of the inputs. first: returns True for names of the first stage, whose
    first input determines the batch size.

    Raises
    ------
    PlanError
        The batch is not divisible, or a node mixes microbatches.
    """
    return _Finder(graph, count, axis, first).find()


class _Finder:
    """One traversal of a graph; `joined` values depend on all microbatches."""

    def __init__(self, graph: Graph, count: int, axis: int, first: Callable[[str], bool]) -> None:
        self.graph = graph
        self.count = count
        self.axis = axis
        self.length = self._length(first)
        self.shardings: dict[int, ShardedAxis] = {}
        self.outers: dict[int, int] = {}
        self.reads: dict[int, int] = {}
        self.joined: set[int] = set()
        self.strategies: dict[int, ShardingStrategy] = {}
        self.added_up: set[int] = set()

    def find(self) -> Microbatches:
        for node in self.graph.nodes:
            if node.declaration.leaf or node.op in ("state", "assign"):
                continue
            call = Sharded(self.graph.input_types(node), node.type, node.attrs)
            strategy = self._strategy(node, call)
            if strategy is None:
                if any(i in self.joined for i in node.inputs):
                    self.joined.add(node.id)
                if any(i in self.shardings for i in node.inputs):
                    raise PlanError(self._mixes(node))
                continue
            if any(i in self.joined for i in node.inputs):
                raise PlanError(self._mixes(node))
            self.strategies[node.id] = strategy
            shard = strategy.result(call)
            if shard is None:
                self.added_up.add(node.id)
                self.joined.add(node.id)
            else:
                self.shardings[node.id] = shard
        added_up = frozenset(self.added_up)
        return Microbatches(self.count, self.strategies, added_up, self.outers, self.reads)

    def _length(self, first: Callable[[str], bool]) -> int:
        """Return the batch size."""
        read = {i for node in self.graph.nodes if first(node.name) for i in node.inputs}
        inputs = [n for n in self.graph.inputs if n.type.rank > self.axis]
        found = [n for n in inputs if n.id in read] or inputs
        if not found:
            raise PlanError(
                f"[config] pipeline: expected an input with an axis {self.axis}, which "
                "microbatches cut, got none"
            )
        length = found[0].type.shape[self.axis]
        if length % self.count:
            raise PlanError(
                f"[config] pipeline: expected microbatches that divide axis {self.axis} of "
                f"{found[0].name}, got {self.count} for {length} elements; try another number"
            )
        return length

    def _strategy(self, node: Node, call: Sharded) -> ShardingStrategy | None:
        """Return how a node is computed for each microbatch; None if it is not."""
        bound = [i for i in node.inputs if i in self.shardings]
        seeds = [i for i in node.inputs if self._is_seed(i)]
        if not bound and not seeds:
            return None
        if node.op == "reshape":
            return self._regrouped(node, call)
        for factor in factors_of(node.op, call):
            strategy = self._fits(node, call, factor, bound)
            if strategy is not None:
                return strategy
        return None

    def _regrouped(self, node: Node, call: Sharded) -> ShardingStrategy | None:
        """Return the strategy of a reshape; its parts may be several runs before or after it."""
        (operand,) = node.inputs
        axis = self.shardings[operand].axis if operand in self.shardings else self.axis
        shapes, outer = (call.inputs[0].shape, call.output.shape), self.outers.get(operand, 1)
        found = regroup(*shapes, axis, outer, self.count)
        if found is None:
            return None
        if found.outer > 1:
            self.outers[node.id] = found.outer
        return ShardingStrategy(found.factor, ("",) * self.count, (1,) * self.count)

    def _is_seed(self, value: int) -> bool:
        node = self.graph.nodes[value]
        shape = node.type.shape
        return node.op == "input" and len(shape) > self.axis and shape[self.axis] == self.length

    def _fits(
        self, node: Node, call: Sharded, factor: Factor, bound: Sequence[int]
    ) -> ShardingStrategy | None:
        units: set[tuple[int, ...]] = set()
        outers: set[int] = set()
        for position, operand in enumerate(node.inputs):
            form, shard = factor.operands[position], self.shardings.get(operand)
            if form is ANY:
                continue
            if shard is not None and not isinstance(form, int):
                return None
            if not isinstance(form, int):
                continue
            length = call.inputs[position].shape[form]
            if shard is None and (bound or (self._is_seed(operand) and form == self.axis)):
                shard = ShardedAxis(form, (length // self.count,) * self.count)
            if shard is None or shard.axis != form or length % self.count:
                return None
            found = units_of(shard, factor, length)
            if found is None:
                return None
            units.add(found)
            if operand in self.shardings or not bound:
                outers.add(self.outers.get(operand, 1))
        if len(units) != 1 or len(outers) > 1:
            return None
        strategy, outer = (
            ShardingStrategy(factor, ("",) * self.count, units.pop()),
            max(outers, default=1),
        )
        if outer > 1:
            size = strategy.units[0]
            if size % outer or factor.attrs(0, size) != factor.attrs(size, size):
                return None  # a run is no whole number of units, or runs differ
            self.reads[node.id] = outer
            if isinstance(factor.result, int):
                self.outers[node.id] = outer
        return strategy

    def _mixes(self, node: Node) -> str:
        return (
            f"[config] pipeline: expected nodes that compute each example alone, got {node.name}, "
            f"a {node.op}, which mixes the examples of a batch (axis {self.axis} of the inputs); "
            "try no pipeline"
        )


class Batcher:
    """Builds the graph of microbatches; `slots` returns the slot of a node and a microbatch."""

    def __init__(
        self, graph: Graph, batches: Microbatches, slots: Callable[[int, int], Slot]
    ) -> None:
        self._graph = graph
        self._batches = batches
        self._slots = slots
        self._builder = GraphBuilder(graph)
        self._values = [_Value() for _ in graph.nodes]

    def run(self, shown: Sequence[int]) -> BuildResult:
        """Return the graph. shown: nodes whose full values are needed, besides the outputs."""
        for node in self._graph.nodes:
            value = self._values[node.id]
            if node.declaration.leaf or node.op == "state":
                value.whole = self._builder.leaf(node)
            elif node.id in self._batches.strategies:
                self._in_parts(node, self._batches.strategies[node.id])
            else:
                inputs = [self._whole(i) for i in node.inputs]
                value.whole = self._builder.emit(node.op, inputs, node.attrs, node.name)
        outputs = {name: self._whole(i) for name, i in self._graph.outputs}
        seen = [self._whole(node_id) for node_id in shown]
        old = {self._graph.nodes[i].name: value.nodes() for i, value in enumerate(self._values)}
        old |= {name: self._values[at].nodes() for name, at in self._graph.aliases.items()}
        return self._builder.finish(outputs, seen, old)

    def _in_parts(self, node: Node, strategy: ShardingStrategy) -> None:
        call = Sharded(self._graph.input_types(node), node.type, node.attrs)
        first, built = 0, list[int]()
        for part, units in enumerate(strategy.units):
            slot = self._slots(node.id, part)
            inputs = [
                self._operand(node.id, position, part, strategy, call)
                for position in range(len(node.inputs))
            ]
            attrs = {**node.attrs, **strategy.factor.attrs(first, units)}
            name = f"{node.name}~{part}"
            built.append(self._builder.emit(node.op, inputs, attrs, name, slot.device, slot.turn))
            first += units
        shard, value = strategy.result(call), self._values[node.id]
        value.parts, value.shard = tuple(built), shard
        value.outer = self._batches.outers.get(node.id, 1)
        if shard is None:
            value.whole = self._added(node, strategy, built)

    def _operand(
        self, reader: int, position: int, part: int, strategy: ShardingStrategy, call: Sharded
    ) -> int:
        value_id = self._graph.nodes[reader].inputs[position]
        value, shard = self._values[value_id], strategy.operand(call, position)
        if value.parts and value.shard is not None:
            return value.parts[part]
        assert value.whole is not None
        if shard is None:
            first = part == 0 or strategy.factor.operands[position] is not PARTIAL_SUM
            return value.whole if first else self._zeros(value_id, part)
        name = f"{self._graph.nodes[value_id].name}~{part}"
        return self._range(value.whole, shard, part, self._batches.reads.get(reader, 1), name)

    def _range(self, whole: int, shard: ShardedAxis, part: int, outer: int, name: str) -> int:
        """Return a part of a whole value: a range of an axis, or of each of its blocks."""
        axis, begin, size = shard.axis, shard.starts[part] // outer, shard.sizes[part] // outer
        shape, ends = self._builder[whole].type.shape, (shard.sizes[part],)
        before, after = shape[:axis], shape[axis + 1 :]
        if outer > 1:
            blocks = (*before, outer, shape[axis] // outer, *after)
            whole = self._builder.emit("reshape", (whole,), {"shape": blocks}, f"{name}.blocks")
            axis += 1
        attrs = {"axes": (axis,), "starts": (begin,), "stops": (begin + size,), "steps": (1,)}
        if outer == 1:
            return self._builder.emit("slice", (whole,), attrs, name)
        runs = self._builder.emit("slice", (whole,), attrs, f"{name}.runs")
        return self._builder.emit("reshape", (runs,), {"shape": (*before, *ends, *after)}, name)

    def _zeros(self, value_id: int, part: int) -> int:
        """Return zeros in place of a value that the first microbatch has added already."""
        node = self._graph.nodes[value_id]
        attrs = Attrs({"shape": node.type.shape, "value": 0.0, "dtype": node.type.dtype})
        return self._builder.emit("full", (), attrs, f"{node.name}.zeros~{part}")

    def _added(self, node: Node, strategy: ShardingStrategy, partials: Sequence[int]) -> int:
        """Return the sum of the partial results of all microbatches, by device first."""
        sums: dict[str, int] = {}
        order = sorted(range(len(partials)), key=lambda part: self._slots(node.id, part).turn)
        for part in order:
            slot, one = self._slots(node.id, part), partials[part]
            if strategy.is_mean:
                share = self._builder.scalar(
                    strategy.units[part] / sum(strategy.units), node.type.dtype
                )
                name = f"{node.name}.share~{part}"
                one = self._builder.emit("mul", (one, share), {}, name, slot.device, slot.turn)
            if slot.device in sums:
                name = f"{node.name}.sum~{part}"
                pair = sums[slot.device], one
                one = self._builder.emit("add", pair, {}, name, slot.device, slot.turn)
            sums[slot.device] = one
        first, *others = sums.values()
        for other in others:
            first = self._builder.emit("add", (first, other), {}, f"{node.name}.sum")
        return first

    def _whole(self, value_id: int) -> int:
        value, node = self._values[value_id], self._graph.nodes[value_id]
        if value.whole is None:
            assert value.shard is not None
            value.whole = self._concatenated(value.parts, value.shard.axis, value.outer, node)
        return value.whole

    def _concatenated(self, parts: Sequence[int], axis: int, outer: int, node: Node) -> int:
        """Return the concatenation of parts, block by block if they have several runs."""
        if outer == 1:
            return self._builder.emit("concat", parts, {"axis": axis}, node.name)
        runs: list[int] = []
        for number, part in enumerate(parts):
            shape = self._builder[part].type.shape
            blocks = (*shape[:axis], outer, shape[axis] // outer, *shape[axis + 1 :])
            name = f"{node.name}.runs~{number}"
            runs.append(self._builder.emit("reshape", (part,), {"shape": blocks}, name))
        whole = self._builder.emit("concat", runs, {"axis": axis + 1}, f"{node.name}.blocks")
        return self._builder.emit("reshape", (whole,), {"shape": node.type.shape}, node.name)
