"""Microbatches: a graph that computes each part of a batch on its own, and adds up what is summed.

    x (8, ...) --> x.0 (4, ...) --> h.0 --> dw.0 --.
              `--> x.1 (4, ...) --> h.1 --> dw.1 --+--> dw      the gradient, as of the whole batch

The axis spreads by the sharding rules of the ops, as over devices: a microbatch is a part in time.
What mixes microbatches before the end is an error: it would have all wait for all. Complexity:
O(edges * microbatches). Examples: tests/parallel/test_arrange.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import PlanError
from ...graph import Graph, Node
from ...ops.core.attrs import Attrs
from ...ops.core.sharding import ANY, TERMS, Factor, Sharded, factors_of
from ..maker import Made, Maker
from ..shard.layout import Cut, Way, units_of


@dataclass
class _Value:
    """A value of the graph as written. whole: its node. cut: the axis and sizes of its parts.
    parts: a node for each microbatch.
    """

    whole: int | None = None
    cut: Cut | None = None
    parts: tuple[int, ...] = ()

    def nodes(self) -> list[int]:
        """Returns the nodes that are the value or parts of it."""
        return [*self.parts] if self.whole is None else [self.whole, *self.parts]


@dataclass(frozen=True)
class Batches:
    """How a graph falls into microbatches. ways: of each node that is computed in parts. added_up:
    those of them whose results are added up. cut_inputs: inputs that are cut.
    """

    count: int
    ways: Mapping[int, Way]
    added_up: frozenset[int]


@dataclass(frozen=True)
class Slot:
    """Where and when a microbatch of a node is computed."""

    device: str
    turn: int


def find_batches(graph: Graph, count: int, axis: int, first: Callable[[str], bool]) -> Batches:
    """Returns which nodes are computed in parts. axis: of the inputs. first: whether a name belongs
    to the first stage, whose first input tells how many examples a batch has.

    Raises:
        PlanError: the batch cannot be cut into so many parts, or a node mixes them.
    """
    return _Finder(graph, count, axis, first).find()


class _Finder:
    """One walk over a graph. forms: of each value its cut, WHOLE, or JOINED for what is known only
    after all microbatches.
    """

    def __init__(self, graph: Graph, count: int, axis: int, first: Callable[[str], bool]) -> None:
        self.graph = graph
        self.count = count
        self.axis = axis
        self.length = self._length(first)
        self.cuts: dict[int, Cut] = {}
        self.joined: set[int] = set()
        self.ways: dict[int, Way] = {}
        self.added_up: set[int] = set()

    def find(self) -> Batches:
        for node in self.graph.nodes:
            if node.declaration.leaf or node.op in ("state", "assign"):
                continue
            call = Sharded(self.graph.input_types(node), node.type, node.attrs)
            way = self._way(node, call)
            if way is None:
                if any(i in self.joined for i in node.inputs):
                    self.joined.add(node.id)
                if any(i in self.cuts for i in node.inputs):
                    raise PlanError(self._mixes(node))
                continue
            if any(i in self.joined for i in node.inputs):
                raise PlanError(self._mixes(node))
            self.ways[node.id] = way
            cut = way.result(call)
            if cut is None:
                self.added_up.add(node.id)
                self.joined.add(node.id)
            else:
                self.cuts[node.id] = cut
        return Batches(self.count, self.ways, frozenset(self.added_up))

    def _length(self, first: Callable[[str], bool]) -> int:
        """Returns how many examples a batch has."""
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

    def _way(self, node: Node, call: Sharded) -> Way | None:
        """Returns the way in which a node is computed for each microbatch, or None."""
        bound = [i for i in node.inputs if i in self.cuts]
        seeds = [i for i in node.inputs if self._is_seed(i)]
        if not bound and not seeds:
            return None
        for factor in factors_of(node.op, call):
            way = self._fits(node, call, factor, bound)
            if way is not None:
                return way
        return None

    def _is_seed(self, value: int) -> bool:
        node = self.graph.nodes[value]
        shape = node.type.shape
        return node.op == "input" and len(shape) > self.axis and shape[self.axis] == self.length

    def _fits(self, node: Node, call: Sharded, factor: Factor, bound: Sequence[int]) -> Way | None:
        units: set[tuple[int, ...]] = set()
        for position, operand in enumerate(node.inputs):
            form, cut = factor.operands[position], self.cuts.get(operand)
            if form is ANY:
                continue
            if cut is not None and not isinstance(form, int):
                return None
            if not isinstance(form, int):
                continue
            length = call.inputs[position].shape[form]
            if cut is None and (bound or (self._is_seed(operand) and form == self.axis)):
                cut = Cut(form, (length // self.count,) * self.count)
            if cut is None or cut.axis != form or length % self.count:
                return None
            found = units_of(cut, factor, length)
            if found is None:
                return None
            units.add(found)
        if len(units) != 1:
            return None
        return Way(factor, ("",) * self.count, units.pop())

    def _mixes(self, node: Node) -> str:
        return (
            f"[config] pipeline: expected nodes that compute each example alone, got {node.name}, "
            f"a {node.op}, which mixes the examples of a batch (axis {self.axis} of the inputs); "
            "try no pipeline, or microbatches: 1"
        )


class Batcher:
    """Makes the graph of microbatches. slots: where and when each node that is computed in parts
    is, by its id and microbatch.
    """

    def __init__(self, graph: Graph, batches: Batches, slots: Callable[[int, int], Slot]) -> None:
        self._graph = graph
        self._batches = batches
        self._slots = slots
        self._maker = Maker(graph)
        self._values = [_Value() for _ in graph.nodes]

    def run(self, shown: Sequence[int]) -> Made:
        """Returns the graph. shown: nodes that somebody wants to see whole, beside the outputs."""
        for node in self._graph.nodes:
            value = self._values[node.id]
            if node.declaration.leaf or node.op == "state":
                value.whole = self._maker.leaf(node)
            elif node.id in self._batches.ways:
                self._in_parts(node, self._batches.ways[node.id])
            else:
                inputs = [self._whole(i) for i in node.inputs]
                value.whole = self._maker.emit(node.op, inputs, node.attrs, node.name)
        outputs = {name: self._whole(i) for name, i in self._graph.outputs}
        seen = [self._whole(node_id) for node_id in shown]
        old = {self._graph.nodes[i].name: value.nodes() for i, value in enumerate(self._values)}
        old |= {name: self._values[at].nodes() for name, at in self._graph.merged.items()}
        return self._maker.finish(outputs, seen, old)

    def _in_parts(self, node: Node, way: Way) -> None:
        call = Sharded(self._graph.input_types(node), node.type, node.attrs)
        first, made = 0, list[int]()
        for part, units in enumerate(way.units):
            slot = self._slots(node.id, part)
            inputs = [
                self._operand(i, position, part, way, call)
                for position, i in enumerate(node.inputs)
            ]
            attrs = {**node.attrs, **way.factor.attrs(first, units)}
            name = f"{node.name}~{part}"
            made.append(self._maker.emit(node.op, inputs, attrs, name, slot.device, slot.turn))
            first += units
        cut, value = way.result(call), self._values[node.id]
        value.parts, value.cut = tuple(made), cut
        if cut is None:
            value.whole = self._added(node, way, made)

    def _operand(self, value_id: int, position: int, part: int, way: Way, call: Sharded) -> int:
        value, cut = self._values[value_id], way.operand(call, position)
        if value.parts and value.cut is not None:
            return value.parts[part]
        assert value.whole is not None
        if cut is None:
            first = part == 0 or way.factor.operands[position] is not TERMS
            return value.whole if first else self._zeros(value_id, part)
        begin, size = cut.starts[part], cut.sizes[part]
        attrs = {
            "axes": (cut.axis,),
            "starts": (begin,),
            "stops": (begin + size,),
            "steps": (1,),
        }
        name = f"{self._graph.nodes[value_id].name}~{part}"
        return self._maker.emit("slice", (value.whole,), attrs, name)

    def _zeros(self, value_id: int, part: int) -> int:
        """Returns what stands for a value that the first microbatch has added already."""
        node = self._graph.nodes[value_id]
        attrs = Attrs({"shape": node.type.shape, "value": 0.0, "dtype": node.type.dtype})
        return self._maker.emit("full", (), attrs, f"{node.name}.zeros~{part}")

    def _added(self, node: Node, way: Way, made: Sequence[int]) -> int:
        """Adds up the terms of all microbatches, on each device in its own order."""
        sums: dict[str, int] = {}
        order = sorted(range(len(made)), key=lambda part: self._slots(node.id, part).turn)
        for part in order:
            slot, one = self._slots(node.id, part), made[part]
            if way.is_mean:
                share = self._maker.scalar(way.units[part] / sum(way.units), node.type.dtype)
                name = f"{node.name}.share~{part}"
                one = self._maker.emit("mul", (one, share), {}, name, slot.device, slot.turn)
            if slot.device in sums:
                name = f"{node.name}.sum~{part}"
                pair = sums[slot.device], one
                one = self._maker.emit("add", pair, {}, name, slot.device, slot.turn)
            sums[slot.device] = one
        first, *others = sums.values()
        for other in others:
            first = self._maker.emit("add", (first, other), {}, f"{node.name}.sum")
        return first

    def _whole(self, value_id: int) -> int:
        value, node = self._values[value_id], self._graph.nodes[value_id]
        if value.whole is None:
            assert value.cut is not None
            attrs = {"axis": value.cut.axis}
            value.whole = self._maker.emit("concat", value.parts, attrs, node.name)
        return value.whole
