"""Precision: gives products, convolutions and attention the word that was asked for.

    matmul(x, w)  --{encoder.*: mixed}-->  matmul(x, w) {precision: mixed}

It comes before all other passes, which keep the attribute where they make one product of another.
Only nodes with a float32 result and factors (`Op.roundable_operands`) have a precision; float16
operands are summed in float32 whatever the word. "int8" means something for products by weights of
few bits alone; others stay in float32. Complexity: O(nodes). Examples:
tests/passes/test_set_precision.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..common.dtypes import FLOAT32
from ..ir.graph import Graph, Node
from ..ir.precision import BYTES, SINGLE, precision_of, with_word
from ..ops.quantized.q8_activations import has_int8_activations


def set_precision(graph: Graph, modes: Mapping[int, str]) -> Graph:
    """Return a graph whose nodes have these words; the same graph where nothing changes.

    words: by node id; other nodes stay as they are, and so do those that have no precision.
    """
    nodes = tuple(
        _with_word(graph, node, modes[node.id]) if node.id in modes else node
        for node in graph.nodes
    )
    changed = any(one is not other for one, other in zip(nodes, graph.nodes, strict=True))
    return replace(graph, nodes=nodes) if changed else graph


def has_precision(node: Node) -> bool:
    """Whether a word means something for a node."""
    return bool(node.declaration.roundable_operands) and node.type.dtype == FLOAT32


def _with_word(graph: Graph, node: Node, mode: str) -> Node:
    if not has_precision(node):
        return node
    if mode == BYTES and not _reads_int8(graph, node):
        mode = SINGLE
    return (
        node
        if precision_of(node.attrs) == mode
        else replace(node, attrs=with_word(node.attrs, mode))
    )


def _reads_int8(graph: Graph, node: Node) -> bool:
    """Whether a node is a product by a weight of few bits, or a pass makes it one."""
    weight = graph.nodes[node.inputs[1]] if len(node.inputs) > 1 else node
    by_rows = node.op == "moe_linear" or (
        node.op == "matmul"
        and node.attrs.as_bool("transpose_b")
        and not node.attrs.as_bool("transpose_a")
        and weight.type.rank == 2
    )
    reader = weight if by_rows and weight.op == "dequantize" else node
    return has_int8_activations(reader.attrs.get("format"))
