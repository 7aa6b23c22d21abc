"""Set precision: assign precision modes to matmuls, convolutions and attention.

    matmul(x, w)  --{encoder.*: mixed}-->  matmul(x, w) {precision: mixed}

This pass runs before all others, which preserve the attribute when they replace an op. Only nodes
with a float32 result and roundable operands (`Op.roundable_operands`) have a precision; ops of
float16 operands accumulate in float32 in all modes. "int8" applies only to matmuls with quantized
weights; others compute in float32. "float16" applies as "mixed" to nodes with the attribute
`float32_sums`. Complexity: O(nodes). Examples:
tests/passes/test_set_precision.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..common.dtypes import FLOAT32
from ..ir.graph import Graph, Node
from ..ir.precision import BYTES, HALF, MIXED, SINGLE, precision_of, with_word
from ..ops.quantized.q8_activations import has_int8_activations


def set_precision(graph: Graph, modes: Mapping[int, str]) -> Graph:
    """Return a graph whose nodes have the given precision modes; `graph` itself if nothing changes.

    `modes` maps node ids to modes; other nodes, and nodes without a precision, are unchanged.
    """
    nodes = tuple(
        _with_mode(graph, node, modes[node.id]) if node.id in modes else node
        for node in graph.nodes
    )
    changed = any(one is not other for one, other in zip(nodes, graph.nodes, strict=True))
    return replace(graph, nodes=nodes) if changed else graph


def has_precision(node: Node) -> bool:
    """Return True if a precision mode affects a node."""
    return bool(node.declaration.roundable_operands) and node.type.dtype == FLOAT32


def _with_mode(graph: Graph, node: Node, mode: str) -> Node:
    if not has_precision(node):
        return node
    if mode == BYTES and not _reads_int8(graph, node):
        mode = SINGLE
    if mode == HALF and node.attrs.get("float32_sums"):
        mode = MIXED
    return (
        node
        if precision_of(node.attrs) == mode
        else replace(node, attrs=with_word(node.attrs, mode))
    )


def _reads_int8(graph: Graph, node: Node) -> bool:
    """Return True if a node is a matmul with a quantized weight, or becomes one in a later pass."""
    weight = graph.nodes[node.inputs[1]] if len(node.inputs) > 1 else node
    by_rows = node.op == "moe_linear" or (
        node.op == "matmul"
        and node.attrs.as_bool("transpose_b")
        and not node.attrs.as_bool("transpose_a")
        and weight.type.rank == 2
    )
    reader = weight if by_rows and weight.op == "dequantize" else node
    return has_int8_activations(reader.attrs.get("format"))
