"""Layer signatures: assign nodes to layers by their names, and compare layers.

    blk.7.attn_q.weight     layer 7; or, with a period of 2, the second block of layer 3

Examples: tests/passes/test_equal_layers.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..ir.graph import INLINE_BYTES, Graph, Node
from ..storage.lazy_array import as_array

LAYER = re.compile(r"(.*?)(\d+)(?=[./])")
"""Matches the prefix of a layer name and its number."""
MAX_DIGITS = 6
SAME, BEFORE, AFTER, ELSEWHERE = range(4)
"""Location of an operand: the layer that reads it, the one before or after it, or elsewhere."""
Place = tuple[int, int]
"""A location and the position in that layer, or the id of a node elsewhere."""
Signature = list[tuple[object, ...]]


@dataclass(frozen=True)
class LayerNames:
    """How node names encode layers.

    `period` consecutive numbers form one layer; `start` is the number at which layers begin.
    """

    stem: str
    period: int = 1
    start: int = 0

    def layer(self, name: str) -> int | None:
        """Return the layer number of a node name; None if it names no layer."""
        found = self.split(name)
        return None if found is None else found[0]

    def renamed(self, name: str, layers: int) -> str:
        """Return the name of the corresponding node `layers` layers later."""
        found = self.split(name)
        assert found is not None
        layer, phase, rest = found
        return f"{self.stem}{(layer + layers) * self.period + self.start + phase}{rest}"

    def split(self, name: str) -> tuple[int, int, str] | None:
        """Return the layer of a name, the position in its period, and the rest of the name."""
        begin = len(self.stem)
        end = begin
        while name[end : end + 1].isdecimal():
            end += 1
        number = name[begin:end]
        if not name.startswith(self.stem) or name[end : end + 1] not in (".", "/"):
            return None
        if not number.isascii() or len(number) > MAX_DIGITS or number != str(int(number or "0")):
            return None  # not in the form that `renamed` writes
        return *divmod(int(number) - self.start, self.period), name[end:]


class Layers:
    """The layers of a graph.

    `numbers` holds the layer of each node, None outside of layers; `members` the nodes of each
    layer; `at` the position of each node in its layer.
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
        """Return the place of a node relative to a layer and its two neighbours."""
        there = self.numbers[node_id]
        if there is None or there not in (number, before, after):
            return ELSEWHERE, node_id
        return (number, before, after).index(there), self.at[node_id]

    def signature(self, number: int, before: int, describe: Callable[[Node], object]) -> Signature:
        """Return everything that passes see of a layer; equal layers have equal signatures.

        `describe` returns further properties of a node.
        """
        nodes = self.graph.nodes
        out: Signature = []
        for node in (nodes[i] for i in self.members[number]):
            read = [self.place(number, before, None, i) for i in node.inputs]
            out.append((node.op, node.attrs, node.type, self._own[node.id], *read, describe(node)))
        return out

    def content(self, node: Node) -> object:
        """Return a key of the content of a constant; None for other nodes."""
        if node.op != "constant":
            return None
        held = self.graph.data[node.id]
        if held.nbytes <= INLINE_BYTES:
            return as_array(held).tobytes()
        return id(held)
