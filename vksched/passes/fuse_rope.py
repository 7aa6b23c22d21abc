"""Fuse rotary embedding of prompts: q, k and v of many rows leave their product as attention reads
them.

    qkv = merged_linear(x, Wq, Wk, Wv) {stacked}
    rotary(transpose(q)), rotary(transpose(k)), transpose(v)

    is slices of merged_linear_rope(x, Wq, Wk, Wv, cos, sin) {by_heads}

The transposes make matrices (rows, head_size) of heads. The product rotates and stores its results
in this order, so that three transposes and two rotary embeddings, and two barriers, are saved in
each layer. If the last of them are cast, as k and v for a KV cache of float16, one cast does for
all. Rows of one token each have no transposes; fuse_linears.py lets their products rotate. Up to
eight rows of a prompt keep theirs: GEMV kernels multiply them. Complexity: O(nodes).
Examples: tests/passes/test_fuse_rope.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..ir.attrs import Attrs
from ..ir.graph import Graph, Node
from ..ir.op import EPILOGUE
from ..ops.linalg.matmul_kernels import MAX_GEMV_ROWS
from ..ops.quantized.merged_linear import NAME as MERGED
from ..ops.quantized.merged_linear import is_stacked
from ..ops.quantized.merged_linear_rope import NAME as ROPE
from ..ops.quantized.merged_linear_rope import ROTARY, has_rope_kernel
from .constraints import RewriteConstraints
from .fuse_attention import SWAPPED
from .fuse_linears import cut, is_supported, of_ahead
from .rewrite import Rewriter, rewrite


def fuse_rope(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Let merged products of many rows rotate their results, and store them by heads."""
    if not is_supported(constraints.limits):
        return graph
    readers: dict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for i in node.inputs:
            readers[i].append(node)
    products = [n for n in graph.nodes if n.op == MERGED and is_stacked(n.attrs)]
    found = (_match(graph, readers, node, constraints) for node in products)
    heads = {node.name: (one, node) for one in found if one for node in (*one.ends, *one.casts)}
    if not heads:
        return graph

    def rule(r: Rewriter, node: Node) -> int | None:
        if node.name not in heads:
            return None
        one, old = heads[node.name]
        return one.slice_of(r, graph, old)

    return rewrite(graph, dict.fromkeys((ROTARY, "transpose", "cast"), (rule,)), constraints)


@dataclass(eq=False)
class _Heads:
    """A product whose results become heads: `ends` are the nodes that have them, by weight, and
    `casts` those that cast the last of them.

    `fused` and `cast` are the ids of the new nodes in the new graph, -1 until they are needed.
    """

    product: Node
    ends: Sequence[Node]
    casts: Sequence[Node]
    fused: int = -1
    cast: int = -1

    def slice_of(self, r: Rewriter, graph: Graph, node: Node) -> int:
        """Emit the slice that replaces one of the nodes."""
        if self.fused < 0:
            self.fused = self._make(r, graph)
        bounds = [0, *accumulate(each.type.size for each in self.ends)]
        first = 0
        if node in self.casts:
            first = len(self.ends) - len(self.casts)
            if self.cast < 0:
                rest = cut(r, self.fused, 0, bounds[first], bounds[-1])
                self.cast = r.emit("cast", (rest,), node.attrs)
        at = first + (self.casts.index(node) if first else self.ends.index(node))
        start, end = (each - bounds[first] for each in bounds[at : at + 2])
        part = cut(r, self.cast if first else self.fused, 0, start, end)
        return r.emit("reshape", (part,), {"shape": node.type.shape})

    def _make(self, r: Rewriter, graph: Graph) -> int:
        rotated = [each for each in self.ends if each.op == ROTARY]
        first, own = rotated[0], self.product.attrs
        before = min(each.id for each in self.ends)
        tables = [of_ahead(r, graph, each, before) for each in first.inputs[1:]]
        attrs = {name: value for name, value in own.items() if name != "gate"} | {
            "heads": sum(each.type.shape[1] for each in rotated),
            "head_size": first.type.shape[3],
            "by_heads": True,
            **first.attrs,
        }
        return r.emit(ROPE, (*map(r.of, self.product.inputs), *tables), Attrs(attrs))


def _match(
    graph: Graph,
    readers: Mapping[int, list[Node]],
    product: Node,
    constraints: RewriteConstraints,
) -> _Heads | None:
    """Return the heads of a product, or None if other nodes read its results otherwise."""
    created = (MERGED, "slice")
    """Nodes of fuse_linears.py, which have the pin of their weights and none of their own."""
    pinned = constraints.pinned_devices
    pin = pinned.get(graph.nodes[product.inputs[-1]].name)

    def is_inner(node: Node) -> bool:
        here = node.op in created or pinned.get(node.name) == pin
        return here and node.name not in constraints.observed

    parts = sorted(readers[product.id], key=lambda node: _begin(node))
    weights = product.inputs[1 + product.attrs.as_bool("normed") :]
    if EPILOGUE in product.attrs or len(parts) != len(weights) or not is_inner(product):
        return None
    ends = []
    rows = math.prod(graph.nodes[product.inputs[0]].type.shape[:-1])
    if rows <= MAX_GEMV_ROWS:
        return None
    for part, weight in zip(parts, weights, strict=True):
        words = rows * graph.nodes[weight].type.shape[0]
        chain = _chain(graph, readers, part)
        if part.op != "slice" or part.type.size != words or chain is None:
            return None
        if not all(map(is_inner, chain)):
            return None
        ends.append(chain[-1])
    first = ends[0]
    if first.op != ROTARY or len({each.type.shape[3] for each in ends}) != 1:
        return None
    rotated = [each.op == ROTARY for each in ends]
    same = {(each.inputs[1:], each.attrs) for each in ends if each.op == ROTARY}
    dims, interleaved = first.attrs.as_int("rotary_dim"), first.attrs.as_bool("interleaved")
    tables = {graph.nodes[i].type.shape for i in first.inputs[1:]}
    fits = (
        rotated == sorted(rotated, reverse=True)
        and len(same) == 1
        and tables == {(rows, dims // 2)}
        and has_rope_kernel(first.type.shape[3], dims, interleaved)
    )
    if not fits:
        return None
    casts = [[n for n in readers[end.id] if n.op == "cast" and is_inner(n)] for end in ends[1:]]
    own = [each[0] for each in casts if len(each) == 1]
    alike = len(own) == len(ends) - 1 > 1 and len({each.attrs for each in own}) == 1
    return _Heads(product, ends, own if alike else ())


def _begin(node: Node) -> int:
    return node.attrs.as_ints("starts")[0] if node.op == "slice" else 0


def _chain(graph: Graph, readers: Mapping[int, list[Node]], part: Node) -> list[Node] | None:
    """Return the nodes from a slice to the transpose of its heads, or to their rotary embedding;
    None if there is no such chain.
    """
    ends = {i for _, i in graph.outputs} | set(graph.backed_up_states)
    chain = [part]
    while chain[-1].op in ("slice", "reshape"):
        read = readers[chain[-1].id]
        if len(read) != 1 or chain[-1].id in ends:
            return None
        chain.append(read[0])
    turn = chain[-1]
    whole = turn.type.size == part.type.size and turn.op == "transpose"
    if not whole or turn.attrs.as_ints("axes") != SWAPPED or turn.type.shape[0] != 1:
        return None
    read = readers[turn.id]
    if len(read) == 1 and read[0].op == ROTARY and turn.id not in ends:
        chain.append(read[0])
    return chain
