"""Collapse repeated layers: run passes on a few of many equal layers, then expand the result.

    first | a b m m m m y z | last      the graph, with a run of equal layers from a to z
    first | a b         y z | last      the collapsed graph that passes see
    first | A B         Y Z | last      the rewritten graph: B and Y are equal
    first | A B M M M M Y Z | last      the result: each M is B with the names and weights of its m

Problem: passes take time for each node, and do equal work in each layer of a network. Method: nodes
whose names share a prefix up to a number, as "blk.7.", form a layer. Several consecutive numbers
form one layer if kinds of layers alternate. Layers are equal if passes cannot distinguish them. b
and y have layers of the run on both sides, so if both are rewritten equally, each m between them
is, too. The graph is not collapsed if a node outside of the run reads a layer within it, if a rule
inspects the elements of a weight, if layers are rewritten differently, or if nodes are fused into a
distant layer.

Complexity: O(nodes), of which passes see four layers. Examples: tests/passes/test_equal_layers.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn

from ..common.dtypes import NDArray
from ..ir.graph import Graph, Node
from ..storage.lazy_array import ArrayLike, LazyArray
from .constraints import RewriteConstraints
from .layer_signatures import ELSEWHERE, LAYER, LayerNames, Layers, Place, Signature

VISIBLE_LAYERS = 4
"""Number of layers of a run that passes see."""
MIN_LAYERS = 3
"""Minimum number of layer numbers left out that makes collapsing worthwhile."""
MAX_PERIOD = 8
"""Maximum number of consecutive layer numbers that form one layer."""


class WeightInspected(Exception):
    """Raised if a rule reads the elements of a weight, which differ between layers."""


class _OpaqueWeight(LazyArray):
    """A placeholder for a weight of a layer."""

    def __init__(self, node: Node, held: ArrayLike) -> None:
        super().__init__(node.type.shape, _refuse, held.dtype, _refuse)
        self.name = node.name


def _refuse(*_: object) -> NoReturn:
    raise WeightInspected


def _spliced(
    numbers: Sequence[int | None], copied: int, copies: range
) -> Iterator[tuple[int, int | None]]:
    """Yield (position, copy) pairs that enumerate the collapsed graph in the order of the full one.
    Nodes of the repeated layer are yielded once more for each copy; `copy` is None for all others.
    """
    pending: list[int] = []
    for position, number in enumerate([*numbers, None]):
        if number == copied:
            pending.append(position)
        elif pending:
            yield from ((at, copy) for copy in copies for at in pending)
            pending = []
        if position < len(numbers):
            yield position, None


@dataclass(frozen=True)
class CollapsedGraph:
    """A graph without most of its equal layers.

    `whole` is the full graph; `first` and `last` are the numbers of the first and last layer of the
    run.
    """

    graph: Graph
    whole: Graph
    names: LayerNames
    first: int
    last: int

    @property
    def left_out(self) -> range:
        return range(self.first + 2, self.last - 1)

    def expand(self, rewritten: Graph) -> Graph | None:
        """Return the full graph, rewritten as passes have rewritten the collapsed one.

        Returns None if passes did not rewrite all layers equally.
        """
        if rewritten is self.graph:
            return self.whole
        layers, b, y = Layers(rewritten, self.names), self.first + 1, self.last - 1
        if not {self.first, b, y} <= layers.members.keys():
            return None
        content = layers.content
        if layers.signature(b, self.first, content) != layers.signature(y, b, content):
            return None
        if not self._merges_alike(layers):
            return None
        ends = {i for _, i in rewritten.outputs} | {*rewritten.backed_up_states}
        if any(layers.numbers[i] == b for i in ends):
            return None
        return _Expansion(self, layers, rewritten).run()

    def _merges_alike(self, layers: Layers) -> bool:
        """Return True if nodes were fused within their layer or its neighbours, equally in all
        layers.

        A node fused from many layers would have more operands in the full graph.
        """
        a, b, y, z = run = (self.first, self.first + 1, self.last - 1, self.last)
        around = {a: (None, b), b: (a, y), y: (b, z), z: (y, None)}
        found: dict[int, dict[str, Place]] = {number: {} for number in run}
        # names before the run in the original order, which no later node was fused into
        names = [node.name for node in self.graph.nodes]
        first = next(at for at, name in enumerate(names) if self.names.layer(name) == a)
        before = set(names[:first])
        for name, node_id in layers.graph.aliases.items():
            number, to = self.names.layer(name), layers.numbers[node_id]
            if number is None or number not in around:
                if to in (b, y):
                    return False
                continue
            where, position = layers.place(number, *around[number], node_id)
            shared = to not in run if number == z else layers.graph.nodes[node_id].name in before
            if where == ELSEWHERE and not shared:
                return False
            found[number][self.names.renamed(name, -number)] = where, position
        return found[b] == found[y]


class _Expansion:
    """The full graph while it is being built."""

    def __init__(self, collapsed: CollapsedGraph, layers: Layers, rewritten: Graph) -> None:
        self._collapsed, self._layers, self._rewritten = collapsed, layers, rewritten
        self._nodes: list[Node] = []
        self._ids = [-1] * len(rewritten.nodes)
        """Maps nodes of the rewritten collapsed graph to ids in the full graph."""
        size = len(layers.members[collapsed.first + 1])
        self._copies = {number: [-1] * size for number in collapsed.left_out}
        self._owners = {node.name: node.id for node in collapsed.whole.nodes}
        self._data: dict[int, ArrayLike] = {}
        self._keys: dict[int, object] = {}
        self._initial: dict[int, NDArray] = {}

    def run(self) -> Graph | None:
        """Return the full graph; None if a node would be read before it is built."""
        rewritten, layers, b = self._rewritten, self._layers, self._collapsed.first + 1
        for position, number in _spliced(layers.numbers, b, self._collapsed.left_out):
            node, name = rewritten.nodes[position], rewritten.nodes[position].name
            if number is not None:
                name = layers.names.renamed(name, number - b)
            inputs = tuple([self._found(position, number, i) for i in node.inputs])
            if -1 in inputs:
                return None
            new = Node(len(self._nodes), node.op, inputs, node.attrs, node.type, name)
            self._nodes.append(new)
            if number is None:
                self._ids[position] = new.id
            else:
                self._copies[number][layers.at[position]] = new.id
            self._hold(node, new)
        ids = self._ids
        outputs = tuple((name, ids[i]) for name, i in rewritten.outputs)
        return Graph(
            tuple(self._nodes),
            outputs,
            MappingProxyType(self._data),
            MappingProxyType(self._keys),
            MappingProxyType(self._initial),
            tuple(ids[i] for i in rewritten.backed_up_states),
            MappingProxyType(self._merged()),
        )

    def _found(self, reader: int, number: int | None, node_id: int) -> int:
        """Return the operand of a node in the full graph; -1 if undetermined or not built."""
        layers, collapsed = self._layers, self._collapsed
        b, y = collapsed.first + 1, collapsed.last - 1
        if number is not None:
            where, position = layers.place(b, collapsed.first, y, node_id)
            return self._in(number, where, position)
        if layers.numbers[node_id] == b and layers.numbers[reader] != b:
            if layers.numbers[reader] != y:
                return -1  # ambiguous: the last copy, or each of them
            return self._copies[y - 1][layers.at[node_id]]
        return self._ids[node_id]

    def _in(self, number: int, where: int, position: int) -> int:
        """Return a node by its place relative to a layer."""
        if where == ELSEWHERE:
            return self._ids[position]
        at = number + (0, -1, 1)[where]
        if at in self._copies:
            return self._copies[at][position]
        return self._ids[self._layers.members[at][position]]

    def _hold(self, node: Node, new: Node) -> None:
        """Set the data of a new leaf; weights and states take those of their name."""
        rewritten, whole = self._rewritten, self._collapsed.whole
        owner = self._owners.get(new.name, -1)
        if node.id in rewritten.initial:
            self._initial[new.id], self._keys[new.id] = whole.initial[owner], whole.keys[owner]
        elif node.id in rewritten.data:
            own = isinstance(rewritten.data[node.id], _OpaqueWeight)
            self._data[new.id] = whole.data[owner] if own else rewritten.data[node.id]
            key = whole.keys.get(owner) if own else rewritten.keys.get(node.id)
            if key is not None:
                self._keys[new.id] = key

    def _merged(self) -> dict[str, int]:
        """Return the aliases of the full graph, those of copied layers included."""
        layers, collapsed, out = self._layers, self._collapsed, dict[str, int]()
        b, y = collapsed.first + 1, collapsed.last - 1
        for name, node_id in self._rewritten.aliases.items():
            number, to = layers.names.layer(name), layers.numbers[node_id]
            if number == b and to == y:
                out[name] = self._copies[b + 1][layers.at[node_id]]
            elif number == y and to == b:
                out[name] = self._copies[y - 1][layers.at[node_id]]
            else:
                out[name] = self._ids[node_id]
            if number == b:
                where, position = layers.place(b, collapsed.first, y, node_id)
                for copy in collapsed.left_out:
                    out[layers.names.renamed(name, copy - b)] = self._in(copy, where, position)
        return out


def collapse_repeated_layers(
    graph: Graph, constraints: RewriteConstraints
) -> CollapsedGraph | None:
    """Return a graph without most of its equal layers; None if there are too few."""
    found = _found_run(graph, constraints)
    if found is None:
        return None
    layers, run = found
    collapsed = CollapsedGraph(graph, graph, layers.names, run[0], run[-1])
    numbers = layers.numbers
    retained = [i for i, number in enumerate(numbers) if number not in collapsed.left_out]
    order = [
        retained[at] if copy is None else layers.members[copy][layers.at[retained[at]]]
        for at, copy in _spliced([numbers[i] for i in retained], run[1], collapsed.left_out)
    ]
    if order != list(range(len(numbers))):
        return None  # layers are interleaved
    shortened = _without(layers, retained, collapsed)
    return None if shortened is None else replace(collapsed, graph=shortened)


def _found_run(graph: Graph, constraints: RewriteConstraints) -> tuple[Layers, range] | None:
    """Return the layers named by the most frequent prefix, and the longest run of equal ones; None
    if collapsing is not worthwhile.
    """
    found = (LAYER.match(node.name) for node in graph.nodes)
    stems = Counter(each[1] for each in found if each is not None)
    if not stems:
        return None
    layers = Layers(graph, LayerNames(stems.most_common(1)[0][0]))
    signatures = _signatures(layers, constraints)
    run, period = max(
        ((_longest_run(signatures, period), period) for period in range(1, MAX_PERIOD + 1)),
        key=lambda each: len(each[0]) - VISIBLE_LAYERS * each[1],
    )
    if len(run) - VISIBLE_LAYERS * period < MIN_LAYERS:
        return None
    if period > 1:
        layers = Layers(graph, LayerNames(layers.names.stem, period, run[0] % period))
        run = _longest_run(_signatures(layers, constraints), 1)
    return (layers, run) if period * (len(run) - VISIBLE_LAYERS) >= MIN_LAYERS else None


def _signatures(layers: Layers, constraints: RewriteConstraints) -> Mapping[int, int]:
    """Return an index for each layer that equal layers share."""

    def node_content(node: Node) -> object:
        content = layers.content(node)
        return content, constraints.pinned_devices.get(node.name), node.name in constraints.observed

    known: list[Signature] = []
    out: dict[int, int] = {}
    for number in sorted(number for number in layers.members if number is not None):
        signature = layers.signature(number, number - 1, node_content)
        if signature not in known:
            known.append(signature)
        out[number] = known.index(signature)
    return out


def _longest_run(signatures: Mapping[int, int], period: int) -> range:
    """Return the indices of the longest run of layers in which each equals the layer `period`
    places before it.
    """
    best = range(0)
    start, before = 0, -1
    for number in signatures:
        if number != before + 1:
            start = number
        elif number - period >= start and signatures[number] != signatures[number - period]:
            start = number - period + 1
        if number + 1 - start > len(best):
            best = range(start, number + 1)
        before = number
    return best


def _without(layers: Layers, retained: Sequence[int], collapsed: CollapsedGraph) -> Graph | None:
    """Return the graph of the retained nodes; None if removed nodes are read elsewhere."""
    graph, b, y = layers.graph, collapsed.first + 1, collapsed.last - 1
    place = {node_id: position for position, node_id in enumerate(retained)}
    for last, stand_in in zip(layers.members[y - 1], layers.members[b], strict=True):
        place[last] = place[stand_in]  # for the next layer
    nodes: list[Node] = []
    for node in (graph.nodes[i] for i in retained):
        number = layers.numbers[node.id]
        if any(layers.numbers[i] in collapsed.left_out for i in node.inputs) and number != y:
            return None
        inputs = tuple([place[i] for i in node.inputs if i in place])
        if len(inputs) < len(node.inputs):
            return None
        nodes.append(Node(len(nodes), node.op, inputs, node.attrs, node.type, node.name))
    ends = {i for _, i in graph.outputs} | {*graph.backed_up_states, *graph.aliases.values()}
    if any(layers.numbers[i] in collapsed.left_out for i in ends):
        return None
    data = {place[i]: _hidden(layers, i, collapsed) for i in retained if i in graph.data}
    initial = {place[i]: graph.initial[i] for i in retained if i in graph.initial}
    keys = {place[i]: graph.keys[i] for i in retained if i in graph.keys}
    return Graph(
        tuple(nodes),
        tuple((name, place[i]) for name, i in graph.outputs),
        data,
        keys,
        initial,
        tuple(place[i] for i in graph.backed_up_states),
        {name: place[i] for name, i in graph.aliases.items()},
    )


def _hidden(layers: Layers, node_id: int, collapsed: CollapsedGraph) -> ArrayLike:
    """Return the data of a leaf, hidden in an opaque array if it is a weight of the run."""
    node, held = layers.graph.nodes[node_id], layers.graph.data[node_id]
    number = layers.numbers[node_id]
    inside = number is not None and collapsed.first <= number <= collapsed.last
    return _OpaqueWeight(node, held) if inside and node.op == "weight" else held
