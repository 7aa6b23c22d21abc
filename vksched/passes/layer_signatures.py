"""Layer signatures: which nodes are of which layer, by their names, and what tells layers apart.

    blk.7.attn_q.weight     layer 7, or layer 3 and its second turn, where two kinds take turns

Examples: tests/passes/test_equal_layers.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..ir.graph import INLINE_BYTES, Graph, Node
from ..storage.lazy_array import as_array

LAYER = re.compile(r"(.*?)(\d+)(?=[./])")
"""What names of layers begin with, and their number."""
MAX_DIGITS = 6
SAME, BEFORE, AFTER, ELSEWHERE = range(4)
"""Where an operand is: in the layer that reads it, the one before or after it, or elsewhere."""
Place = tuple[int, int]
"""One of these, and the position in that layer, or the id of a node elsewhere."""
Signature = list[tuple[object, ...]]


@dataclass(frozen=True)
class LayerNames:
    """How layers are told by names. period: so many numbers behind each other are a layer. start:
    the number with which one begins.
    """

    stem: str
    period: int = 1
    start: int = 0

    def layer(self, name: str) -> int | None:
        """Return the layer that a name is of."""
        found = self.split(name)
        return None if found is None else found[0]

    def renamed(self, name: str, layers: int) -> str:
        """Return the name that a node has so many layers behind."""
        found = self.split(name)
        assert found is not None
        layer, phase, rest = found
        return f"{self.stem}{(layer + layers) * self.period + self.start + phase}{rest}"

    def split(self, name: str) -> tuple[int, int, str] | None:
        """Return the layer that a name is of, the turn in it, and what else the name says."""
        begin = len(self.stem)
        end = begin
        while name[end : end + 1].isdecimal():
            end += 1
        number = name[begin:end]
        if not name.startswith(self.stem) or name[end : end + 1] not in (".", "/"):
            return None
        if not number.isascii() or len(number) > MAX_DIGITS or number != str(int(number or "0")):
            return None  # it is not written as it would be again
        return *divmod(int(number) - self.start, self.period), name[end:]


class Layers:
    """The layers of a graph. numbers: of each node its layer's, None where it is in none. members:
    the nodes of each layer. at: of each node the position among these.
    """

    def __init__(self, graph: Graph, names: LayerNames) -> None:
        self.graph, self.names = graph, names
        parts = [names.split(node.name) for node in graph.nodes]
        self.numbers = [part and part[0] for part in parts]
        self._own = [part and part[1:] for part in parts]
        self.members: dict[int | None, list[int]] = {}
        self.at: list[int] = []
        for node_id, number in enumerate(self.numbers):
            mine = self.members.setdefault(number, [])
            self.at.append(len(mine))
            mine.append(node_id)

    def place(self, number: int, before: int | None, after: int | None, node_id: int) -> Place:
        """Return where a node is, seen from a layer between two others."""
        there = self.numbers[node_id]
        if there is None or there not in (number, before, after):
            return ELSEWHERE, node_id
        return (number, before, after).index(there), self.at[node_id]

    def signature(self, number: int, before: int, told: Callable[[Node], object]) -> Signature:
        """Return all that passes see of a layer, the same for layers that are alike. told: more of
        a node.
        """
        nodes = self.graph.nodes
        out: Signature = []
        for node in (nodes[i] for i in self.members[number]):
            read = [self.place(number, before, None, i) for i in node.inputs]
            out.append((node.op, node.attrs, node.type, self._own[node.id], *read, told(node)))
        return out

    def content(self, node: Node) -> object:
        """Returns what tells a constant from others."""
        if node.op != "constant":
            return None
        held = self.graph.data[node.id]
        if held.nbytes <= INLINE_BYTES:
            return as_array(held).tobytes()
        return id(held)
