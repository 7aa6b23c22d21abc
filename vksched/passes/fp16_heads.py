"""fp16 heads: q, k and v of a prompt stay float16 from their product to the KV cache.

    qkv = merged_linear_rope(x, Wq, Wk, Wv) {by_heads}          float32
    a = attention_with_kvcache(q, cache, k, v) {mixed}          float32
    linear(a, W) {mixed},  cache <- cast(k), cast(v)

    is the same with qkv and a of float16, and without the cast

Attention by cooperative matrices and the product behind it round these values to float16 anyway,
and so does the cast for a cache of float16. A layer saves a dispatch, and half of the bytes between
these kernels. Results have the same bits, except values beyond the range of float16: they are NaN
where the product writes them, as in the cast, because infinite keys would weigh nothing.

k and v stay in memory until the end of the run, where the cache is written, and with them q, whose
buffer they share. The static choice has to be cooperative matrices for all of these nodes on all
devices. Complexity: O(nodes). Examples: tests/passes/test_fp16_heads.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..common.dtypes import FLOAT16, FLOAT32
from ..ir.attrs import Attrs
from ..ir.graph import Graph, Node
from ..ir.precision import allows_half
from ..ops.attention.attention_launch import coopmat_of
from ..ops.attention.attention_sizes import sizes_of
from ..ops.lowering.fp16_result import DTYPE, OVERFLOW_NAN
from .constraints import RewriteConstraints
from .fp16_rows import ATTENTION, CASTS, ROPE, Finder, is_supported
from .fuse_linears import is_by_coopmats, is_on_cpu, static_choice

ROWS = (0, 4, 5)
"""Operands of attention: q, and the new keys and values."""
CACHES = (1, 2)
"""Operands of attention: the cached keys and values."""


@dataclass
class _Heads:
    """A product, nodes whose values become float16, and casts that become views."""

    values: list[Node]
    attention: list[Node] = field(default_factory=list)
    casts: list[Node] = field(default_factory=list)


def store_heads_as_fp16(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Store heads of q, k and v as float16 for attention and caches that convert them to it."""
    if not is_supported(constraints.limits):
        return graph
    finder, nodes = Finder(graph, constraints), list(graph.nodes)
    for node in graph.nodes:
        if node.op != ROPE or (heads := _match(graph, finder, node, constraints)) is None:
            continue
        for each in heads.values:
            nodes[each.id] = replace(each, type=each.type.as_dtype(FLOAT16))
        attrs = Attrs({**node.attrs, DTYPE: FLOAT16, OVERFLOW_NAN: True})
        nodes[node.id] = replace(nodes[node.id], attrs=attrs)
        for cast in heads.casts:
            nodes[cast.id] = replace(cast, op="reshape", attrs=Attrs({"shape": cast.type.shape}))
    changed = any(one is not other for one, other in zip(nodes, graph.nodes, strict=True))
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _match(
    graph: Graph, finder: Finder, product: Node, constraints: RewriteConstraints
) -> _Heads | None:
    """Return what becomes float16 with the result of a product, or None if it is read otherwise."""
    types = tuple(graph.nodes[i].type for i in product.inputs)
    is_half = product.type.dtype == FLOAT32 and _may_round(product, constraints)
    if not (is_half and product.attrs.get("by_heads")):
        return None
    heads = _Heads([product])
    for value in heads.values:  # grows during the loop
        if finder.is_visible(value):
            return None
        for reader in finder.readers[value.id]:
            if reader.id in graph.views and reader.op not in CASTS:
                heads.values.append(reader)
            elif _is_for_cache(reader) and not finder.is_visible(reader):
                heads.casts.append(reader)
            elif reader.op == ATTENTION:
                heads.attention.append(reader)
            else:
                return None
    own = {value.id for value in heads.values}
    for node in {each.id: each for each in heads.attention}.values():
        results = finder.values(node) if _is_half_attention(graph, node, own, constraints) else []
        if not results:
            return None
        heads.values += results
    if not heads.attention or not is_by_coopmats(product, types, constraints.limits):
        return None
    return heads


def _may_round(node: Node, constraints: RewriteConstraints) -> bool:
    """Return True if a node may be rounded to float16, and runs on a GPU."""
    return allows_half(node.attrs) and not is_on_cpu(node, constraints)


def _is_for_cache(node: Node) -> bool:
    """Return True if a node casts rows for a KV cache of float16."""
    return node.op == "cast" and node.type.dtype == FLOAT16 and bool(node.attrs.get(OVERFLOW_NAN))


def _is_half_attention(
    graph: Graph, node: Node, own: set[int], constraints: RewriteConstraints
) -> bool:
    """Return True if attention has all of its rows from a product, and rounds them to float16."""
    limits, inputs = constraints.limits, node.inputs
    if limits is None or len(inputs) <= max(ROWS) or not _may_round(node, constraints):
        return False
    types = [graph.nodes[i].type for i in inputs]
    rows = all(inputs[i] in own for i in ROWS) and own.isdisjoint(inputs[1:4])
    if not rows or any(types[i].dtype != FLOAT16 for i in CACHES):
        return False
    for i in ROWS:
        types[i] = types[i].as_dtype(FLOAT16)
    result = replace(node, type=node.type.as_dtype(FLOAT16))
    call = static_choice(result, tuple(types), limits)
    return coopmat_of(call, sizes_of(call)) is not None
