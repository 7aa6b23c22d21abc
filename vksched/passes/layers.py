"""Layers: passes see a few layers of many equal ones, and what they make of these stands for all.

    first | a b m m m m y z | last      the graph, with a run of equal layers from a to z
    first | a b         y z | last      what passes see
    first | A B         Y Z | last      what they make of it: B and Y are alike
    first | A B M M M M Y Z | last      the result: each M is B by the names and weights of its m

Problem: passes take time for each node, and do the same in each layer of a network. Method: nodes
whose names begin alike up to a number, as "blk.7.", are a layer. Layers are alike where all that
passes see of them is. b and y have layers of the run on both sides, so if both come out alike, so
would each m between them. What does not fit is left to passes as it is: a layer that somebody else
reads, a rule that looks at the elements of a weight, layers that come out differently.

Complexity: O(nodes), of which passes see four layers. Examples: tests/passes/test_layers.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from ..graph import INLINE_BYTES, Graph, Node
from ..ops.core.late import Held, Late, as_array
from ..types import NDArray
from .wishes import Wishes

LEAST = 7
"""Equal layers that are worth it."""
_LAYER = re.compile(r"(.*?)(\d+)(?=[./])")
SAME, BEFORE, AFTER, ELSEWHERE = range(4)
"""Where an operand is: in the layer that reads it, the one before or after it, or elsewhere."""
Place = tuple[int, int]
"""One of these, and the position in that layer, or the id of a node elsewhere."""
Form = list[tuple[object, ...]]


class LookedInside(Exception):
    """A rule wants the elements of a weight: layers with other elements may come out otherwise."""


class _Unseen(Late):
    """Stands for a weight of a layer."""

    def __init__(self, node: Node, held: Held) -> None:
        super().__init__(node.type.shape, _refuse, held.dtype, _refuse)
        self.name = node.name


def _refuse(*_: object) -> NoReturn:
    raise LookedInside


class _Layers:
    """The layers of a graph. numbers: of each node its layer's, None where it is in none. members:
    the nodes of each layer. at: of each node the position among these.
    """

    def __init__(self, graph: Graph, stem: str) -> None:
        self.graph, self.stem = graph, stem
        self.numbers: list[int | None] = []
        self.members: dict[int, list[int]] = {}
        self.at: list[int] = []
        for node in graph.nodes:
            number = self.number(node.name)
            self.numbers.append(number)
            mine = self.members.setdefault(-1 if number is None else number, [])
            self.at.append(len(mine))
            mine.append(node.id)

    def number(self, name: str) -> int | None:
        """Returns the layer that a name is of."""
        if not name.startswith(self.stem):
            return None
        found = _LAYER.match(name)
        return int(found[2]) if found is not None and found[1] == self.stem else None

    def renamed(self, name: str, number: int, to: int) -> str:
        """Returns the name in another layer of what has this one in its own."""
        return f"{self.stem}{to}{name[len(self.stem) + len(str(number)) :]}"

    def place(self, number: int, before: int, after: int, node_id: int) -> Place:
        """Returns where a node is, seen from a layer between two others."""
        there = self.numbers[node_id]
        if there is None or there not in (number, before, after):
            return ELSEWHERE, node_id
        return (number, before, after).index(there), self.at[node_id]

    def form(self, number: int, before: int, told: Callable[[Node], object]) -> Form:
        """Returns all that passes see of a layer, the same for layers that are alike. told: more of
        a node.
        """
        nodes, skipped = self.graph.nodes, len(self.stem) + len(str(number))
        out: Form = []
        for node in (nodes[i] for i in self.members[number]):
            read = [self.place(number, before, -1, i) for i in node.inputs]
            about = (node.op, node.attrs, node.type, node.name[skipped:])
            out.append((*about, *read, told(node)))
        return out

    def content(self, node: Node) -> object:
        """Returns what tells a constant from others."""
        if node.op != "constant":
            return None
        held = self.graph.data[node.id]
        if held.nbytes <= INLINE_BYTES:
            return as_array(held).tobytes()
        return id(held)


def _spliced(
    numbers: Sequence[int | None], copied: int, copies: range
) -> Iterator[tuple[int, int | None]]:
    """Yields the positions of a short graph in the order of the long one, each stretch of the
    layer that is copied once more for each copy, with the number of that.
    """
    stretch: list[int] = []
    for position, number in enumerate([*numbers, None]):
        if number == copied:
            stretch.append(position)
        elif stretch:
            yield from ((each, copy) for copy in copies for each in stretch)
            stretch = []
        if position < len(numbers):
            yield position, None


@dataclass(frozen=True)
class Short:
    """A graph without most of its equal layers. whole: the graph. first, last: of the run."""

    graph: Graph
    whole: Graph
    stem: str
    first: int
    last: int

    @property
    def left_out(self) -> range:
        return range(self.first + 2, self.last - 1)

    def lengthen(self, made: Graph) -> Graph | None:
        """Returns the whole graph as passes would make it, from what they made of the short one;
        None where they did not treat layers alike.
        """
        if made is self.graph:
            return self.whole
        layers, b, y = _Layers(made, self.stem), self.first + 1, self.last - 1
        if not {self.first, b, y} <= layers.members.keys():
            return None
        told = layers.content
        if layers.form(b, self.first, told) != layers.form(y, b, told):
            return None
        if not self._merges_alike(layers):
            return None
        ends = {i for _, i in made.outputs} | {*made.kept}
        if any(layers.numbers[i] == b for i in ends):
            return None
        return _Longer(self, layers, made).run()

    def _merges_alike(self, layers: _Layers) -> bool:
        """Whether what became part of a node did so within its layer or beside it, and alike: a
        node of many layers would be one of still more in the whole graph.
        """
        a, b, y, z = run = (self.first, self.first + 1, self.last - 1, self.last)
        around = {a: (-1, b), b: (a, y), y: (b, z), z: (y, -1)}
        found: dict[int, dict[str, Place]] = {number: {} for number in run}
        for name, node_id in layers.graph.merged.items():
            number, to = layers.number(name), layers.numbers[node_id]
            if number not in around:
                if to in (b, y):
                    return False
                continue
            where, position = layers.place(number, *around[number], node_id)
            shared = to not in run if number == z else node_id < layers.members[a][0]
            if where == ELSEWHERE and not shared:
                return False
            found[number][layers.renamed(name, number, 0)] = where, position
        return found[b] == found[y]


class _Longer:
    """The long graph as far as it is made."""

    def __init__(self, short: Short, layers: _Layers, made: Graph) -> None:
        self._short, self._layers, self._made = short, layers, made
        self._nodes: list[Node] = []
        self._kept = [-1] * len(made.nodes)
        """By node of the short graph its id here."""
        size = len(layers.members[short.first + 1])
        self._copies = {number: [-1] * size for number in short.left_out}
        self._owners = {node.name: node.id for node in short.whole.nodes}
        self._data: dict[int, Held] = {}
        self._keys: dict[int, object] = {}
        self._initial: dict[int, NDArray] = {}

    def run(self) -> Graph | None:
        """Returns the graph; None where a node would be read before it is there."""
        made, layers, b = self._made, self._layers, self._short.first + 1
        for position, number in _spliced(layers.numbers, b, self._short.left_out):
            node, name = made.nodes[position], made.nodes[position].name
            if number is not None:
                name = layers.renamed(name, b, number)
            inputs = tuple([self._found(position, number, i) for i in node.inputs])
            if -1 in inputs:
                return None
            new = Node(len(self._nodes), node.op, inputs, node.attrs, node.type, name)
            self._nodes.append(new)
            if number is None:
                self._kept[position] = new.id
            else:
                self._copies[number][layers.at[position]] = new.id
            self._hold(node, new)
        kept = self._kept
        outputs = tuple((name, kept[i]) for name, i in made.outputs)
        return Graph(
            tuple(self._nodes),
            outputs,
            MappingProxyType(self._data),
            MappingProxyType(self._keys),
            MappingProxyType(self._initial),
            tuple(kept[i] for i in made.kept),
            MappingProxyType(self._merged()),
        )

    def _found(self, reader: int, number: int | None, node_id: int) -> int:
        """Returns what a node reads, or a copy of it in some layer; -1 where that is not there."""
        layers, short = self._layers, self._short
        b, y = short.first + 1, short.last - 1
        if number is not None:
            where, position = layers.place(b, short.first, y, node_id)
            return self._in(number, where, position)
        if layers.numbers[node_id] == b and layers.numbers[reader] != b:
            if layers.numbers[reader] != y:
                return -1  # the last copy may be meant, or each of them
            return self._copies[y - 1][layers.at[node_id]]
        return self._kept[node_id]

    def _in(self, number: int, where: int, position: int) -> int:
        """Returns a node by its place, seen from a copy."""
        if where == ELSEWHERE:
            return self._kept[position]
        at = number + (0, -1, 1)[where]
        if at in self._copies:
            return self._copies[at][position]
        return self._kept[self._layers.members[at][position]]

    def _hold(self, node: Node, new: Node) -> None:
        """Gives a new leaf what it holds: weights and states those that have its name."""
        made, whole = self._made, self._short.whole
        owner = self._owners.get(new.name, -1)
        if node.id in made.initial:
            self._initial[new.id], self._keys[new.id] = whole.initial[owner], whole.keys[owner]
        elif node.id in made.data:
            own = isinstance(made.data[node.id], _Unseen)
            self._data[new.id] = whole.data[owner] if own else made.data[node.id]
            key = whole.keys.get(owner) if own else made.keys.get(node.id)
            if key is not None:
                self._keys[new.id] = key

    def _merged(self) -> dict[str, int]:
        """Returns the nodes that stand for names that are gone, those of copies too."""
        layers, short, out = self._layers, self._short, dict[str, int]()
        b, y = short.first + 1, short.last - 1
        for name, node_id in self._made.merged.items():
            number, to = layers.number(name), layers.numbers[node_id]
            if number == b and to == y:
                out[name] = self._copies[b + 1][layers.at[node_id]]
            elif number == y and to == b:
                out[name] = self._copies[y - 1][layers.at[node_id]]
            else:
                out[name] = self._kept[node_id]
            if number == b:
                where, position = layers.place(b, short.first, y, node_id)
                for each in short.left_out:
                    out[layers.renamed(name, b, each)] = self._in(each, where, position)
        return out


def shorten(graph: Graph, wishes: Wishes) -> Short | None:
    """Returns a graph without most of its equal layers; None where there are too few."""
    layers = _found_layers(graph)
    if layers is None:
        return None
    run = _longest_run(layers, wishes)
    if len(run) < LEAST:
        return None
    short = Short(graph, graph, layers.stem, run[0], run[-1])
    numbers = layers.numbers
    kept = [i for i, number in enumerate(numbers) if number not in short.left_out]
    order = [
        kept[at] if copy is None else layers.members[copy][layers.at[kept[at]]]
        for at, copy in _spliced([numbers[i] for i in kept], run[1], short.left_out)
    ]
    if order != list(range(len(numbers))):
        return None  # layers are not one behind the other
    made = _without(layers, kept, short)
    return None if made is None else Short(made, graph, layers.stem, run[0], run[-1])


def _found_layers(graph: Graph) -> _Layers | None:
    """Returns layers by the names that most nodes have."""
    found = (_LAYER.match(node.name) for node in graph.nodes)
    stems = Counter(each[1] for each in found if each is not None)
    return _Layers(graph, stems.most_common(1)[0][0]) if stems else None


def _longest_run(layers: _Layers, wishes: Wishes) -> range:
    """Returns the numbers of the most layers behind each other that are alike."""

    def told(node: Node) -> object:
        content = layers.content(node)
        return content, wishes.homes.get(node.name), node.name in wishes.observed

    best, start, before = range(0), 0, Form()
    for number in range(max(layers.members) + 1):
        form = layers.form(number, number - 1, told) if number in layers.members else []
        if not form or form != before:
            start = number
        if form and number + 1 - start > len(best):
            best = range(start, number + 1)
        before = form
    return best


def _without(layers: _Layers, kept: Sequence[int], short: Short) -> Graph | None:
    """Returns the graph of the nodes that are kept; None where others are read elsewhere."""
    graph, b, y = layers.graph, short.first + 1, short.last - 1
    place = {node_id: position for position, node_id in enumerate(kept)}
    for last, stand_in in zip(layers.members[y - 1], layers.members[b], strict=True):
        place[last] = place[stand_in]  # for the layer behind it
    nodes: list[Node] = []
    for node in (graph.nodes[i] for i in kept):
        number = layers.numbers[node.id]
        if any(layers.numbers[i] in short.left_out for i in node.inputs) and number != y:
            return None
        inputs = tuple([place[i] for i in node.inputs if i in place])
        if len(inputs) < len(node.inputs):
            return None
        nodes.append(Node(len(nodes), node.op, inputs, node.attrs, node.type, node.name))
    ends = {i for _, i in graph.outputs} | {*graph.kept, *graph.merged.values()}
    if any(layers.numbers[i] in short.left_out for i in ends):
        return None
    data = {place[i]: _hidden(layers, i, short) for i in kept if i in graph.data}
    initial = {place[i]: graph.initial[i] for i in kept if i in graph.initial}
    keys = {place[i]: graph.keys[i] for i in kept if i in graph.keys}
    return Graph(
        tuple(nodes),
        tuple((name, place[i]) for name, i in graph.outputs),
        data,
        keys,
        initial,
        tuple(place[i] for i in graph.kept),
        {name: place[i] for name, i in graph.merged.items()},
    )


def _hidden(layers: _Layers, node_id: int, short: Short) -> Held:
    """Returns what a leaf holds, hidden in weights of the run."""
    node, held = layers.graph.nodes[node_id], layers.graph.data[node_id]
    number = layers.numbers[node_id]
    inside = number is not None and short.first <= number <= short.last
    return _Unseen(node, held) if inside and node.op == "weight" else held
