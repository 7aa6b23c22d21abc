"""fp16 rows: norms and gates store float16 if all that reads them converts to it anyway.

    y = rms_norm(x); linear(y, Wq) {mixed}, ...      is  rms_norm {dtype: float16}, the same linears
    h = merged_linear {gate}; linear(h, W) {mixed}   is  merged_linear {gate, dtype: float16}, ...

Cooperative matrices multiply float16. A product of float32 rows loads twice the bytes, and each
workgroup converts its rows again. Results are the same bits: a value is rounded once, where it is
written. A value beyond the range of float16 becomes infinite there, as it would in the product
(engine/fp16_overflow.py finds it).

The readers have to be products of quantized weights that the static choice multiplies with
cooperative matrices on all devices (quant_gemm.py). Views between them are float16, too. A value
that is an output, or is observed, stays float32. Complexity: O(nodes). Examples:
tests/passes/test_fp16_rows.py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..common.dtypes import FLOAT16, FLOAT32
from ..ir.attrs import Attrs
from ..ir.graph import Graph, Node
from ..ir.op import EPILOGUE
from ..ir.precision import allows_half
from ..ops.lowering.fp16_result import DTYPE, OVERFLOW_NAN, stores_fp16
from ..topology.limits import Limits
from .constraints import RewriteConstraints
from .fuse_linears import is_by_coopmats, is_on_cpu

NORMS = ("rms_norm", "layer_norm")
MERGED, ROPE = "merged_linear", "merged_linear_rope"
ATTENTION = "attention_with_kvcache"
WRITERS = (*NORMS, MERGED)
CASTS = ("cast", "bitcast")
"""Views whose type is not that of their operand."""
READERS = ("quantized_linear", MERGED, ROPE)


def store_rows_as_fp16(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Store the results of norms and of gates as float16 for products that convert them to it."""
    if not is_supported(constraints.limits):
        return graph
    nodes = list(graph.nodes)
    finder = Finder(graph, constraints)
    for node in graph.nodes:
        if is_writer(node):
            values = finder.values(node)
            for each in values:
                nodes[each.id] = replace(each, type=each.type.as_dtype(FLOAT16))
            if values:
                attrs = Attrs({**node.attrs, DTYPE: FLOAT16})
                nodes[node.id] = replace(nodes[node.id], attrs=attrs)
    changed = any(one is not other for one, other in zip(nodes, graph.nodes, strict=True))
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def is_supported(limits: Limits | None) -> bool:
    """Return True if all devices multiply with cooperative matrices without a measurement."""
    return limits is not None and limits.coopmat_checked


def keep_rows_in_float32(graph: Graph) -> Graph:
    """Return a graph as it was before this pass and fp16_heads.py: values beyond the range of
    float16 are visible.
    """
    nodes = list(graph.nodes)
    restored = set[int]()
    for node in graph.nodes:
        written = node.op in (*WRITERS, ROPE) and stores_fp16(node.attrs)
        if written:
            added = (DTYPE, OVERFLOW_NAN)
            attrs = Attrs({name: value for name, value in node.attrs.items() if name not in added})
            node = replace(node, attrs=attrs)
        reads = bool(node.inputs) and node.inputs[0] in restored
        if written or (reads and (node.id in graph.views or node.op == ATTENTION)):
            restored.add(node.id)
            nodes[node.id] = replace(node, type=node.type.as_dtype(FLOAT32))
    return replace(graph, nodes=tuple(nodes)) if restored else graph


def is_writer(node: Node) -> bool:
    """Return True if a node can store its float32 result as float16."""
    if node.type.dtype != FLOAT32 or not node.type.size or stores_fp16(node.attrs):
        return False
    is_gate = node.op == MERGED and bool(node.attrs["gate"]) and EPILOGUE not in node.attrs
    return node.op in NORMS or is_gate


class Finder:
    """Find the readers of values."""

    def __init__(self, graph: Graph, constraints: RewriteConstraints) -> None:
        self._graph = graph
        self._constraints = constraints
        self.readers: dict[int, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for i in dict.fromkeys(node.inputs):
                self.readers[i].append(node)
        self._ends = {i for _, i in graph.outputs} | set(graph.backed_up_states)

    def is_visible(self, value: Node) -> bool:
        """Return True if a value is an output, or is observed."""
        return value.id in self._ends or value.name in self._constraints.observed

    def values(self, writer: Node) -> list[Node]:
        """Return a node and the views of its result; [] if anything but products reads them."""
        values, products = [writer], 0
        for value in values:  # grows during the loop
            if self.is_visible(value):
                return []
            for reader in self.readers[value.id]:
                if reader.id in self._graph.views and reader.op not in CASTS:
                    values.append(reader)
                elif self._converts(reader, value):
                    products += 1
                else:
                    return []
        return values if products else []

    def _converts(self, reader: Node, value: Node) -> bool:
        """Return True if a product converts a value to float16, and uses it as its rows alone."""
        x, *others = reader.inputs
        if reader.op not in READERS or x != value.id or value.id in others:
            return False
        if not allows_half(reader.attrs) or is_on_cpu(reader, self._constraints):
            return False
        rows = value.type.as_dtype(FLOAT16)
        types = (rows, *(self._graph.nodes[i].type for i in others))
        return is_by_coopmats(reader, types, self._constraints.limits)
