"""Precision: gives products, convolutions and attention the word that was asked for.

    matmul(x, w)  --{encoder.*: mixed}-->  matmul(x, w) {precision: mixed}

It comes before all other passes, which keep the attribute where they make one product of another.
Only nodes with a float32 result and factors (`Op.factors`) have a precision; float16 operands are
summed in float32 whatever the word. Complexity: O(nodes). Examples:
tests/passes/test_set_precision.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..graph import Graph, Node
from ..ops.core.precision import precision_of, with_word
from ..types import FLOAT32


def set_precision(graph: Graph, words: Mapping[int, str]) -> Graph:
    """Returns a graph whose nodes have these words; the same graph where nothing changes.

    words: by node id; other nodes stay as they are, and so do those that have no precision.
    """
    nodes = tuple(
        _with_word(node, words[node.id]) if node.id in words else node for node in graph.nodes
    )
    changed = any(one is not other for one, other in zip(nodes, graph.nodes, strict=True))
    return replace(graph, nodes=nodes) if changed else graph


def has_precision(node: Node) -> bool:
    """Whether a word means something for a node."""
    return bool(node.declaration.factors) and node.type.dtype == FLOAT32


def _with_word(node: Node, word: str) -> Node:
    if not has_precision(node) or precision_of(node.attrs) == word:
        return node
    return replace(node, attrs=with_word(node.attrs, word))
